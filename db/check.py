"""Is a database sound, which schema has it, and who holds it? Everything is read, nothing is
changed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Table, text
from sqlalchemy.orm import Session

from tunefarm.configs.errors import DatabaseError
from tunefarm.db import schema
from tunefarm.db.backend import backend_of
from tunefarm.db.prepare import schema_revision
from tunefarm.db.raw_rows import examined
from tunefarm.db.records import contradiction, hash_json
from tunefarm.db.sqlite_connection import location_of
from tunefarm.db.sqlite_file import dangling
from tunefarm.db.store import Store

_MOST_PROBLEMS = 20


def check(store: Store) -> list[str]:
    """What is wrong with the database, one line each; [] if nothing.

    Looks at a file's structure and indices, at references between tables (which a server keeps
    whole itself), and at every value of every row: against the row's checksum, and whether it
    makes sense.
    """
    problems = _file_problems(store)
    for table in schema.Base.metadata.sorted_tables:
        problems += _table_problems(store, table)
    return problems[:_MOST_PROBLEMS]


def _file_problems(store: Store) -> list[str]:
    with store.reading() as session:
        if session.get_bind().dialect.name != "sqlite":
            return []
        lines = session.scalars(text(f"PRAGMA integrity_check({_MOST_PROBLEMS})"))
        problems = [f"file: {line}" for line in lines if line != "ok"]
        return problems + dangling(session.execute(text("PRAGMA foreign_key_check")))


def _table_problems(store: Store, table: Table) -> list[str]:
    try:
        with store.reading() as session:
            return list(_row_problems(session, table))
    except DatabaseError as error:  # a page that cannot be read ends the walk
        return [f"{table.name}: {error.message}"]


def _row_problems(session: Session, table: Table) -> Iterator[str]:
    for name, problem, values in examined(session, table):
        if problem:
            yield f"{table.name} {name}: {problem}"
        elif table is schema.Trial.__table__:
            yield from (f"trials {name}: {problem}" for problem in _trial_problems(values))


def _trial_problems(trial: Mapping[str, Any]) -> Iterator[str]:
    if trial["schedule_hash"] != hash_json(trial["schedule"]):
        yield "the hash is not the schedule's"
    problem = contradiction(trial)
    if problem:
        yield problem


_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")


def schema_of(path_or_url: str | Path) -> str | None:
    """The revision of a database's schema, whichever it is; None of one without tables of ours.

    Nothing is changed. Raises DatabaseError for what is not there, damaged, or another
    application's, and for a server that does not let us in.
    """
    with Store(backend_of(path_or_url), read_only=True) as store, store.translating():
        store.backend.check(store.engine, create=False, read_only=True)
        with store.engine.connect() as connection:
            return schema_revision(connection)


def is_locked(path: Path, seconds: float) -> bool:
    """Whether another process has kept a file from being written for so many seconds.

    Only for processes that have the file not open otherwise: closing it drops their locks.
    """
    location = location_of(path, "rw")
    try:
        with closing(
            sqlite3.connect(location, uri=True, timeout=seconds, isolation_level=None)
        ) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        return error.sqlite_errorname.startswith(_BUSY)
    return False
