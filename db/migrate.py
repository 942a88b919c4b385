"""Which schema a database has, and how it gets the one of `tunefarm.db.schema`.

Alembic is imported where a schema changes: most databases have this version's already.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

if TYPE_CHECKING:
    from alembic.config import Config

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
