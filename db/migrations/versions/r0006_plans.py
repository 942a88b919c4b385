"""What was chosen for a model as a whole, next to the schedules of its kernels."""

from __future__ import annotations

import sqlalchemy as sa

from tunefarm.db.migrations.tables import create_table, reference, required

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema before this one to it."""
    packed = sa.Text().with_variant(sa.LargeBinary(), "postgresql")
    create_table(
        "plans",
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        *required(sa.Text(), "model_name"),
        sa.Column("model_hash", sa.String(64), nullable=False),
        reference("target_id"),
        *required(sa.Integer(), "threads"),
        *required(sa.String(32), "numerics"),
        *required(sa.String(64), "compiler_version"),
        *required(packed, "plan"),
        *required(sa.Float(), "created"),
        sa.Column("checksum", sa.BigInteger()),
        indexed=("model_hash", "target_id"),
    )
