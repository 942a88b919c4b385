"""SQLite files: what is one of ours, how connections are set up, backups.

A file of ours carries APPLICATION_ID in its header (https://www.sqlite.org/fileformat2.html,
section 1.3). Everything else that exists is left untouched.
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import StatementError
from sqlalchemy.pool import NullPool, PoolProxiedConnection, QueuePool, StaticPool

from tunefarm.configs.errors import (
    DatabaseError,
    DatabaseMovedError,
    DatabaseUnavailableError,
    system_errors_as,
)
from tunefarm.configs.files import new_file
from tunefarm.configs.resource_limits import limit_behind
from tunefarm.db.sqlite_connection import (
    BUSY_SECONDS,
    lacks_index,
    may_write,
    open_file,
)

# A database file while it is open: whether its name still leads to it, and where it is if not.

_OPEN_FILES = Path("/proc/self/fd")  # proc_pid_fd(5)
_SAVED = ".saved"
_PRIVATE = 0o600


class HeldFile:
    """The file that `keeper`, a connection that does nothing else, has open under the name."""

    def __init__(self, name: Path, keeper: sqlite3.Connection) -> None:
        self._name = name
        self._path = Path(os.path.abspath(name))  # whatever folder the process changes to
        self._keeper = keeper
        keeper.isolation_level = None
        try:
            keeper.execute("PRAGMA schema_version").fetchone()  # opens a write-ahead log, too
            self._identity = _identity(self._path)
        except (OSError, sqlite3.Error) as error:
            keeper.close()
            raise DatabaseUnavailableError(f"{name}: {error}") from error

    def close(self) -> None:
        """Let go of the file."""
        self._keeper.close()

    def check(self, _connection: Connection | None = None) -> None:
        """Raises DatabaseMovedError if the name does not lead to the file any more."""
        if self._is_there():
            return
        place = self.place()
        if place is not None:
            raise DatabaseMovedError(
                f"{self._name} was renamed to {place} while it was in use",
                hint=f"its records are there: --db {shlex.quote(str(place))}",
            )
        raise DatabaseMovedError(f"{self._name} was {self._fate()} while it was in use")

    def place(self) -> Path | None:
        """Where the file is now, by another name of its own; None if it has none that is known."""
        with suppress(OSError):
            for link in _OPEN_FILES.iterdir():
                with suppress(OSError):
                    if _identity(link) == self._identity:
                        found = Path(os.readlink(link))
                        if _identity(found) == self._identity:
                            return self._as_typed(found)
        return None

    def complete(self) -> None:
        """Have everything in the file itself: a write-ahead log does not go where the file goes.

        Raises DatabaseUnavailableError if others read it now.
        """
        (busy, *_) = self._keeper.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise DatabaseUnavailableError(f"{self._name} was renamed, and its log is being read")

    def save(self) -> Path:
        """Copy what the file holds, which has no name any more, next to where it was.

        Nobody of this process may write to it meanwhile. Raises DatabaseUnavailableError if that
        cannot be done now; the file is held all the same.
        """
        if self._path.exists() and Path(f"{os.path.realpath(self._path)}-journal").exists():
            # which SQLite would take for a transaction of this file that was cut short
            raise DatabaseUnavailableError(f"{self._name} is another file, that is being written")
        reason = "no folder is there"
        for folder in self._folders():
            try:
                copy = new_file(folder, self._path.name, _SAVED)
                try:
                    copy.chmod(self._mode())
                    self._copy_to(copy)
                except BaseException:
                    copy.unlink(missing_ok=True)
                    raise
                return self._as_typed(copy)
            except OSError as error:
                reason = f"{folder}: {error.strerror or error}"
            except sqlite3.Error as error:
                reason = f"{folder}: {error}"
        raise DatabaseUnavailableError(
            f"{self._name} was {self._fate()}, and its records cannot be saved in {reason}"
        )

    def story(self, copy: Path) -> str:
        """What became of the file, and what to type so that the records of its copy are under its
        name again."""
        name, saved = shlex.quote(str(self._name)), shlex.quote(str(copy))
        again = f"mv {saved} {name}"
        if self._path.exists():
            again = f"tune db merge {saved} --db {name}"
        text = f"{self._name} was {self._fate()} while it was in use: its records are saved in"
        return f"{text} {copy}; to have them back: {again}"

    def _copy_to(self, copy: Path) -> None:
        with closing(sqlite3.connect(copy)) as target:
            self._keeper.backup(target)

    def _mode(self) -> int:
        """Who may read and write the file."""
        for link in _OPEN_FILES.iterdir():
            with suppress(OSError):
                if _identity(link) == self._identity:
                    return stat.S_IMODE(link.stat().st_mode)
        return _PRIVATE

    def _is_there(self) -> bool:
        try:
            return _identity(self._path) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # it cannot be seen now, and SQLite says why

    def _fate(self) -> str:
        return "replaced by another file" if self._path.exists() else "deleted"

    def _folders(self) -> Iterator[Path]:
        """Where the copy may go: where the file was, or above, as far as that is there."""
        yield from (folder for folder in self._path.parents if folder.is_dir())
        yield Path(tempfile.gettempdir())

    def _as_typed(self, found: Path) -> Path:
        """Relative where the name was, if it is in the same folder."""
        with suppress(OSError):
            if os.path.samefile(self._name.parent, found.parent):
                return self._name.with_name(found.name)
        return found


def _identity(path: Path) -> tuple[int, int]:
    """What SQLite, too, knows a file by (os_unix.c, fileHasMoved)."""
    status = path.stat()
    return status.st_dev, status.st_ino


APPLICATION_ID = int.from_bytes(b"tune", "big")
WRITE = "tunefarm_write"
"""Execution option of connections whose transactions take the write lock when they begin."""

NOT_TEXT = "a text in it is not valid UTF-8"
"""Damage that Python's module for SQLite reports as a UnicodeDecodeError, in messages too."""
_COPY_HINT = "copy it, with the -wal or -journal next to it, to a folder that you may write to"
_MAGIC = b"SQLite format 3\0"
_SMALLEST_PAGE = 512
_WAL_IS_SAFE = sqlite3.sqlite_version_info >= (3, 51, 3)
"""Older versions can corrupt a write-ahead log (https://www.sqlite.org/wal.html, section 11)."""
_OF_A_VALUE = re.compile(r"(NULL|TEXT|NUMERIC|non-\S+) value in ")
"""Lines of `PRAGMA integrity_check` about the content of a row."""
_WHOLE_CHECK_BYTES = 32 << 20
"""Larger files are checked at open only where it is cheap, or opening would take seconds."""
_EVERY_ROW_BYTES = 4 << 20
"""Of larger files opening leaves the rows of the large tables to who reads them."""
_COPIED_BYTES = 512 << 20
"""Larger files of an earlier schema are upgraded before they are read: a copy takes that memory."""
LARGE_TABLES = ("trials", "builds")
"""Those that grow with every use; a row of them is checked whenever it is read."""
_PASSING = ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_CANTOPEN")
_PASSING_MOUNT = ("SQLITE_READONLY",)  # a file system that was remounted after an error


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """A file as a store's backend, or a database in memory if `path` is None."""

    path: Path | None
    reading: ClassVar[Mapping[str, Any]] = {}
    writing: ClassVar[Mapping[str, Any]] = {WRITE: True}
    when_unavailable: ClassVar[str] = "free some space, or wait for the program that uses it"

    @property
    def name(self) -> str:
        return str(self.path or ":memory:")

    @property
    def may_reconnect(self) -> bool:
        return self.path is not None

    @property
    def left_to_readers(self) -> Collection[str]:
        try:
            size = self.path.stat().st_size if self.path is not None else 0
        except OSError:
            size = 0  # gone since: reading says so
        return LARGE_TABLES if size > _EVERY_ROW_BYTES else ("builds",)

    def make_engine(self, *, read_only: bool) -> Engine:
        if self.path is None:
            engine = create_engine(
                "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
            )
        else:
            # a reader too must roll back after a crash, and no connection makes a new file
            connect = partial(open_file, self.path, "rw", check_same_thread=False)
            # what is read without locks is opened anew for each session: it may have changed
            pool = NullPool if read_only and lacks_index(self.path) else QueuePool
            engine = create_engine("sqlite://", creator=connect, poolclass=pool)
        event.listen(engine, "connect", _set_up_connection)
        if read_only:
            event.listen(engine, "connect", _forbid_writing)
        event.listen(engine, "begin", _begin)
        return engine

    def check(
        self, engine: Engine, *, create: bool, read_only: bool, check_values: bool = True
    ) -> None:
        """Refuse what is not an intact file of ours. Raises DatabaseError."""
        if self.path is not None:
            _check_path(self.path, create=create)
            if not read_only:
                _check_writable(self.path)
            if create:
                open_file(self.path, "rwc").close()
            size = self.path.stat().st_size if self.path.exists() else 0
            problems = check_structure(engine, size, check_values) if size else []
            if problems:
                raise damaged(self.path, problems[0])
        if not read_only:
            set_journal_mode(engine)

    def hold(self, engine: Engine) -> HeldFile | None:
        if self.path is None:
            return None
        held = HeldFile(self.path, open_file(self.path, "rw", check_same_thread=False))
        event.listen(engine, "begin", held.check, insert=True)
        return held

    def lock_schema(self, connection: Connection) -> None:
        """Nothing to do: a transaction that writes has the write lock from its beginning."""

    def mark(self, connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")

    def back_up(self, engine: Engine, connection: Connection, revision: str) -> str:
        """Copy the file next to itself, to `NAME.REVISION.backup` or a like name that is free."""
        if self.path is None:
            return ""
        with system_errors_as(DatabaseError, f"back up {self.path} before its upgrade"):
            target = new_file(self.path.parent, f"{self.path.name}.{revision}", ".backup")
        with closing(sqlite3.connect(target)) as copy, closing(engine.raw_connection()) as source:
            _sqlite(source).backup(copy)
        return str(target)

    def copied(self, engine: Engine) -> Engine | None:
        """The file's content in memory; None of a file that is too large."""
        if self.path is None or self.path.stat().st_size > _COPIED_BYTES:
            return None
        memory = SqliteFile(None).make_engine(read_only=False)
        with (
            closing(engine.raw_connection()) as source,
            closing(memory.raw_connection()) as copy,
        ):
            _sqlite(source).backup(_sqlite(copy))
        return memory

    def compact(self, engine: Engine) -> None:
        """Write the database anew without the space of deleted rows."""
        with closing(engine.raw_connection()) as connection:
            _sqlite(connection).execute("VACUUM")

    def identity(self, engine: Engine) -> object:
        if self.path is None:
            return engine
        try:
            status = self.path.stat()
        except OSError:  # deleted while it is open
            return os.path.realpath(self.path)
        return status.st_dev, status.st_ino

    def may_pass(self, error: StatementError) -> bool:
        name = getattr(error.orig, "sqlite_errorname", "")
        return name.startswith((*_PASSING, *_PASSING_MOUNT)) and not limit_behind(error)

    def has_collided(self, error: StatementError) -> bool:
        return False  # writers wait for one another


def _check_path(path: Path, *, create: bool) -> None:
    """Refuse what is not an intact database of ours, without changing it.

    A missing or an empty file passes if `create`: it can become one. Raises DatabaseError.
    """
    with system_errors_as(DatabaseError, f"open {path}"):
        if path.is_dir():
            raise DatabaseError(f"{path} is a folder, not a database file")
        if path.exists() and not path.is_file():
            raise DatabaseError(f"{path} is not a regular file, so it is no database")
        size = path.stat().st_size if path.exists() else 0
        if size:
            _check_header(path, size)
        elif not create:
            raise DatabaseError(f"no such database: {path}", hint="tune MODEL makes one")
        elif not path.exists() and not path.parent.is_dir():
            raise DatabaseError(f"cannot create {path}: its folder does not exist")


def _check_header(path: Path, size: int) -> None:
    if size < _SMALLEST_PAGE:
        raise _foreign(path)
    try:
        application = _application_id(path)
    except UnicodeDecodeError as error:
        raise damaged(path, NOT_TEXT) from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_NOTADB"):
            raise _foreign(path) from error
        if _is_corrupt(error):
            raise damaged(path, str(error)) from error
        raise DatabaseError(f"cannot open {path}: {error}") from error
    if application != APPLICATION_ID:
        raise DatabaseError(
            f"{path} is a database of another application", hint="nothing was changed"
        )


def _check_writable(path: Path) -> None:
    """Refuse a file that is there, to be written, but only read. Raises DatabaseError."""
    if not os.path.exists(path) or _is_writable(path):
        return
    what = "its folder" if may_write(Path(os.path.realpath(path))) else "it"
    raise DatabaseError(f"cannot write to {path}: {what} can only be read", hint=_COPY_HINT)


def _is_writable(path: Path) -> bool:
    """Whether SQLite may write to a file, which takes its folder too."""
    file = Path(os.path.realpath(path))
    return may_write(file) and may_write(file.parent)


def _application_id(path: Path) -> int:
    """What the header says, read without rolling back a transaction that was cut short."""
    try:
        with closing(open_file(path, "ro")) as connection:
            connection.execute("BEGIN")
            application = int(connection.execute("PRAGMA application_id").fetchone()[0])
            if application == APPLICATION_ID:
                _check_size(path, connection)
            return application
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
            raise
    # Reading the file by itself would drop this process's locks on it (POSIX drops them when any
    # descriptor is closed), but a writer that died left nobody here who could hold one.
    with path.open("rb") as file:
        header = file.read(100)
    application = int.from_bytes(header[68:72], "big") if header.startswith(_MAGIC) else 0
    if application == APPLICATION_ID and not _is_writable(path):
        raise DatabaseError(
            f"a transaction of {path} was cut short, and what it wrote cannot be taken back: "
            "the file or its folder can only be read",
            hint=_COPY_HINT,
        )
    return application


def _check_size(path: Path, connection: sqlite3.Connection) -> None:
    """Find the loss of a part of the last page, which SQLite reads as zeros."""
    pages, page_size, mode = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "page_size", "journal_mode")
    )
    size = path.stat().st_size
    if mode != "wal" and size < pages * page_size:
        raise damaged(path, f"it has {size} of {pages * page_size} bytes")


