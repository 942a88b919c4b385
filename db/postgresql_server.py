"""PostgreSQL servers: how connections are set up, what is one of our databases, backups.

Many processes write at the same time. Rows that several of them add are inserted with ON CONFLICT
DO NOTHING; transactions that wait for each other are ended by the server, and done again by the
store. psycopg is imported only when such a database is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    InterfaceError,
    OperationalError,
    StatementError,
)

from tunefarm.configs.errors import DatabaseError
from tunefarm.db import schema

LOCK_SECONDS = 30
"""A transaction that waits longer for others is given up, as with an SQLite file."""
_CONNECT_SECONDS = 10
_KEPT_ALIVE = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,  # milliseconds
}
"""A server that is gone without a word is noticed within a minute."""
_SCHEMA_LOCK = int.from_bytes(b"tunefarm", "big")
"""The advisory lock (of this database alone) that a transaction that changes the schema holds."""
_FIRST_TABLES = {"alembic_version", "targets", "machines", "workloads", "tasks", "jobs", "trials"}
"""What every database of ours has had since its first revision."""
_PRINTED_OPTIONS = ("host", "port")  # of a URL's query; others may be secrets

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_COLLISIONS = ("40001", "40P01")  # serialization failure, deadlock
_PASSING = (
    *("08", "53", "57P01", "57P02", "57P03", "57P05", "58030"),  # connections, resources, shutdown
    *("40003", "55P03", "25P03"),  # outcome unknown, locked for too long, idle for too long
    "25006",  # read-only, as a standby is until it takes over
)


@dataclass(frozen=True, slots=True)
class PostgresqlServer:
    """A database of a PostgreSQL server as a store's backend."""

    url: URL
    reading: ClassVar[Mapping[str, Any]] = {"isolation_level": "REPEATABLE READ"}
    # So that what another process has just added is seen after ON CONFLICT DO NOTHING.
    writing: ClassVar[Mapping[str, Any]] = {"isolation_level": "READ COMMITTED"}
    when_unavailable: ClassVar[str] = "see whether its server runs, and whether the URL is right"
    may_reconnect: ClassVar[bool] = True
    left_to_readers: ClassVar[Collection[str]] = schema.Base.metadata.tables.keys()

    def __post_init__(self) -> None:
        """Raises DatabaseError for a URL in which the password does not end where it seems to."""
        if "@" in (self.url.host or ""):
            raise DatabaseError(
                "this is not a database URL", hint="write an @ within a password as %40"
            )

    @property
    def name(self) -> str:
        """The URL without password and options."""
        query = {key: self.url.query[key] for key in _PRINTED_OPTIONS if key in self.url.query}
        plain = self.url.set(drivername="postgresql", query=query)
        return plain.render_as_string(hide_password=True)

    def make_engine(self, *, read_only: bool) -> Engine:
        """Connects to nothing. Raises DatabaseError if psycopg is missing or an option is wrong."""
        options = {
            "client_encoding": "utf8",
            "connect_timeout": _CONNECT_SECONDS,
            "application_name": "tunefarm",
            **_KEPT_ALIVE,
        }
        given = {name: value for name, value in options.items() if name not in self.url.query}
        url = self.url.set(drivername="postgresql+psycopg")
        try:
            engine = create_engine(url, connect_args=given, pool_pre_ping=True)
        except ImportError as error:
            raise DatabaseError(
                f"{self.name} needs psycopg, which is not installed",
                hint="pip install 'tunefarm[postgresql]'",
            ) from error
        except ArgumentError as error:
            raise DatabaseError(f"{self.name}: an option of the URL is wrong") from error
        event.listen(engine, "connect", _set_up_connection)
        if read_only:
            event.listen(engine, "connect", _forbid_writing)
        return engine

    def check(
        self, engine: Engine, *, create: bool, read_only: bool, check_values: bool = True
    ) -> None:
        """Refuse what cannot keep every text, what holds other tables and, unless `create`, what
        holds none. Raises DatabaseError."""
        with engine.connect() as connection:
            encoding = connection.scalar(text("SHOW server_encoding"))
            tables = set(inspect(connection).get_table_names())
        if encoding != "UTF8":
            raise DatabaseError(
                f"{self.name} has the encoding {encoding}, not UTF8",
                hint="make one with: createdb --encoding=UTF8 --template=template0 NAME",
            )
        if not tables and not create:
            raise DatabaseError(f"{self.name} is empty", hint="tune MODEL fills it")
        if tables and not tables >= _FIRST_TABLES:
            raise DatabaseError(
                f"{self.name} is a database of another application", hint="nothing was changed"
            )

    def hold(self, engine: Engine) -> None:
        """Nothing to do: a connection is to a database, whatever its name is by now."""

    def lock_schema(self, connection: Connection) -> None:
        """Let no other process change the schema until the transaction ends."""
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _SCHEMA_LOCK})

    def mark(self, connection: Connection) -> None:
        """Nothing to do: the tables are the mark."""

    def back_up(self, engine: Engine, connection: Connection, revision: str) -> str:
        """Copy every table to a new schema `tunefarm_backup_REVISION` of the same database, in the
        transaction that migrates, with no writer in between. Raises DatabaseError if the user may
        not do so."""
        inspector = inspect(connection)
        taken = set(inspector.get_schema_names())
        name, number = f"tunefarm_backup_{revision}", 0
        while name in taken:
            number += 1
            name = f"tunefarm_backup_{revision}_{number}"
        quote = connection.dialect.identifier_preparer.quote_identifier
        tables = [quote(table) for table in inspector.get_table_names()]
        try:
            connection.exec_driver_sql(
                f"LOCK TABLE {', '.join(tables)} IN SHARE ROW EXCLUSIVE MODE"
            )
            connection.exec_driver_sql(f"CREATE SCHEMA {quote(name)}")
            for table in tables:
                copy = f"{quote(name)}.{table}"
                connection.exec_driver_sql(f"CREATE TABLE {copy} AS TABLE {table}")
        except DBAPIError as error:
            if self.may_pass(error) or self.has_collided(error):
                raise
            reason = str(error.orig).splitlines()[0]
            raise DatabaseError(
                f"cannot back up {self.name} before its upgrade: {reason}",
                hint="its owner can upgrade it with: tune db upgrade",
            ) from error
        return f"schema {name}"

    def copied(self, engine: Engine) -> None:
        """A server's tables are not copied: other drivers go on with them."""

    def compact(self, engine: Engine) -> None:
        """Make the space of deleted rows free for new ones, and the planner's statistics new."""
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            quote = connection.dialect.identifier_preparer.quote_identifier
            tables = ", ".join(quote(table.name) for table in schema.Base.metadata.sorted_tables)
            connection.exec_driver_sql(f"VACUUM (ANALYZE) {tables}")

    def identity(self, engine: Engine) -> object:
        """The server's cluster, its database and the schema in it."""
        statement = text(
            "SELECT system_identifier, oid, current_schema() FROM pg_control_system(), pg_database"
            " WHERE datname = current_database()"
        )
        with engine.connect() as connection:
            return tuple(connection.execute(statement).one())

    def may_pass(self, error: StatementError) -> bool:
        """Whether the same may work later: there is no server, or it is in need."""
        state = getattr(error.orig, "sqlstate", None)
        if state is None:  # no word from a server: no connection, or one that was lost
            return isinstance(error, OperationalError | InterfaceError)
        return str(state).startswith(_PASSING)

    def has_collided(self, error: StatementError) -> bool:
        """Whether another transaction was in the way, so that this one is to be repeated."""
        return getattr(error.orig, "sqlstate", None) in _COLLISIONS


def _set_up_connection(connection: Any, _record: object) -> None:
    connection.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
    connection.commit()


def _forbid_writing(connection: Any, _record: object) -> None:
    connection.execute("SET default_transaction_read_only = on")
    connection.commit()
