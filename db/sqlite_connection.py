"""Connections to SQLite files, also on media that can only be read.

Imports no SQLAlchemy: a build that is repeated looks at its database by this alone.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

BUSY_SECONDS = 30.0
_READ_VERSION, _WAL_VERSION = 19, b"\2"  # a byte of the header: what a reader must understand
_WITHOUT_LOCKS = "unix-none"  # one of SQLite's own ways to the system's files


def open_file(path: Path, mode: str, **options: Any) -> sqlite3.Connection:
    """A connection to a file, by a mode of SQLite's URIs.

    One that is only read and can have no index of its write-ahead log next to it is read without
    locks; of its log, if it has one, the index is in this process's memory.
    """
    options |= {"uri": True, "timeout": BUSY_SECONDS}
    if mode == "rwc" or not lacks_index(path):
        found: sqlite3.Connection = sqlite3.connect(location_of(path, mode), **options)
        return found
    has_log = os.path.exists(f"{os.path.realpath(path)}-wal")
    how = f"vfs={_WITHOUT_LOCKS}" if has_log else "immutable=1"
    connection: sqlite3.Connection = sqlite3.connect(f"{location_of(path, 'ro')}&{how}", **options)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    return connection


def lacks_index(path: Path) -> bool:
    """Whether a file is in WAL mode, and has no index of its log nor a folder to make one in.

    So it is on read-only media, and copies in folders of others. While a process has such a file
    open there is an index, which readers share.
    """
    file = Path(os.path.realpath(path))
    if may_write(file.parent) or os.path.exists(f"{file}-shm"):
        return False
    try:
        with file.open("rb") as opened:
            header = opened.read(_READ_VERSION + 1)
    except OSError:
        return False  # opening says so
    return header[_READ_VERSION:] == _WAL_VERSION


def may_write(path: Path) -> bool:
    """Whether this process may write to a file or a folder."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def location_of(path: Path, mode: str) -> str:
    """The file as a URI of SQLite's; links that lead in a circle are left to SQLite."""
    return f"{Path(os.path.realpath(path)).as_uri()}?mode={mode}"
