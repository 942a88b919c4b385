"""New SQLite databases with the schema that the migrations make, without the migrations.

Where neither is tested: `tests/db/test_migrations.py` and its neighbours migrate what they open.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, inspect

from tunefarm.db.prepare import MIGRATIONS, migrate  # what the context replaces there


@cache
def statements() -> tuple[str, ...]:
    """What makes a new database's tables, as SQLite tells it of one that was migrated."""
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        migrate(connection)
        made = connection.connection.driver_connection
        assert made is not None
        dumped = tuple(made.iterdump())
    engine.dispose()
    return tuple(text for text in dumped if text not in ("BEGIN TRANSACTION;", "COMMIT;"))


def migrate_quickly(connection: Connection, migrations: Path) -> None:
    """Make the tables of an empty SQLite database; migrate any other."""
    is_file = connection.dialect.name == "sqlite"
    if not is_file or migrations != MIGRATIONS or inspect(connection).get_table_names():
        migrate(connection, migrations)
        return
    for text in statements():
        connection.exec_driver_sql(text)


@contextmanager
def ready_schema() -> Iterator[None]:
    """New databases are not migrated within the context."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tunefarm.db.prepare.migrate", migrate_quickly)
        yield
