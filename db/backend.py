"""The kinds of databases: what a store asks of one, and which one a location means."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, StatementError

from tunefarm.configs.errors import DatabaseError
from tunefarm.db.sqlite_file import HeldFile, SqliteFile

_HINT = "give a file name or a URL: postgresql://USER:PASSWORD@HOST/NAME"


class Backend(Protocol):
    """One database of a kind. Methods raise DatabaseError or the library's errors."""

    reading: ClassVar[Mapping[str, Any]]
    """Execution options of a transaction that reads: it sees one state of the database."""
    writing: ClassVar[Mapping[str, Any]]
    """Execution options of a transaction that writes."""
    when_unavailable: ClassVar[str]
    """What to do where it cannot be used now."""

    @property
    def name(self) -> str:
        """What messages call it; holds no password."""

    @property
    def may_reconnect(self) -> bool:
        """Whether the database outlives its connections."""

    @property
    def left_to_readers(self) -> Collection[str]:
        """Tables whose rows opening does not look at: it would take too long, or a server does."""

    def make_engine(self, *, read_only: bool) -> Engine:
        """Check what can be seen without a connection; an engine that has made none yet."""

    def check(
        self, engine: Engine, *, create: bool, read_only: bool, check_values: bool = True
    ) -> None:
        """Refuse, without changing it, what is not an intact database of ours; with `check_values`
        also what can be seen of values without reading the rows.

        Nothing is there yet: passes if `create`, is refused if not.
        """

    def hold(self, engine: Engine) -> HeldFile | None:
        """Have no transaction of the engine begin, from now on, when the name leads to another
        database; None where it cannot."""

    def lock_schema(self, connection: Connection) -> None:
        """Make other processes that would change the schema wait for the transaction's end."""

    def mark(self, connection: Connection) -> None:
        """Make a new database known as one of ours, in the transaction that makes its tables."""

    def back_up(self, engine: Engine, connection: Connection, revision: str) -> str:
        """Copy everything before the transaction of `connection` migrates it from `revision`;
        where to, "" if it is of no use."""

    def copied(self, engine: Engine) -> Engine | None:
        """Everything, as a database in memory that may be written; None if that is too much."""

    def compact(self, engine: Engine) -> None:
        """Let go of the space of deleted rows."""

    def identity(self, engine: Engine) -> object:
        """Equal for two ways to name one database."""

    def may_pass(self, error: StatementError) -> bool:
        """Whether an error says that the database cannot be used now, rather than never."""

    def has_collided(self, error: StatementError) -> bool:
        """Whether the transaction was given up for another one, and can be done again at once."""


def backend_of(path_or_url: str | Path) -> Backend:
    """The database that is meant: a file, `:memory:`, or an SQLAlchemy URL.

    Raises DatabaseError for what is neither. Nothing is opened.
    """
    if isinstance(path_or_url, Path):
        return SqliteFile(path_or_url)
    location: str | None = path_or_url
    if "://" in path_or_url:
        try:
            url = make_url(path_or_url)
        except (ArgumentError, ValueError) as error:  # its text may hold a password
            raise DatabaseError("this is not a database URL", hint=_HINT) from error
        if "\0" in path_or_url:
            raise DatabaseError("this is not a database URL", hint="it has a NUL character")
        if url.drivername in ("postgresql", "postgresql+psycopg"):
            from tunefarm.db.postgresql_server import PostgresqlServer

            return PostgresqlServer(url)
        if url.get_backend_name() != "sqlite":
            raise DatabaseError(f"databases of kind {url.drivername} are not supported", hint=_HINT)
        location = url.database
    if location in (None, "", ":memory:") and path_or_url:
        return SqliteFile(None)
    if not location or "\0" in location:
        raise DatabaseError(f"{path_or_url!r} is not a file name")
    return SqliteFile(Path(location))
