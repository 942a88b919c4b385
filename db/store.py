"""Store: a tuning database that is open, and everything that is written to it.

Only the driver of a job writes; several may at once. What `add` was given is on disk when it
returns. What is particular to a kind of database is behind `tunefarm.db.backend`, reading is in
`tunefarm.db.queries`.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Engine, Text, bindparam, cast, delete, event, update
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import (
    InstrumentedAttribute,
    ORMExecuteState,
    Session,
    with_loader_criteria,
)

from tunefarm.configs.clock import steady_time
from tunefarm.configs.errors import DatabaseError, DatabaseMovedError, DatabaseUnavailableError
from tunefarm.db import schema, sqlite_file
from tunefarm.db.backend import Backend, backend_of
from tunefarm.db.prepare import MIGRATIONS, prepare
from tunefarm.db.processes import hold_lease, let_go
from tunefarm.db.raw_rows import REFERRED_TO, damaged_rows
from tunefarm.db.records import JOB_STATES, JobRecord, JobState, JobTask, Record
from tunefarm.db.rows import RowIds, add_rows, job_row
from tunefarm.db.sqlite_file import HeldFile

Patience: TypeAlias = Callable[[DatabaseUnavailableError], bool]
"""Waits for a while; whether to try again."""
_T = TypeVar("_T")
_MAY_BE_LEFT = {"trials", "bests", "builds", "plans", "latencies"}  # only bests refer to one
_KEYS = {
    "targets": schema.Target.key,
    "machines": schema.Machine.key,
    "workloads": schema.Workload.key,
    "tasks": schema.Task.numerics,
    "jobs": schema.Job.uid,
}
"""What new records find the rows by that they refer to."""
_TRIES = 10  # of a transaction that is given up for another one; each of them lets one finish


class _CollisionError(DatabaseUnavailableError):
    """A transaction was given up so that another one could go on; it can be done again at once."""


class Store:
    """An open tuning database. Use `Store.open`; close it, or use it in a `with` statement.

    Every method raises DatabaseError when the database cannot be read or written, and its kind
    DatabaseUnavailableError when that may pass (locked for longer than 30 s, disk full, no
    connection to the server). A method that writes, or that begins to read, first asks `patience`,
    if there is one, whether to try again.
    """

    def __init__(self, backend: Backend, *, read_only: bool, may_upgrade: bool = True) -> None:
        self.name = backend.name
        self.read_only, self.may_upgrade = read_only, may_upgrade
        self.upgraded_from: str | None = None  # the schema that opening has found and upgraded
        self.upgrade_note = ""  # a line that says so, and where the backup is
        self.patience: Patience | None = None
        self.layers: tuple[Store, ...] = ()  # what builds ask after it, see `DatabaseSettings`
        self.is_shipped = False  # it comes with the package
        self.moved = ""  # where the database is that was renamed or saved while it was in use
        self.lost = ""  # a line about one that was deleted or replaced, and has been saved
        self.damaged: dict[str, dict[int, str]] = {}  # rows left out, and what is wrong with them
        self.backend = backend
        self.use(backend.make_engine(read_only=read_only))
        self._held: HeldFile | None = None
        self._at_work = threading.RLock()  # who writes, or goes on in another file
        self._here = threading.local()  # the session that this thread reads by
        self._ids: dict[tuple[str, object], int] = {}  # of committed rows

    @classmethod
    def open(
        cls,
        path_or_url: str | Path,
        *,
        create: bool = True,
        read_only: bool = False,
        upgrade: bool = True,
        check_rows: bool = True,
        leave_damaged: bool = False,
        migrations: Path = MIGRATIONS,
    ) -> Store:
        """Open a database: a file name, `:memory:`, or an SQLAlchemy URL of SQLite or PostgreSQL.

        A missing or empty file, or an empty database of a server, becomes a new database if
        `create` is true and `read_only` is not. An older schema is migrated after everything was
        copied: to `NAME.REVISION.backup`, on a server to a schema `tunefarm_backup_REVISION`.
        With `read_only` nothing is changed: a file of an older schema is read as a copy in memory
        that was migrated. Without `upgrade` an older schema is refused where it is to be written.
        A file's rows are checked unless `check_rows` is false, for who reads damaged ones too; with
        `leave_damaged` those that are damaged are left out (see the method) instead of refused.

        Raises DatabaseError for a database that is damaged or no tuning database, a schema of a
        newer version, an older one of a server or a large file that is only read, a path that
        cannot be written and a server that does not let us in; nothing is changed then.
        """
        store = cls(backend_of(path_or_url), read_only=read_only, may_upgrade=upgrade)
        try:
            with store.translating():
                create = create and not read_only
                prepare(
                    store,
                    migrations,
                    create=create,
                    check_rows=check_rows,
                    leave_damaged=leave_damaged,
                )
                store._held = store.backend.hold(store.engine)
        except BaseException:
            store.close()
            raise
        return store

    def use(self, engine: Engine) -> None:
        """Read and write by this engine."""
        self.engine = engine
        self._reader = engine.execution_options(**self.backend.reading)
        self.writer = engine.execution_options(**self.backend.writing)

    def close(self) -> None:
        """Let go of the database."""
        self.engine.dispose()
        if self._held is not None:
            self._held.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def label(self) -> str:
        """What reports call it next to another: without folders, which differ among machines."""
        return "shipped" if self.is_shipped else self.name.rpartition("/")[2]

    def is_same(self, other: Store) -> bool:
        """Whether both are one database, whatever they were opened as."""
        return self.identity() == other.identity()

    def identity(self) -> object:
        """Equal for two ways to name one database."""
        with self.translating():
            return self.backend.identity(self.engine)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session of `tunefarm.db.schema` models that sees one state of the database. Keep it
        short.

        Within another one of the same thread it is that one: several questions see one state.
        """
        session: Session | None = getattr(self._here, "session", None)
        if session is not None:
            yield session
            return
        with self.translating(), self.patiently(self._begin_reading) as session:
            self._here.session = session
            try:
                yield session
            finally:
                self._here.session = None

    def _session(self, engine: Engine) -> Session:
        session = Session(engine)
        if self.damaged:
            event.listen(session, "do_orm_execute", self._leave_out)
        return session

    def _begin_reading(self) -> Session:
        session = self._session(self._reader)
        try:
            with self.translating():
                session.connection()
        except BaseException:
            session.close()
            raise
        return session

    def leave_damaged(self, skipped: Collection[str] = ()) -> bool:
        """From now on read as if damaged rows, and those that refer to them, were not there.

        Whether there are any that were read before. All tables are looked at but those `skipped`.
        Where the database is written, those that a new record would refer to get other keys, so
        that a new row has its place. Raises DatabaseError for damage to who is at work there.
        """
        with self.reading() as session:
            found = damaged_rows(session, skipped)
        for name, rows in found.items() if not self.read_only else ():
            broken = [number for number, problem in rows.items() if REFERRED_TO not in problem]
            if name in _KEYS:
                self._set_aside(_KEYS[name], broken)
            elif broken and name not in _MAY_BE_LEFT:
                problem = f"{name} {broken[0]}: {rows[broken[0]]}"
                raise sqlite_file.damaged(self.name, problem)
        return sum(self.leave(name, rows) for name, rows in found.items()) > 0

    def _set_aside(self, key: InstrumentedAttribute[str], numbers: Sequence[int]) -> None:
        """Give damaged rows keys that nothing else has; their checksums stay wrong."""
        table, other = key.class_.__table__, "damaged-" + cast(key.class_.id, Text)
        rows = table.c.id.in_(numbers), table.c[key.key] != other
        self.write(lambda session: session.execute(update(table).where(*rows).values({key: other})))

    def leave(self, table: str, rows: Mapping[int, str]) -> bool:
        """Read as if the rows with these numbers were not there, for what is wrong with them."""
        known = self.damaged.setdefault(table, {})
        new = {number: problem for number, problem in rows.items() if number not in known}
        known.update(new)
        return bool(new)

    def _leave_out(self, state: ORMExecuteState) -> None:
        if not state.is_select or not state.is_orm_statement:
            return
        for mapper in schema.Base.registry.mappers:
            numbers = self.damaged.get(mapper.class_.__tablename__)
            if numbers:
                intact = mapper.class_.id.not_in(list(numbers))
                left_out = with_loader_criteria(mapper.class_, intact, include_aliases=True)
                state.statement = state.statement.options(left_out)

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session that writes all or nothing: it commits at the end, unless there is an error."""
        if self.read_only:
            raise DatabaseError(f"{self.name} is open for reading only")
        with (
            self._at_work,
            self.translating(),
            self._session(self.writer) as session,
            session.begin(),
        ):
            yield session

    def write(self, work: Callable[[Session], _T]) -> _T:
        """Do `work` in one transaction, committed on return."""

        def write() -> _T:
            with self.writing() as session:
                return work(session)

        return self.patiently(write)

    def patiently(self, work: Callable[[], _T]) -> _T:
        """Do `work`; again after a collision, and while the database cannot be used and `patience`
        says so."""
        collisions = 0
        while True:
            try:
                return work()
            except DatabaseUnavailableError as error:
                self.forget_ids()
                try:
                    if self.go_on_elsewhere(error):
                        continue
                except DatabaseMovedError:
                    raise
                except DatabaseUnavailableError as problem:  # it cannot be saved now
                    error = problem
                if isinstance(error, _CollisionError) and collisions < _TRIES:
                    collisions += 1
                    continue
                collisions = 0
                if self.backend.may_reconnect:
                    self.engine.dispose()  # what a failed transaction left in its connection
                if self.patience is None or not self.patience(error):
                    raise

    def go_on_elsewhere(self, error: DatabaseUnavailableError) -> bool:
        """Whether it was because the name leads to another file, and can be tried again where the
        database is now: under another name, or saved as a copy if it was deleted or replaced.

        That is for who writes and has `patience`. Raises DatabaseMovedError for others.
        """
        with self._at_work:
            try:
                if self._held is not None:
                    self._held.check()
            except DatabaseMovedError:
                if self.read_only or self.patience is None:
                    raise
                self._move()
                return True
        return isinstance(error, DatabaseMovedError)  # another thread has been here

    def _move(self) -> None:
        """Go on where the file is now."""
        held, engine, former = self._held, self.engine, self.name
        assert held is not None
        place = held.place()
        if place is not None:
            held.complete()
            self.lost = ""
            note = f"{former} was renamed while it was in use: the job goes on in {place}"
        else:
            place = held.save()
            self.lost = held.story(place)
            note = f"{self.lost}; the job goes on there"
        self.backend = backend_of(place)
        self.name = self.moved = self.backend.name
        self.use(self.backend.make_engine(read_only=False))
        with self.translating():
            self._held = self.backend.hold(self.engine)
        engine.dispose()
        held.close()
        if self.patience is not None:
            self.patience(DatabaseMovedError(note))

    def add(self, records: Iterable[Record], addition: int | None = None) -> int:
        """Add records of one kind in one transaction, committed on return; how many were new.

        Those that come from elsewhere come with an `addition` (`tunefarm.db.additions`).

        One that is in the database already (same key or id; for trials same key, schedule and
        request) is left as it is. Raises DatabaseError, and adds none, if what one refers to is not
        in the database, or a trial cannot be kept: an ok one without a latency, values that are
        not JSON.
        """
        new = list(records)
        found: dict[tuple[str, object], int] = {}

        def add(session: Session) -> int:
            ids = RowIds(session, self._ids, addition)
            added = add_rows(session, ids, new)
            found.update(ids.known)
            return added

        try:
            added = self.write(add) if new else 0
        except Exception:
            self.forget_ids()  # what was rolled back is not there, nor perhaps what others deleted
            raise
        self._ids |= found
        return added

    def forget_ids(self) -> None:
        """Rows were deleted, or never written: look numbers up again."""
        self._ids = {}

    def delete_trials(self, numbers: Iterable[int]) -> int:
        """Delete the trials with these numbers, all in one transaction; how many there were.

        Raises DatabaseError, and deletes none, if a job has settled on one of them.
        """
        statement = delete(schema.Trial).where(schema.Trial.id == bindparam("number"))
        statement = statement.execution_options(preserve_rowcount=True)
        wanted = [{"number": number} for number in numbers]
        if not wanted:
            return 0
        return self.write(lambda session: session.connection().execute(statement, wanted).rowcount)

    def compact(self) -> None:
        """Let go of the space of deleted rows: a file becomes smaller, and needs as much space
        again for a moment; a server uses it for new rows."""
        with self.translating():
            self.backend.compact(self.engine)

    def start_job(
        self, model_name: str, model_hash: str, settings: Any, tasks: Sequence[JobTask] = ()
    ) -> JobRecord:
        """Add a job in the state "running", which this process is at work on."""
        now = steady_time()
        record = JobRecord(
            id=uuid.uuid4().hex,
            model_name=model_name,
            model_hash=model_hash,
            settings=settings,
            state="running",
            started=now,
            updated=now,
            finished=None,
            progress={},
            tasks=tuple(tasks),
        )
        self.add([record])
        self.write(lambda session: hold_lease(session, record.id))
        return record

    def update_job(self, job: str, progress: Any) -> None:
        """Replace the job's progress."""

        def update(session: Session) -> None:
            row = job_row(session, job)
            row.progress = progress
            row.updated = steady_time()

        self.write(update)

    def finish_job(self, job: str, state: JobState, progress: Any = None) -> None:
        """Set the job's final state, and its progress unless that is None."""
        if state not in JOB_STATES:
            raise DatabaseError(f"no such state of a job: {state!r}")

        def finish(session: Session) -> None:
            row = job_row(session, job)
            row.state = state
            row.updated = row.finished = steady_time()
            if progress is not None:
                row.progress = progress
            let_go(session, row.id)

        self.write(finish)

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Turn the database library's errors into DatabaseErrors that name the database."""
        try:
            yield
        except StatementError as error:
            reason = next(iter(str(error.orig or error).splitlines()), "no reason given")
            if self.backend.has_collided(error):
                raise _CollisionError(f"{self.name}: {reason}") from error
            if self.backend.may_pass(error):
                advice = self.backend.when_unavailable
                raise DatabaseUnavailableError(f"{self.name}: {reason}", hint=advice) from error
            raise DatabaseError(f"{self.name}: {reason}") from error
        except self.engine.dialect.loaded_dbapi.Error as error:
            raise DatabaseError(f"{self.name}: {error}") from error
        except UnicodeDecodeError as error:
            raise sqlite_file.damaged(self.name, sqlite_file.NOT_TEXT) from error
        except OverflowError as error:
            raise DatabaseError(f"{self.name}: a number is out of range: {error}") from error
