"""Connections to SQLite files, also on media that can only be read, and what a file holds, told by
its bytes: whether the records of two moments are the same.

Imports no SQLAlchemy: a build that is repeated looks at its database by this alone. It is only for
processes that have the file not open otherwise: closing it drops this process's locks.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tunefarm.configs.files import read_regular

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


_MOST_BYTES = 64 << 20  # reading more takes longer than looking a model's kernels up
_TABLES = (
    "tasks",
    "trials",
    "bests",
    "plans",
)  # whatever else changes, these decide what is applied


def file_digest(path: str | Path) -> str | None:
    """The SHA-256 of a database file and its write-ahead log.

    None for a file that is not there or large, for the URL of a server, and where a transaction
    was cut short, or is under way.
    """
    path = Path(path)
    log, journal = (Path(f"{path}{suffix}") for suffix in ("-wal", "-journal"))
    try:
        if path.stat().st_size > _MOST_BYTES or journal.exists():
            return None
        digest = hashlib.sha256()
        for part in (path, log):
            content = read_regular(part) if part == path or part.exists() else b""
            digest.update(len(content).to_bytes(8, "little") + content)
    except OSError:
        return None
    return digest.hexdigest()


def records_stamp(path: str | Path) -> tuple[object, ...] | None:
    """What changes whenever records do, but not when a build is listed; None if unreadable.

    Of every table the number of rows, the last id and a sum of the rows' checksums.
    """
    queries = (f"SELECT count(*), max(rowid), sum(checksum & 4294967295) FROM {t}" for t in _TABLES)
    try:
        with closing(open_file(Path(path), "ro")) as connection:
            connection.execute("BEGIN")
            return tuple(connection.execute(query).fetchone() for query in queries)
    except (sqlite3.Error, OSError):
        return None
