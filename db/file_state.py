"""What a database file holds, told by its bytes: whether two moments' records are the same.

Only for processes that have the file not open otherwise: closing it drops this process's locks.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

from tunefarm.configs.regular_file import read_regular
from tunefarm.db.sqlite_connection import open_file

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
