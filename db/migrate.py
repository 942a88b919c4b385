"""Which schema a database has, and how it gets the one of `db.schema`."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

MIGRATIONS = Path(__file__).resolve().parent / "migrations"


def schema_revision(connection: Connection) -> str | None:
    """The revision that a database says it has; None if it says nothing."""
    return MigrationContext.configure(connection).get_current_revision()


def known_revisions(migrations: Path = MIGRATIONS) -> tuple[str, ...]:
    """All revisions, newest first."""
    scripts = ScriptDirectory.from_config(_config(migrations))
    return tuple(script.revision for script in scripts.walk_revisions())


def migrate(connection: Connection, migrations: Path = MIGRATIONS) -> None:
    """Bring the database to the newest revision, within the transaction that is open."""
    config = _config(migrations)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config(migrations: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
