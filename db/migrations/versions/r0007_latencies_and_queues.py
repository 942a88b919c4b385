"""Latencies of whole models, what is asked of running jobs, and jobs that wait for their turn."""

from __future__ import annotations

import sqlalchemy as sa

from tunefarm.db.migrations.tables import create_table, reference, required

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema before this one to it."""
    packed = sa.Text().with_variant(sa.LargeBinary(), "postgresql")
    create_table(
        "requests",
        reference("job_id", unique=True),
        *required(sa.String(16), "what"),
        *required(sa.Text(), "asked_by"),
        *required(sa.Float(), "created"),
        sa.Column("checksum", sa.BigInteger()),
    )
    create_table(
        "latencies",
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        reference("job_id", nullable=True),
        *required(sa.Text(), "model_name"),
        sa.Column("model_hash", sa.String(64), nullable=False),
        reference("target_id"),
        reference("machine_id"),
        *required(sa.Integer(), "threads"),
        *required(sa.String(32), "numerics"),
        *required(sa.String(64), "compiler_version"),
        *required(sa.String(16), "purpose"),
        *required(packed, "measured"),
        *required(sa.Float(), "created"),
        sa.Column("checksum", sa.BigInteger()),
        indexed=("job_id", "model_hash", "target_id"),
    )
    create_table(
        "queue_entries",
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        *required(sa.Text(), "model_name", "arguments", "folder", "options"),
        *required(sa.String(16), "state"),
        *required(sa.Text(), "holder"),
        *required(sa.String(32), "job"),
        *required(sa.Integer(), "attempts"),
        *required(sa.Float(), "seconds"),
        *required(sa.Text(), "error"),
        *required(sa.Float(), "created", "updated"),
        sa.Column("checksum", sa.BigInteger()),
    )
