"""The schema of a server's database: made once, upgraded as a whole, and only if it is ours."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.engine import make_url

from tests.db.examples import KEY, populate, trial
from tests.db.postgresql import Server
from tests.db.test_migrations import next_migrations
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries, schema
from tunefarm.db.check import check
from tunefarm.db.checksum import added_columns
from tunefarm.db.store import Store

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tunefarm.db.store", "tests.db.examples"])


class Database:
    """A database with two trials, and a look into it past the store."""

    def __init__(self, server: Server, url: str) -> None:
        self.url = url
        self._server = server
        self._name = make_url(url).database or ""
        with Store.open(url) as store:
            populate(store)
            store.add([trial(1), trial(2)])

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        return self._server.execute(statement, self._name)

    def content(self) -> set[tuple[object, ...]]:
        """Every table's name, and every column of one."""
        return set(
            self.execute(
                "SELECT table_schema, table_name, column_name FROM information_schema.columns"
                " WHERE table_schema NOT IN ('pg_catalog', 'information_schema')"
            )
        )

    def is_upgraded(self) -> bool:
        return ("public", "trials", "anchor_drift") in self.content()


@pytest.fixture
def database(postgresql: Server, postgresql_url: str) -> Iterator[Database]:
    yield Database(postgresql, postgresql_url)


def test_migrations_make_exactly_the_models(database: Database) -> None:
    with Store.open(database.url) as store, store.engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.Base.metadata) == []


def test_older_schema_is_backed_up_and_upgraded(database: Database, tmp_path: Path) -> None:
    tables = {name for _, name, _ in database.content()}
    with Store.open(database.url, migrations=next_migrations(tmp_path)) as store:
        assert queries.count_trials(store, KEY) == {"ok": 2}
    assert database.is_upgraded()
    backup = f"tunefarm_backup_{schema.REVISION}"
    found = database.content()
    assert {table for place, table, _ in found if place == backup} == tables
    assert (backup, "trials", "anchor_drift") not in found
    assert database.execute(f"SELECT id, latency FROM {backup}.trials") == [(1, 1.0), (2, 1.0)]


def test_records_from_before_pairs_are_kept_as_they_are(database: Database) -> None:
    """A database of schema 0004: what later schemas added is not there."""
    for column in added_columns(schema.Base.metadata.tables["trials"]):
        database.execute(f"ALTER TABLE trials DROP COLUMN {column}")
    for table in ("jobs", "bests", "builds"):
        database.execute(f"ALTER TABLE {table} DROP COLUMN addition_id")
    for table in ("plans", "latencies", "requests", "queue_entries", "additions"):
        database.execute(f"DROP TABLE {table}")
    database.execute("UPDATE alembic_version SET version_num = '0004'")
    with Store.open(database.url) as store:
        assert store.upgraded_from == "0004"
        assert store.upgrade_note.endswith("as it was before in schema tunefarm_backup_0004")
        assert check(store) == []
        assert queries.trials(store, KEY) == [replace(trial(n), number=n) for n in (1, 2)]


def test_backup_never_replaces_another(database: Database, tmp_path: Path) -> None:
    backup = f"tunefarm_backup_{schema.REVISION}"
    database.execute(f"CREATE SCHEMA {backup}")
    Store.open(database.url, migrations=next_migrations(tmp_path)).close()
    assert database.execute(f"SELECT count(*) FROM {backup}_1.trials") == [(2,)]


def test_database_that_cannot_be_backed_up_is_not_upgraded(
    database: Database, tmp_path: Path
) -> None:
    name = make_url(database.url).database
    database.execute(f"CREATE ROLE owner_{name} LOGIN PASSWORD 'x'")
    for table in {table for _, table, _ in database.content()}:
        database.execute(f"ALTER TABLE {table} OWNER TO owner_{name}")
    url = make_url(database.url).set(username=f"owner_{name}", password="x")
    with pytest.raises(DatabaseError, match=r"cannot back up .*: permission denied for database"):
        Store.open(url.render_as_string(hide_password=False), migrations=next_migrations(tmp_path))
    assert not database.is_upgraded()


