"""What a trial was measured against, and how fast it was compared with that.

The columns stand behind the checksum, which rows from before keep: nothing is written anew.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Bring the schema before this one to it."""
    op.add_column("trials", sa.Column("reference", sa.String(16)))
    for name in ("ratio", "low", "high"):
        op.add_column("trials", sa.Column(name, sa.Float()))
    packed = sa.Text().with_variant(sa.LargeBinary(), "postgresql")
    op.add_column("trials", sa.Column("reference_samples", packed))
