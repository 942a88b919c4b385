"""Rows as a database stores them: read without trusting them, and decoded value by value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Float, Integer, LargeBinary, Table, Text, cast, select
from sqlalchemy.orm import Session

from configs.errors import DatabaseError
from db import schema
from db.checksum import LEFT_OUT, checksum_of_json, damaged_row, row_checksum
from db.packing import unpack

_AT_ONCE = 1000


def raw_rows(session: Session, table: Table) -> Iterator[dict[str, Any]]:
    """The table's rows by column, text as bytes where it might be no text at all."""
    is_file = session.get_bind().dialect.name == "sqlite"
    columns = [_stored(column, is_file).label(column.name) for column in table.columns]
    rows = select(*columns).execution_options(yield_per=_AT_ONCE)
    for row in session.execute(rows).mappings():
        yield dict(row)


def intact_rows(session: Session, table: Table) -> Iterator[dict[str, Any]]:
    """The table's rows as in `raw_rows`. Raises DatabaseError at the first that is damaged."""
    for row in raw_rows(session, table):
        problem = damage(table, row)
        if problem:
            raise damaged_row(f"{table.name} {row_name(table, row)}", problem)
        yield row


def damage(table: Table, row: Mapping[str, Any]) -> str:
    """What is wrong with a stored row; "" for one that is what was written.

    JSON values are not parsed where their text is as this version writes it.
    """
    try:
        parts = [part(row[name]) for name, part in _json_parts(table)]
        if row["checksum"] == checksum_of_json(table, parts):
            return ""
    except (ValueError, TypeError, AttributeError, DatabaseError):
        pass  # said below, with the column's name
    try:
        values = decode(table, row)
    except ValueError as error:
        return str(error)
    return "" if is_intact(table, values) else "its checksum is not right"


def examined(session: Session, table: Table) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every row: its primary key, what is wrong with it ("" if nothing), its decoded values."""
    for row in raw_rows(session, table):
        name = row_name(table, row)
        try:
            values = decode(table, row)
        except ValueError as error:
            yield name, str(error), {}
            continue
        yield name, "" if is_intact(table, values) else "its checksum is not right", values


def row_name(table: Table, row: Mapping[str, Any]) -> str:
    """The row's primary key, as text."""
    return " ".join(str(row[column.name]) for column in table.primary_key.columns)


@cache
def _json_parts(table: Table) -> tuple[tuple[str, Callable[[Any], str]], ...]:
    """The columns that count in a checksum, and how a stored value reads as JSON."""
    return tuple(
        (column.name, _json_part(column.type))
        for column in table.columns
        if column.name not in LEFT_OUT
    )


def _json_part(type: object) -> Callable[[Any], str]:
    def part(value: Any) -> str:
        return "null" if value is None else of_value(value)

    if isinstance(type, schema.PackedJson):
        of_value: Callable[[Any], str] = unpack
    elif isinstance(type, schema.Json):
        of_value = _text
    elif isinstance(type, Float):
        of_value = _float_text
    elif isinstance(type, Integer):
        of_value = _integer_text
    else:
        of_value = _string_text
    return part


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _string_text(value: bytes | str) -> str:
    return json.dumps(_text(value))


def _float_text(value: float) -> str:
    if not isinstance(value, float):
        raise TypeError("a number is stored as something else")
    return repr(value)


def _integer_text(value: int) -> str:
    if not isinstance(value, int):
        raise TypeError("a number is stored as something else")
    return repr(value)


def _stored(column: ColumnElement[Any], is_file: bool) -> ColumnElement[Any]:
    """A column without the decoding that its type does."""
    if isinstance(column.type, Integer | Float):
        return column
    if is_file:
        return cast(column, LargeBinary)
    return cast(column, LargeBinary if isinstance(column.type, schema.PackedJson) else Text)


def decode(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """The stored values as Python values. Raises ValueError, naming the column, where it cannot."""
    return {column.name: _decoded(column.name, column.type, row) for column in table.columns}


def _decoded(name: str, type: object, row: Mapping[str, Any]) -> Any:
    value = row[name]
    try:
        if value is None:
            return None
        if isinstance(type, Integer | Float):
            if isinstance(value, int | (float if isinstance(type, Float) else int)):
                return value
            raise ValueError("stored as something else")
        if isinstance(type, schema.PackedJson):
            return json.loads(unpack(value))
        text = value.decode() if isinstance(value, bytes) else str(value)
        return json.loads(text) if isinstance(type, schema.Json) else text
    except (ValueError, TypeError, RecursionError, DatabaseError) as error:
        is_json = isinstance(type, schema.Json | schema.PackedJson)
        raise ValueError(f"{name} is not {'JSON' if is_json else 'valid'}") from error


def is_intact(table: Table, values: Mapping[str, Any]) -> bool:
    """Whether decoded values are what was written."""
    checksum: int | None = values["checksum"]
    try:
        return checksum == row_checksum(table, values)
    except (TypeError, ValueError, OverflowError, RecursionError):  # values of other types
        return False
