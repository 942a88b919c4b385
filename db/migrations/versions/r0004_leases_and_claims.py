"""Who works on a job, and which candidates a job is about to measure."""

from __future__ import annotations

import sqlalchemy as sa

from tunefarm.db.migrations.tables import create_table, reference, required

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema before this one to it."""
    create_table(
        "leases",
        reference("job_id", unique=True),
        *required(sa.Text(), "host"),
        *required(sa.Integer(), "pid"),
        *required(sa.BigInteger(), "process_started"),
        *required(sa.Float(), "seen"),
        sa.Column("checksum", sa.BigInteger()),
    )
    create_table(
        "claims",
        reference("task_id"),
        *required(sa.String(16), "schedule_hash"),
        reference("job_id"),
        *required(sa.Float(), "expires"),
        sa.Column("checksum", sa.BigInteger()),
        sa.UniqueConstraint("task_id", "schedule_hash", name="uq_claims_key"),
        indexed=("job_id",),
    )