def test_failed_migration_changes_nothing(database: Database, tmp_path: Path) -> None:
    before = database.content()
    migrations = next_migrations(tmp_path, "op.execute('INSERT INTO nowhere VALUES (1)')")
    with pytest.raises(DatabaseError, match='relation "nowhere" does not exist'):
        Store.open(database.url, migrations=migrations)
    assert database.content() == before


def test_failed_creation_leaves_no_tables(postgresql_url: str, tmp_path: Path) -> None:
    migrations = next_migrations(tmp_path, "op.execute('INSERT INTO nowhere VALUES (1)')")
    with pytest.raises(DatabaseError, match='relation "nowhere" does not exist'):
        Store.open(postgresql_url, migrations=migrations)
    with Store.open(postgresql_url) as store:
        assert queries.count_trials(store) == {}


def open_with(url: str, migrations: Path) -> None:
    Store.open(url, migrations=migrations).close()


def test_killed_migration_leaves_the_old_schema(database: Database, tmp_path: Path) -> None:
    before = database.content()
    migrations = next_migrations(tmp_path, "import os; os.kill(os.getpid(), 9)")
    process = _CONTEXT.Process(target=open_with, args=(database.url, migrations), daemon=True)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with Store.open(database.url) as store:  # waits for the lock, that is until all is undone
        assert queries.count_trials(store, KEY) == {"ok": 2}
        assert database.content() == before
    (tmp_path / "again").mkdir()
    Store.open(database.url, migrations=next_migrations(tmp_path / "again")).close()
    assert database.is_upgraded()


def test_upgrade_by_several_processes_happens_once(database: Database, tmp_path: Path) -> None:
    migrations = next_migrations(tmp_path)
    processes = [
        _CONTEXT.Process(target=open_with, args=(database.url, migrations), daemon=True)
        for _ in range(6)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 6
    assert database.is_upgraded()
    backups = {place for place, _, _ in database.content()} - {"public"}
    assert backups == {f"tunefarm_backup_{schema.REVISION}"}


def test_newer_schema_is_refused(database: Database, tmp_path: Path) -> None:
    Store.open(database.url, migrations=next_migrations(tmp_path)).close()
    before = database.content()
    for read_only in (False, True):
        with pytest.raises(DatabaseError, match=r"schema 9999, newer .* \(upgrade tunefarm\)"):
            Store.open(database.url, read_only=read_only)
    assert database.content() == before


def test_older_schema_is_not_upgraded_by_a_reader(database: Database, tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match=r"older than .*9999 \(upgrade it with"):
        Store.open(database.url, read_only=True, migrations=next_migrations(tmp_path))
    assert not database.is_upgraded()


@pytest.mark.parametrize("read_only", [False, True])
def test_database_of_another_application_is_refused(
    postgresql: Server, postgresql_url: str, read_only: bool
) -> None:
    """Also one that Alembic looks after and whose revisions have the same names."""
    name = make_url(postgresql_url).database or ""
    postgresql.execute("CREATE TABLE bookmarks (url TEXT)", name)
    for revision in (None, "0001", schema.REVISION):
        if revision is not None:
            postgresql.execute("DROP TABLE IF EXISTS alembic_version", name)
            postgresql.execute(
                f"CREATE TABLE alembic_version AS SELECT '{revision}' AS version_num", name
            )
        with pytest.raises(DatabaseError, match="is a database of another application"):
            Store.open(postgresql_url, read_only=read_only)
    tables = postgresql.execute("SELECT tablename FROM pg_tables WHERE schemaname='public'", name)
    assert set(tables) == {("bookmarks",), ("alembic_version",)}


def test_tables_without_a_version_are_refused(database: Database) -> None:
    database.execute("TRUNCATE alembic_version")
    with pytest.raises(DatabaseError, match="has tables but no schema version"):
        Store.open(database.url)