def _foreign(path: Path) -> DatabaseError:
    return DatabaseError(f"{path} is not a tuning database", hint="nothing was changed")


def damaged(path: Path | str, reason: str) -> DatabaseError:
    """The error for a file that is one of ours but cannot be relied on."""
    hint = "nothing was changed; restore a backup, or save what is intact with: tune db salvage"
    return DatabaseError(f"{path} is damaged: {reason}", hint=hint)


def _set_up_connection(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # `_begin` says when a transaction begins, not the driver
    connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = FULL")


def _forbid_writing(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA query_only = ON")


def _begin(connection: Connection) -> None:
    write = connection.get_execution_options().get(WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def set_journal_mode(engine: Engine) -> None:
    """Write-ahead log where the linked SQLite is safe with it, else a rollback journal."""
    wanted = "wal" if _WAL_IS_SAFE else "delete"
    with closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        mode = cursor.execute("PRAGMA journal_mode").fetchone()[0]
        if mode not in (wanted, "memory"):
            cursor.execute(f"PRAGMA journal_mode = {wanted}")


def check_structure(engine: Engine, size: int, check_values: bool = True) -> list[str]:
    """What SQLite finds wrong with the file, indices included; [] if nothing.

    A large file is checked by its small tables alone; `tunefarm.db.check` reads everything.
    """
    pragmas = ["PRAGMA integrity_check(5)"]
    problems = []
    with closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        try:
            if size > _WHOLE_CHECK_BYTES:
                names = cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                tables = [name for (name,) in names if name not in LARGE_TABLES]
                pragmas = [f"PRAGMA integrity_check('{table}')" for table in tables]
            for pragma in pragmas:
                lines = [line for row in cursor.execute(pragma) for line in row[0].splitlines()]
                problems += [line for line in lines if line != "ok" and not line.startswith("***")]
            if not check_values:
                problems = [line for line in problems if not _OF_A_VALUE.match(line)]
            elif size <= _EVERY_ROW_BYTES and not problems:
                problems += dangling(cursor.execute("PRAGMA foreign_key_check").fetchmany(5))
        except sqlite3.DatabaseError as error:
            if not _is_corrupt(error):
                raise
            problems.append(str(error))
    return problems


def dangling(rows: Iterable[Sequence[Any]]) -> list[str]:
    """What the rows of `PRAGMA foreign_key_check` say, one line each."""
    return [
        f"{table} {row}: refers to a row of {parent} that is not there"
        for table, row, parent, _ in rows
    ]


def _is_corrupt(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith("SQLITE_CORRUPT")


def _sqlite(connection: PoolProxiedConnection) -> sqlite3.Connection:
    driver = connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver
