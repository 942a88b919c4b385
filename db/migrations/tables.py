"""What the tables of every revision have in common; names of constraints are
`tunefarm.db.schema`'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op


def create_table(name: str, *items: sa.schema.SchemaItem, indexed: Sequence[str] = ()) -> None:
    """Create a table whose rows have numbers, then an index for each column that is `indexed`.

    SQLAlchemy has a table's own indices in a set: databases would differ from process to process.
    """
    op.create_table(name, sa.Column("id", sa.Integer(), primary_key=True), *items)
    create_indices(name, *indexed)


def create_indices(table: str, *columns: str) -> None:
    """An index for each of these columns, in this order."""
    for column in columns:
        op.create_index(f"ix_{table}_{column}", table, [column])


def required(type: sa.types.TypeEngine[Any], *names: str) -> list[sa.Column[Any]]:
    """Columns of a type that are never null."""
    return [sa.Column(name, type, nullable=False) for name in names]


def reference(name: str, **options: Any) -> sa.Column[int]:
    """A column `thing_id` that refers to a row of the table `things`; null if `nullable`."""
    key = sa.ForeignKey(f"{name.removesuffix('_id')}s.id")
    return sa.Column(name, sa.Integer(), key, **{"nullable": False, **options})
