"""Rows as a database stores them: read without trusting them, and decoded value by value."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Float,
    Integer,
    LargeBinary,
    Table,
    Text,
    cast,
    inspect,
    null,
    select,
)
from sqlalchemy.orm import Session

from tunefarm.configs.errors import DatabaseError
from tunefarm.db import schema
from tunefarm.db.checksum import COLUMN, LEFT_OUT, checksum_of_json, damaged_row, row_checksum
from tunefarm.db.schema import unpack

REFERRED_TO = "which it refers to, is damaged"
_AT_ONCE = 1000


def raw_rows(
    session: Session, table: Table, without: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """The table's rows by column, text as bytes where it might be no text at all.

    The columns `without`, which the table of a former schema does not have, are null.
    """
    is_file = session.get_bind().dialect.name == "sqlite"
    columns = [
        (null() if column.name in without else _stored(column, is_file)).label(column.name)
        for column in table.columns
    ]
    rows = select(*columns).execution_options(yield_per=_AT_ONCE)
    for row in session.execute(rows).mappings():
        yield dict(row)


def missing_columns(session: Session, table: Table) -> set[str]:
    """The columns that the table of a former schema does not have yet."""
    there = {column["name"] for column in inspect(session.connection()).get_columns(table.name)}
    return {column.name for column in table.columns} - there


def intact_rows(
    session: Session, table: Table, without: Collection[str] = ()
) -> Iterator[dict[str, Any]]:
    """The table's rows as in `raw_rows`. Raises DatabaseError at the first that is damaged."""
    for row in raw_rows(session, table, without):
        problem = damage(table, row)
        if problem:
            raise damaged_row(f"{table.name} {row_name(table, row)}", problem)
        yield row


def damaged_rows(session: Session, skipped: Collection[str] = ()) -> dict[str, dict[int, str]]:
    """What is wrong with rows that are damaged, or refer to one that is, by table and number.

    Rows of the tables `skipped`, and those that have no numbers, are not looked at.
    """
    found: dict[str, dict[int, str]] = {}
    intact: dict[str, set[int]] = {}
    for table in schema.Base.metadata.sorted_tables:  # what others refer to comes first
        if table.name in skipped or "id" not in table.columns:
            continue
        parents = [(key.parent.name, key.column.table.name) for key in table.foreign_keys]
        intact[table.name] = set()
        for row in raw_rows(session, table):
            problem = damage(table, row) or next(
                (
                    f"{parent} {row[name]}, {REFERRED_TO}"
                    for name, parent in sorted(parents)
                    if parent in intact
                    and row[name] is not None
                    and row[name] not in intact[parent]
                ),
                "",
            )
            if problem:
                found.setdefault(table.name, {})[row["id"]] = problem
            else:
                intact[table.name].add(row["id"])
    return found


def damage(table: Table, row: Mapping[str, Any]) -> str:
    """What is wrong with a stored row; "" for one that is what was written.

    JSON values are not parsed where their text is as this version writes it.
    """
    try:
        texts = _texts(table, row)
        counting = [text for name, text in texts.items() if name not in LEFT_OUT]
        if row[COLUMN] == checksum_of_json(table, counting):
            return ""
        return "" if is_intact(table, _parsed(texts)) else "its checksum is not right"
    except ValueError as error:
        return str(error)


def examined(session: Session, table: Table) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every row: its primary key, what is wrong with it ("" if nothing), its decoded values."""
    for row in raw_rows(session, table):
        problem = damage(table, row)
        yield row_name(table, row), problem, {} if problem else decode(table, row)


def row_name(table: Table, row: Mapping[str, Any]) -> str:
    """The row's primary key, as text."""
    return " ".join(str(row[column.name]) for column in table.primary_key.columns)


def decode(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """The stored values as Python values. Raises ValueError, naming the column, where it cannot."""
    return _parsed(_texts(table, row))


def _parsed(texts: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for name, text in texts.items():
        try:
            values[name] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name} is not JSON") from error
    return values


def _texts(table: Table, row: Mapping[str, Any]) -> dict[str, str]:
    """The stored values as JSON. Raises ValueError, naming the column, where one cannot be."""
    texts = {}
    for name, text_of in _text_functions(table):
        value = row[name]
        try:
            texts[name] = "null" if value is None else text_of(value)
        except (ValueError, TypeError, AttributeError, DatabaseError) as error:
            kind = "JSON" if text_of in (unpack, _text) else "valid"
            raise ValueError(f"{name} is not {kind}") from error
    return texts


@cache
def _text_functions(table: Table) -> tuple[tuple[str, Callable[[Any], str]], ...]:
    """The columns, and what makes JSON of a stored value."""
    return tuple((column.name, _text_function(column.type)) for column in table.columns)


def _text_function(type: object) -> Callable[[Any], str]:
    if isinstance(type, schema.PACKED):
        return unpack
    if isinstance(type, schema.Json):
        return _text
    if isinstance(type, Float):
        return _float_text
    return _integer_text if isinstance(type, Integer) else _string_text


def _text(value: bytes | str) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError("a text is stored as something else")
    return value


def _string_text(value: bytes | str) -> str:
    return json.dumps(_text(value))


def _float_text(value: float) -> str:
    """Of a whole number too: a file's record may hold it as an integer."""
    if not isinstance(value, int | float):
        raise TypeError("a number is stored as something else")
    return json.dumps(float(value))


def _integer_text(value: int) -> str:
    if not isinstance(value, int):
        raise TypeError("a number is stored as something else")
    return repr(value)


def _stored(column: ColumnElement[Any], is_file: bool) -> ColumnElement[Any]:
    """A column without the decoding that its type does."""
    if isinstance(column.type, Integer | Float):
        return column
    packed = is_file or isinstance(column.type, schema.PACKED)
    return cast(column, LargeBinary if packed else Text)


def is_intact(table: Table, values: Mapping[str, Any]) -> bool:
    """Whether decoded values are what was written."""
    checksum: int | None = values["checksum"]
    try:
        return checksum == row_checksum(table, values)
    except (TypeError, ValueError, OverflowError, RecursionError):  # values of other types
        return False
