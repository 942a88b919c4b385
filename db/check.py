"""Is a database sound? Everything is read, nothing is changed."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    LargeBinary,
    cast,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.orm import Session

from db import schema
from db.records import OK, hash_json
from db.store import Store

_MOST_PROBLEMS = 20


def check(store: Store) -> list[str]:
    """What is wrong with the database, one line each; [] if nothing.

    Looks at a file's structure, at references between tables (which a server keeps whole itself),
    and at every JSON value, latency and schedule hash.
    """
    problems = _file_problems(store)
    problems += _json_problems(store)
    if not problems:
        problems += _trial_problems(store)
    return problems[:_MOST_PROBLEMS]


def _file_problems(store: Store) -> list[str]:
    problems: list[str] = []
    with store.reading() as session:
        if not _is_sqlite(session):
            return problems
        for (line,) in session.execute(text(f"PRAGMA integrity_check({_MOST_PROBLEMS})")):
            if line != "ok":
                problems.append(f"file: {line}")
        for table, row, parent, _ in session.execute(text("PRAGMA foreign_key_check")):
            problems.append(f"{table} {row}: refers to a row of {parent} that is not there")
    return problems


def _json_problems(store: Store) -> list[str]:
    problems = []
    for table in schema.Base.metadata.sorted_tables:
        columns = [column for column in table.columns if isinstance(column.type, schema.Json)]
        if not columns:
            continue
        with store.reading() as session:
            values = (_bytes(session, column) for column in columns)
            rows = select(*table.primary_key.columns, *values)
            for row in session.execute(rows.execution_options(yield_per=1000)):
                for column, value in zip(columns, row[-len(columns) :], strict=True):
                    if not _is_json(value):
                        problems.append(f"{table.name} {row[0]}: {column.name} is not JSON")
    return problems


def _is_sqlite(session: Session) -> bool:
    return session.get_bind().dialect.name == "sqlite"


def _bytes(session: Session, column: Column[Any]) -> ColumnElement[Any]:
    """What is stored, whatever it is."""
    if _is_sqlite(session):
        return cast(column, LargeBinary)
    return func.convert_to(column, literal_column("'UTF8'"))


def _is_json(value: object) -> bool:
    if not isinstance(value, bytes):
        return False
    try:
        json.loads(value.decode("utf-8"))
    except ValueError:  # UnicodeDecodeError is one too
        return False
    return True


def _trial_problems(store: Store) -> list[str]:
    problems = []
    trials = select(schema.Trial).execution_options(yield_per=1000)
    with store.reading() as session:
        for trial in session.scalars(trials):
            if trial.schedule_hash != hash_json(trial.schedule):
                problems.append(f"trials {trial.id}: the hash is not the schedule's")
            if trial.status == OK and not (trial.latency and trial.latency > 0):
                problems.append(f"trials {trial.id}: ok without a latency")
    return problems
