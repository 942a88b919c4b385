"""Where rows come from: imports, merges and packs, whose rows have their numbers.

The columns stand behind the checksum, which rows from before keep: they are the database's own. A
check of a record settles a task without a job.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tunefarm.db.migrations.tables import create_indices, create_table, reference, required

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TABLES = ("jobs", "trials", "builds", "latencies")
_BESTS = "id task_id job_id trial_id default_latency ratio low high met created checksum"


def upgrade() -> None:
    """Bring the schema before this one to it."""
    create_table(
        "additions",
        *required(sa.String(16), "kind"),
        *required(sa.Text(), "source"),
        *required(sa.Float(), "started"),
        sa.Column("finished", sa.Float()),
        sa.Column("checksum", sa.BigInteger()),
    )
    for table in _TABLES:
        op.add_column(table, sa.Column("addition_id", sa.Integer()))
    op.add_column("plans", sa.Column("cpu", sa.Text()))
    op.add_column("plans", sa.Column("addition_id", sa.Integer()))
    _widen_bests()


def _widen_bests() -> None:
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        op.alter_column("bests", "job_id", nullable=True)
        op.add_column("bests", sa.Column("addition_id", sa.Integer()))
        return
    # SQLite makes no column nullable: the rows move to a new table
    for column in ("job_id", "trial_id"):
        op.drop_index(f"ix_bests_{column}", "bests")
    op.rename_table("bests", "former_bests")
    create_table(
        "bests",
        reference("task_id"),
        reference("job_id", nullable=True),
        reference("trial_id"),
        *required(sa.Float(), "default_latency", "ratio", "low", "high"),
        *required(sa.Text(), "met"),
        *required(sa.Float(), "created"),
        sa.Column("checksum", sa.BigInteger()),
        sa.Column("addition_id", sa.Integer()),
        sa.UniqueConstraint("task_id", "job_id", "trial_id", name="uq_bests_key"),
    )
    names = ", ".join(_BESTS.split())
    op.execute(f"INSERT INTO bests ({names}) SELECT {names} FROM former_bests")
    op.drop_table("former_bests")
    create_indices("bests", "job_id", "trial_id")
