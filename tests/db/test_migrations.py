"""Migrations make the schema of the models, as a whole or not at all."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from tests.db.examples import KEY, populate, trial
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import prepare, queries, schema, sqlite_file
from tunefarm.db.store import Store

NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("anchor_drift", sa.Float(), nullable=True))
    op.execute("UPDATE trials SET anchor_drift = 0.5")
    {more}
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "tuning.db"
    with Store.open(path) as store:
        populate(store)
        store.add([trial(1), trial(2)])
    return path


def next_migrations(tmp_path: Path, more: str = "") -> Path:
    """A copy of the migrations with one more."""
    folder = tmp_path / "migrations"
    shutil.copytree(prepare.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = NEXT.format(head=schema.REVISION, more=more)
    (folder / "versions" / "r9999_next.py").write_text(text)
    return folder


def column_names(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[1] for row in connection.execute("PRAGMA table_info(trials)")]


def test_migrations_make_exactly_the_models() -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        prepare.migrate(connection)
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.Base.metadata) == []


def test_migrations_make_the_same_sql_as_the_models() -> None:
    """Also what the comparison above leaves out: partial indexes, names of constraints."""
    migrated, created = create_engine("sqlite://"), create_engine("sqlite://")
    with migrated.begin() as connection:
        prepare.migrate(connection)
    schema.Base.metadata.create_all(created)

    def statements(engine: object) -> dict[str, set[str]]:
        with engine.connect() as connection:  # type: ignore[attr-defined]
            rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master")
            return {
                name: {line.strip(" ,\t") for line in sql.replace("\n", ",").split(",")}
                for name, sql in rows
                if sql and name != "alembic_version"
            }

    assert statements(migrated) == statements(created)


def test_revision_of_the_models_is_the_newest() -> None:
    assert prepare.known_revisions()[0] == schema.REVISION


def test_older_schema_is_backed_up_and_upgraded(database: Path, tmp_path: Path) -> None:
    before = database.read_bytes()
    with Store.open(database, migrations=next_migrations(tmp_path)) as store:
        assert queries.count_trials(store, KEY) == {"ok": 2}
    assert "anchor_drift" in column_names(database)
    backup = tmp_path / f"tuning.db.{schema.REVISION}.backup"
    with Store.open(backup) as store:
        assert queries.count_trials(store, KEY) == {"ok": 2}
    assert len(backup.read_bytes()) == len(before)


def test_backup_never_replaces_a_file(database: Path, tmp_path: Path) -> None:
    backup = tmp_path / f"tuning.db.{schema.REVISION}.backup"
    backup.write_text("precious")
    Store.open(database, migrations=next_migrations(tmp_path)).close()
    assert backup.read_text() == "precious"
    second = tmp_path / f"tuning.db.{schema.REVISION}.1.backup"
    assert "anchor_drift" not in column_names(second)


def test_failed_migration_changes_nothing(database: Path, tmp_path: Path) -> None:
    migrations = next_migrations(tmp_path, "op.execute('INSERT INTO nowhere VALUES (1)')")
    before = database.read_bytes()
    with pytest.raises(DatabaseError, match="no such table: nowhere"):
        Store.open(database, migrations=migrations)
    assert database.read_bytes() == before


def test_failed_creation_leaves_no_tables(tmp_path: Path) -> None:
    migrations = next_migrations(tmp_path, "op.execute('INSERT INTO nowhere VALUES (1)')")
    path = tmp_path / "new.db"
    with pytest.raises(DatabaseError, match="no such table: nowhere"):
        Store.open(path, migrations=migrations)
    with Store.open(path) as store:
        assert queries.count_trials(store) == {}


def test_newer_schema_is_refused(database: Path, tmp_path: Path) -> None:
    Store.open(database, migrations=next_migrations(tmp_path)).close()
    before = database.read_bytes()
    for read_only in (False, True):
        with pytest.raises(DatabaseError, match=r"schema 9999, newer .* \(upgrade tunefarm\)"):
            Store.open(database, read_only=read_only)
    assert database.read_bytes() == before


def test_older_schema_is_not_upgraded_by_a_reader(database: Path, tmp_path: Path) -> None:
    with Store.open(database, read_only=True, migrations=next_migrations(tmp_path)) as store:
        assert queries.count_trials(store, KEY) == {"ok": 2}
    assert "anchor_drift" not in column_names(database)


def test_older_schema_that_is_too_large_to_be_copied_names_the_upgrade(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_COPIED_BYTES", 1000)
    with pytest.raises(DatabaseError, match=r"older than .*9999 \(upgrade it with"):
        Store.open(database, read_only=True, migrations=next_migrations(tmp_path))
    assert "anchor_drift" not in column_names(database)


def test_tables_without_a_version_are_refused(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DROP TABLE alembic_version")
    with pytest.raises(DatabaseError, match="has tables but no schema version"):
        Store.open(database)
