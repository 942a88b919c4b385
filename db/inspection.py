"""What can be seen of a database without opening it for work: its schema, and who holds it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tunefarm.db.backend import backend_of
from tunefarm.db.migrate import schema_revision
from tunefarm.db.sqlite_connection import location_of
from tunefarm.db.store import Store

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
