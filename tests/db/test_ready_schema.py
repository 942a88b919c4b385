"""Databases that tests make without the migrations are those of the migrations."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.db.ready_schema import ready_schema
from tunefarm.db.store import Store


def dumped(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        marks = [
            connection.execute(f"PRAGMA {name}").fetchone()
            for name in ("application_id", "user_version", "encoding", "auto_vacuum")
        ]
        return [*map(str, marks), *connection.iterdump()]


def test_a_ready_schema_is_what_the_migrations_make(tmp_path: Path) -> None:
    migrated, ready = tmp_path / "migrated.db", tmp_path / "ready.db"
    Store.open(migrated).close()
    with ready_schema():
        Store.open(ready).close()
    assert dumped(ready) == dumped(migrated)
