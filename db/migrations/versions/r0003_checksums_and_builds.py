"""A checksum for every row, compressed schedules and conditions, confirmed trials, builds.

Rows are written anew in batches, all in the transaction of the upgrade.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from tunefarm.db.migrations.tables import create_table, reference, required
from tunefarm.db.schema import pack, where

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BATCH = 1000

# The columns as they were, in order, and those that hold JSON or floating-point numbers.
_TABLES = {
    "targets": "key description",
    "machines": "key description",
    "workloads": "key name kernel",
    "tasks": "workload_id target_id threads numerics compiler_version",
    "jobs": "uid model_name model_hash settings state started updated finished progress",
    "job_tasks": "job_id task_id position occurrences",
    "trials": "task_id job_id machine_id request_id sketch choices schedule schedule_hash status "
    "latency samples error build_seconds check_seconds run_seconds conditions created",
    "bests": "task_id job_id trial_id default_latency ratio low high met created",
}
_JSON = {
    *("description", "kernel", "settings", "progress", "choices", "schedule", "samples"),
    *("conditions", "met"),
}
_FLOATS = {
    *("started", "updated", "finished", "latency", "build_seconds", "check_seconds"),
    *("run_seconds", "created", "default_latency", "ratio", "low", "high"),
}
_PACKED = ("schedule", "conditions")


def upgrade() -> None:
    """Bring the schema before this one to it."""
    op.add_column(
        "trials", sa.Column("confirmed", sa.Integer(), nullable=False, server_default=sa.text("0"))
    )
    for table in _TABLES:
        op.add_column(table, sa.Column("checksum", sa.BigInteger(), nullable=True))
    op.create_index("ix_trials_confirmed", "trials", ["task_id"], **where("confirmed = 1"))
    _create_builds()
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        _pack_columns()  # of tables without rows: there was no other database before this schema
        return
    for table in _TABLES:
        for batch in _rows(connection, table):
            _rewrite(connection, table, batch)


def _create_builds() -> None:
    packed = sa.Text().with_variant(sa.LargeBinary(), "postgresql")
    create_table(
        "builds",
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        *required(sa.Text(), "model_name"),
        sa.Column("model_hash", sa.String(64), nullable=False),
        reference("target_id"),
        *required(sa.Integer(), "threads"),
        *required(sa.String(32), "numerics"),
        *required(sa.String(64), "compiler_version", "artefact_sha256"),
        *required(sa.Float(), "tuned_share"),
        *required(packed, "report"),
        *required(sa.Float(), "created"),
        sa.Column("checksum", sa.BigInteger()),
        indexed=("model_hash", "target_id"),
    )


def _pack_columns() -> None:
    for column in _PACKED:
        op.alter_column(
            "trials",
            column,
            existing_type=sa.Text(),
            type_=sa.LargeBinary(),
            existing_nullable=False,
            postgresql_using=f"convert_to({column}, 'UTF8')",
        )


def _rows(connection: sa.Connection, table: str) -> Iterator[list[dict[str, Any]]]:
    """The table's rows, a batch at a time, each with its rowid."""
    columns = ", ".join(_TABLES[table].split())
    last = -1
    while True:
        rows = connection.execute(
            sa.text(
                f"SELECT rowid AS row, {columns} FROM {table} WHERE rowid > :last "
                f"ORDER BY rowid LIMIT {_BATCH}"
            ),
            {"last": last},
        )
        batch = [dict(row) for row in rows.mappings()]
        if not batch:
            return
        yield batch
        last = batch[-1]["row"]


def _rewrite(connection: sa.Connection, table: str, batch: list[dict[str, Any]]) -> None:
    changed = ["checksum"]
    if table == "trials":
        changed += ["confirmed", *_PACKED]
    values = [_changed(table, row) for row in batch]
    assignments = ", ".join(f"{name} = :{name}" for name in changed)
    connection.execute(sa.text(f"UPDATE {table} SET {assignments} WHERE rowid = :row"), values)


def _changed(table: str, row: dict[str, Any]) -> dict[str, Any]:
    values: list[Any] = [table]
    for name in _TABLES[table].split():
        value = row[name]
        if name in _JSON:
            value = json.loads(value)
        elif name in _FLOATS and value is not None:
            value = float(value)
        values.append(value)
    changed: dict[str, Any] = {"row": row["row"]}
    if table == "trials":
        changed["confirmed"] = int("confirmed" in json.loads(row["conditions"]))
        changed |= {name: pack(row[name]) for name in _PACKED}
        values.append(changed["confirmed"])
    text = json.dumps(values, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    changed["checksum"] = int.from_bytes(digest, "big", signed=True)
    return changed
