"""Checksums of rows: what tells an intact row from a damaged one.

A row's checksum is 64 bits of the BLAKE2b hash of its table's name and its values; the id is left
out because the database gives it. SQLite's own checks see a damaged page structure, but not a digit
that has changed within a latency. Columns that a later schema added stand behind the checksum, and
count up to the last one that is not null, so that rows from before keep the checksum they have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Float, Table

from tunefarm.configs.errors import DatabaseError

if TYPE_CHECKING:
    from sqlalchemy.engine.default import DefaultExecutionContext

COLUMN = "checksum"
LEFT_OUT = ("id", COLUMN)


def row_checksum(table: Table, values: Mapping[str, Any]) -> int:
    """The checksum of a row with these values by column; JSON columns as Python values.

    Raises TypeError, ValueError or OverflowError for values that no row can have.
    """
    columns = _columns(table)
    row: list[Any] = [table.name]
    for name, is_float in columns[: _counting(table, [values.get(name) for name, _ in columns])]:
        value = values.get(name)
        row.append(_as_float(value) if is_float and value is not None else value)
    return _hash(json.dumps(row, separators=(",", ":")))


def checksum_of_json(table: Table, values: Sequence[str]) -> int:
    """The same of values that are compact JSON already, in the order of the columns."""
    counting = values[: _counting(table, [None if text == "null" else text for text in values])]
    return _hash(f'["{table.name}",{",".join(counting)}]')


def _counting(table: Table, values: Sequence[Any]) -> int:
    """How many of the values count: all but nulls at the end of columns that were added later."""
    count, first = len(values), _first_added(table)
    while count > first and values[count - 1] is None:
        count -= 1
    return count


def _as_float(value: Any) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def checksum_of_insert(context: DefaultExecutionContext) -> int:
    """The default of the checksum's column: computed from the row that is being inserted."""
    table = context.compiled.compile_state.dml_table  # type: ignore[union-attr]
    values: Mapping[str, Any] = context.get_current_parameters()  # type: ignore[no-untyped-call]
    return row_checksum(table, values)


def damaged_row(name: str, problem: str = "its checksum is not right") -> DatabaseError:
    """The error for a row that is not what was written."""
    return DatabaseError(
        f"{name}: the record is damaged: {problem}",
        hint="tune db check lists the damage; tune db salvage saves what is intact",
    )


def checksum_of(row: Any) -> int:
    """The checksum that a row of `tunefarm.db.schema` should have."""
    table = row.__table__
    return row_checksum(table, {name: getattr(row, name) for name, _ in _columns(table)})


@cache
def _columns(table: Table) -> tuple[tuple[str, bool], ...]:
    """Names of the columns that count, and which hold floating-point numbers."""
    return tuple(
        (column.name, isinstance(column.type, Float))
        for column in table.columns
        if column.name not in LEFT_OUT
    )


@cache
def _first_added(table: Table) -> int:
    """How many columns count that stand before the checksum, where the table began to have one."""
    names = [column.name for column in table.columns]
    return len([name for name in names[: names.index(COLUMN)] if name not in LEFT_OUT])


def added_columns(table: Table) -> tuple[str, ...]:
    """The columns that rows from before a later schema do not have: null there."""
    names = [column.name for column in table.columns]
    return tuple(names[names.index(COLUMN) + 1 :])
