"""The schedule that a job settled for a task, confirmed side by side with its rivals."""

from __future__ import annotations

import sqlalchemy as sa

from tunefarm.db.migrations.tables import create_table, reference, required

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema before this one to it."""
    create_table(
        "bests",
        reference("task_id"),
        reference("job_id"),
        reference("trial_id"),
        *required(sa.Float(), "default_latency", "ratio", "low", "high"),
        *required(sa.Text(), "met"),
        *required(sa.Float(), "created"),
        sa.UniqueConstraint("task_id", "job_id", name="uq_bests_key"),
        indexed=("job_id", "trial_id"),
    )
