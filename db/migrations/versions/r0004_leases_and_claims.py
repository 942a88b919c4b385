"""Who works on a job, and which candidates a job is about to measure."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("process_started", sa.BigInteger(), nullable=False),
        sa.Column("seen", sa.Float(), nullable=False),
        sa.Column("checksum", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_leases_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_leases"),
        sa.UniqueConstraint("job_id", name="uq_leases_job_id"),
    )
    op.create_table(
        "claims",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=False),
        sa.Column("schedule_hash", sa.String(16), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("expires", sa.Float(), nullable=False),
        sa.Column("checksum", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_claims_task_id"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_claims_job_id"),
        sa.PrimaryKeyConstraint("id", name="pk_claims"),
        sa.UniqueConstraint("task_id", "schedule_hash", name="uq_claims_key"),
    )
    op.create_index("ix_claims_job_id", "claims", ["job_id"])


def downgrade() -> None:
    op.drop_table("claims")
    op.drop_table("leases")
