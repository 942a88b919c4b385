"""Keys of targets without cache sizes and features that no code uses; targets may become one.

A job that tuned for two of these then has two verdicts for one task, and both stay.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.orm import Session

from tunefarm.db.migrations.tables import create_indices, create_table, reference, required
from tunefarm.db.rekey import rekey

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_COLUMNS = "id task_id job_id trial_id default_latency ratio low high met created checksum"


def upgrade() -> None:
    """Bring the schema before this one to it."""
    _widen_key_of_bests()
    with Session(op.get_bind()) as session:
        rekey(session)


def _widen_key_of_bests() -> None:
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        op.drop_constraint("uq_bests_key", "bests")
        op.create_unique_constraint("uq_bests_key", "bests", ["task_id", "job_id", "trial_id"])
        return
    # SQLite changes no constraint of a table: its rows move to a new one
    for column in ("job_id", "trial_id"):
        op.drop_index(f"ix_bests_{column}", "bests")
    op.rename_table("bests", "former_bests")
    create_table(
        "bests",
        reference("task_id"),
        reference("job_id"),
        reference("trial_id"),
        *required(sa.Float(), "default_latency", "ratio", "low", "high"),
        *required(sa.Text(), "met"),
        *required(sa.Float(), "created"),
        sa.Column("checksum", sa.BigInteger()),
        sa.UniqueConstraint("task_id", "job_id", "trial_id", name="uq_bests_key"),
    )
    names = ", ".join(_COLUMNS.split())
    op.execute(f"INSERT INTO bests ({names}) SELECT {names} FROM former_bests")
    op.drop_table("former_bests")
    create_indices("bests", "job_id", "trial_id")
