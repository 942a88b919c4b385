"""The schedule that a job settled for a task, confirmed side by side with its rivals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "bests",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("default_latency", sa.Float(), nullable=False),
        sa.Column("ratio", sa.Float(), nullable=False),
        sa.Column("low", sa.Float(), nullable=False),
        sa.Column("high", sa.Float(), nullable=False),
        sa.Column("met", sa.Text(), nullable=False),
        sa.Column("created", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_bests_task_id"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_bests_job_id"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_bests_trial_id"),
        sa.PrimaryKeyConstraint("id", name="pk_bests"),
        sa.UniqueConstraint("task_id", "job_id", name="uq_bests_key"),
    )
    op.create_index("ix_bests_job_id", "bests", ["job_id"])
    op.create_index("ix_bests_trial_id", "bests", ["trial_id"])
