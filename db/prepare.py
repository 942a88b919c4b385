"""What opening does to a database: it is checked, then brought to the schema of
`tunefarm.db.schema`.

What is opened for reading stays as it is: of an earlier schema a copy in memory is upgraded.
Alembic is imported where a schema changes: most databases have this version's already.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from tunefarm.configs.errors import DatabaseError
from tunefarm.db import schema, sqlite_file
from tunefarm.db.raw_rows import damage, missing_columns, raw_rows, row_name

if TYPE_CHECKING:
    from alembic.config import Config

    from tunefarm.db.store import Store


MIGRATIONS = Path(__file__).resolve().parent / "migrations"


def schema_revision(connection: Connection) -> str | None:
    """The revision that a database says it has; None if it says nothing."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return revision


def known_revisions(migrations: Path = MIGRATIONS) -> tuple[str, ...]:
    """All revisions, newest first."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_config(migrations))
    return tuple(script.revision for script in scripts.walk_revisions())


def migrate(connection: Connection, migrations: Path = MIGRATIONS) -> None:
    """Bring the database to the newest revision, within the transaction that is open."""
    from alembic import command

    config = _config(migrations)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config(migrations: Path) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def prepare(
    store: Store, migrations: Path, *, create: bool, check_rows: bool, leave_damaged: bool
) -> None:
    """Check the database, then bring it to this version's schema."""
    store.backend.check(
        store.engine, create=create, read_only=store.read_only, check_values=not leave_damaged
    )
    with store.engine.connect() as connection:
        revision = schema_revision(connection)
        tables = set(inspect(connection).get_table_names())
    if check_rows and revision in schema.WITH_CHECKSUMS:
        if leave_damaged and revision == schema.REVISION:
            _check_tables(store, tables)
            store.leave_damaged(store.backend.left_to_readers)
        else:
            _check_rows(store, tables, revision)
    if _is_newest(store.name, revision, migrations):
        return
    if store.read_only and revision is not None:
        _read_upgraded(store, revision, migrations)
    elif not store.read_only and (store.may_upgrade or revision is None):
        store.patiently(lambda: _migrate(store, migrations))
    else:
        raise _older(store.name, revision, migrations)


def _is_newest(name: str, revision: str | None, migrations: Path) -> bool:
    """Whether there is nothing to migrate. Raises DatabaseError for a newer schema."""
    if revision is None:
        return False
    if migrations == MIGRATIONS and revision == schema.REVISION:
        return True
    known = known_revisions(migrations)
    if revision not in known:
        raise DatabaseError(
            f"{name} has schema {revision}, newer than this version's {known[0]}",
            hint="upgrade tunefarm",
        )
    return revision == known[0]


def _check_rows(store: Store, names: Collection[str], revision: str) -> None:
    """Every row, but of a large file only those that do not grow with every use.

    Raises DatabaseError for a damaged row and a table that is not there.
    """
    skipped = store.backend.left_to_readers
    if revision == schema.REVISION:
        _check_tables(store, names)
    with store.reading() as session:
        for table in schema.Base.metadata.sorted_tables:
            if table.name not in names or table.name in skipped:
                continue
            without = () if revision == schema.REVISION else missing_columns(session, table)
            for row in raw_rows(session, table, without):
                problem = damage(table, row)
                if problem:
                    name = f"{table.name} {row_name(table, row)}"
                    raise sqlite_file.damaged(store.name, f"{name}: {problem}")


def _check_tables(store: Store, names: Collection[str]) -> None:
    for table in schema.Base.metadata.sorted_tables:
        if table.name not in names:
            raise sqlite_file.damaged(store.name, f"it has no table {table.name}")


def _older(name: str, revision: str | None, migrations: Path) -> DatabaseError:
    return DatabaseError(
        f"{name} has schema {revision}, older than this version's {known_revisions(migrations)[0]}",
        hint=f"upgrade it with: {_upgrade_command(name)}",
    )


def _upgrade_command(name: str) -> str:
    return f"tune db upgrade --db {shlex.quote(name)}"


def _read_upgraded(store: Store, revision: str, migrations: Path) -> None:
    """Let the store read a copy of the database that has this version's schema.

    Raises DatabaseError where there is none: it is too large, or on a server.
    """
    with store.translating():
        copy = store.backend.copied(store.engine)
        if copy is None:
            raise _older(store.name, revision, migrations)
        store.engine.dispose()
        store.use(copy)
        with store.writer.begin() as connection:
            migrate(connection, migrations)
    store.upgraded_from = revision
    store.upgrade_note = (
        f"{store.name} has schema {revision}: a copy with schema {schema.REVISION} was read; "
        f"to upgrade the file: {_upgrade_command(store.name)}"
    )


def _migrate(store: Store, migrations: Path) -> None:
    """Create or upgrade the schema: all of it or nothing, once if several processes try."""
    with store.translating(), store.writer.begin() as connection:
        store.backend.lock_schema(connection)
        revision = schema_revision(connection)
        if _is_newest(store.name, revision, migrations):
            return  # another process was quicker
        backup = ""
        if revision is not None:
            backup = store.backend.back_up(store.engine, connection, revision)
        elif inspect(connection).get_table_names():
            raise DatabaseError(f"{store.name} has tables but no schema version")
        else:
            store.backend.mark(connection)
        migrate(connection, migrations)
    store.upgraded_from = revision
    if revision is not None:
        store.upgrade_note = f"{store.name}: schema {revision} upgraded to {schema.REVISION}"
        store.upgrade_note += f", as it was before in {backup}" if backup else ""
