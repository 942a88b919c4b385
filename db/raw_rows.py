"""Rows as a database stores them: read without trusting them, and decoded value by value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Float, Integer, LargeBinary, Table, Text, cast, select
from sqlalchemy.orm import Session

from configs.errors import DatabaseError
from db import schema
from db.checksum import row_checksum
from db.packing import unpack

_AT_ONCE = 1000


def raw_rows(session: Session, table: Table) -> Iterator[dict[str, Any]]:
    """The table's rows by column, text as bytes where it might be no text at all."""
    is_file = session.get_bind().dialect.name == "sqlite"
    columns = [_stored(column, is_file).label(column.name) for column in table.columns]
    rows = select(*columns).execution_options(yield_per=_AT_ONCE)
    for row in session.execute(rows).mappings():
        yield dict(row)


def examined(session: Session, table: Table) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every row: its primary key, what is wrong with it ("" if nothing), its decoded values."""
    for row in raw_rows(session, table):
        name = " ".join(str(row[column.name]) for column in table.primary_key.columns)
        try:
            values = decode(table, row)
        except ValueError as error:
            yield name, str(error), {}
            continue
        yield name, "" if is_intact(table, values) else "its checksum is not right", values


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
        if value is None or isinstance(type, Integer):
            return value
        if isinstance(type, Float):
            return float(value)
        if isinstance(type, schema.PackedJson):
            return json.loads(unpack(value))
        text = value.decode() if isinstance(value, bytes) else str(value)
        return json.loads(text) if isinstance(type, schema.Json) else text
    except (ValueError, TypeError, DatabaseError) as error:
        is_json = isinstance(type, schema.Json | schema.PackedJson)
        raise ValueError(f"{name} is not {'JSON' if is_json else 'valid'}") from error


def is_intact(table: Table, values: Mapping[str, Any]) -> bool:
    """Whether decoded values are what was written."""
    checksum: int | None = values["checksum"]
    return checksum == row_checksum(table, values)
