"""What the tables of every revision have in common; names of constraints are `db.schema`'s."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op


def create_table(name: str, *items: sa.schema.SchemaItem) -> None:
    """Create a table whose rows have numbers."""
    op.create_table(name, sa.Column("id", sa.Integer(), primary_key=True), *items)


def required(type: sa.types.TypeEngine[Any], *names: str) -> list[sa.Column[Any]]:
    """Columns of a type that are never null."""
    return [sa.Column(name, type, nullable=False) for name in names]


def reference(name: str, **options: Any) -> sa.Column[int]:
    """A column `thing_id` that refers to a row of the table `things`; null if `nullable`."""
    key = sa.ForeignKey(f"{name.removesuffix('_id')}s.id")
    return sa.Column(name, sa.Integer(), key, **{"nullable": False, **options})
