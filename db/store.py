"""Store: a tuning database that is open, and everything that is written to it.

Only the driver of a job writes. What `record_trials` was given is on disk when it returns.
Reading is in `db.queries`.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import CursorResult, Engine, delete, inspect
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, StatementError
from sqlalchemy.orm import Session

from configs.errors import DatabaseError, DatabaseUnavailableError
from db import schema, sqlite_file
from db.checksum import checksum_of
from db.migrate import MIGRATIONS, known_revisions, migrate, schema_revision
from db.raw_rows import examined
from db.records import (
    JOB_STATES,
    BestRecord,
    BuildRecord,
    JobRecord,
    JobState,
    JobTask,
    TargetRecord,
    TrialRecord,
    WorkloadRecord,
)
from db.rows import RowIds, add_job, best_values, build_values, job_row, trial_values

Patience: TypeAlias = Callable[[DatabaseUnavailableError], bool]
"""Waits for a while; whether to try again."""
_T = TypeVar("_T")
_DELETED_AT_ONCE = 500
_SMALL_TABLES = tuple(
    table for table in schema.Base.metadata.sorted_tables if table.name != "trials"
)


class Store:
    """An open tuning database. Use `Store.open`; close it, or use it in a `with` statement.

    Every method raises DatabaseError when the database cannot be read or written, and its kind
    DatabaseUnavailableError when that may pass (locked for longer than 30 s, disk full). A method
    that writes first asks `patience`, if there is one, whether to try again.
    """

    def __init__(self, engine: Engine, name: str, *, read_only: bool) -> None:
        self.name = name
        self.read_only = read_only
        self.patience: Patience | None = None
        self._is_file = name != ":memory:"
        self._engine = engine
        self._writer = engine.execution_options(**{sqlite_file.WRITE: True})
        self._ids: dict[tuple[str, object], int] = {}  # of committed rows

    @classmethod
    def open(
        cls,
        path_or_url: str | Path,
        *,
        create: bool = True,
        read_only: bool = False,
        migrations: Path = MIGRATIONS,
    ) -> Store:
        """Open a database: a file name, `:memory:`, or an SQLAlchemy URL of an SQLite database.

        A missing or empty file becomes a new database if `create` is true and `read_only` is not.
        An older schema is migrated after the file was copied to `NAME.REVISION.backup`.

        Raises DatabaseError for a file that is damaged or no tuning database, a schema of a newer
        version, and a path that cannot be written; nothing is changed then.
        """
        path = _parse(path_or_url)
        if path is not None:
            _check_path(path, create=create and not read_only)
        name = str(path or ":memory:")
        store = cls(sqlite_file.make_engine(path, read_only=read_only), name, read_only=read_only)
        try:
            with _translated(name):
                store._prepare(path, migrations)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session of `db.schema` models that sees one state of the database. Keep it short."""
        with _translated(self.name), Session(self._engine) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session that holds the write lock and commits at the end, unless there is an error."""
        if self.read_only:
            raise DatabaseError(f"{self.name} is open for reading only")
        with _translated(self.name), Session(self._writer) as session, session.begin():
            yield session

    def _write(self, work: Callable[[Session], _T]) -> _T:
        """Do `work` in one transaction, committed on return; again while `patience` says so."""
        while True:
            try:
                with self.writing() as session:
                    return work(session)
            except DatabaseUnavailableError as error:
                self._ids = {}
                if self._is_file:
                    self._engine.dispose()  # what a failed transaction left in its connection
                if self.patience is None or not self.patience(error):
                    raise

    def add_workloads(self, workloads: Iterable[WorkloadRecord]) -> None:
        """Add the workloads that are not in the database yet."""
        rows = [
            {"key": record.key, "name": record.name, "kernel": record.kernel}
            for record in workloads
        ]
        self._add(schema.Workload, rows)

    def add_targets(self, targets: Iterable[TargetRecord]) -> None:
        """Add the targets that are not in the database yet."""
        rows = [{"key": record.key, "description": record.description} for record in targets]
        self._add(schema.Target, rows)

    def _add(self, model: type[schema.Base], rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            self._write(lambda session: session.execute(_insert_new(model), rows))

    def record_trials(self, trials: Iterable[TrialRecord]) -> int:
        """Add the trials in one transaction, committed on return; how many were new.

        A trial that is in the database already (same key, schedule and request) is left as it is.
        Raises DatabaseError, and adds none, if a workload, target or job is not in the database
        or a trial cannot be kept: an ok one without a latency, values that are not JSON.
        """
        records = list(trials)
        found: dict[tuple[str, object], int] = {}

        def add(session: Session) -> int:
            ids = RowIds(session, self._ids)
            rows = [trial_values(ids, record) for record in records]
            result = session.connection().execute(_insert_new(schema.Trial), rows)
            assert isinstance(result, CursorResult)
            found.update(ids.known)
            return result.rowcount

        if not records:
            return 0
        try:
            added = self._write(add)
        except Exception:
            self._ids = {}  # what was rolled back is not there, nor perhaps what others deleted
            raise
        self._ids = found
        return added

    def delete_trials(self, numbers: Iterable[int]) -> int:
        """Delete the trials with these numbers, all in one transaction; how many there were.

        Raises DatabaseError, and deletes none, if a job has settled on one of them.
        """
        wanted = list(numbers)

        def remove(session: Session) -> int:
            count = 0
            for start in range(0, len(wanted), _DELETED_AT_ONCE):
                batch = wanted[start : start + _DELETED_AT_ONCE]
                statement = delete(schema.Trial).where(schema.Trial.id.in_(batch))
                count += session.connection().execute(statement).rowcount
            return count

        return self._write(remove) if wanted else 0

    def compact(self) -> None:
        """Give the space of deleted rows back to the file system; needs as much for a moment."""
        with _translated(self.name):
            sqlite_file.compact(self._engine)

    def record_bests(self, bests: Iterable[BestRecord]) -> None:
        """Add what a job settled, all in one transaction; what is there already stays as it is.

        Raises DatabaseError, and adds none, if a trial or job is not in the database.
        """
        records = list(bests)

        def add(session: Session) -> None:
            ids = RowIds(session)
            rows = [best_values(ids, record) for record in records]
            session.execute(_insert_new(schema.Best), rows)

        if records:
            self._write(add)

    def start_job(
        self, model_name: str, model_hash: str, settings: Any, tasks: Sequence[JobTask] = ()
    ) -> JobRecord:
        """Add a job in the state "running"."""
        now = time.time()
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
        self.add_jobs([record])
        return record

    def add_jobs(self, jobs: Iterable[JobRecord]) -> None:
        """Add the jobs that are not in the database yet, with their tasks."""
        records = list(jobs)

        def add(session: Session) -> None:
            ids = RowIds(session)
            for record in records:
                add_job(session, ids, record)

        self._write(add)

    def update_job(self, job: str, progress: Any) -> None:
        """Replace the job's progress."""

        def update(session: Session) -> None:
            row = job_row(session, job)
            row.progress = progress
            row.updated = time.time()
            row.checksum = checksum_of(row)

        self._write(update)

    def finish_job(self, job: str, state: JobState, progress: Any = None) -> None:
        """Set the job's final state, and its progress unless that is None."""
        if state not in JOB_STATES:
            raise DatabaseError(f"no such state of a job: {state!r}")

        def finish(session: Session) -> None:
            row = job_row(session, job)
            row.state = state
            row.updated = row.finished = time.time()
            if progress is not None:
                row.progress = progress
            row.checksum = checksum_of(row)

        self._write(finish)

    def record_builds(self, builds: Iterable[BuildRecord]) -> None:
        """Add the builds that are not in the database yet, all in one transaction.

        Raises DatabaseError, and adds none, if a target is not in the database.
        """
        records = list(builds)

        def add(session: Session) -> None:
            ids = RowIds(session)
            rows = [build_values(ids, record) for record in records]
            session.execute(_insert_new(schema.Build), rows)

        if records:
            self._write(add)

    def _prepare(self, path: Path | None, migrations: Path) -> None:
        """Check the file, then bring it to this version's schema."""
        size = path.stat().st_size if path is not None and path.exists() else 0
        if path is not None and size:
            names = [table.name for table in _SMALL_TABLES]
            problems = sqlite_file.check_structure(self._engine, size, names)
            if problems:
                raise sqlite_file.damaged(path, problems[0])
        if not self.read_only:
            sqlite_file.set_journal_mode(self._engine)
        with self._engine.connect() as connection:
            revision = schema_revision(connection)
        if revision == schema.REVISION and path is not None:
            self._check_small_tables(path)
        if migrations == MIGRATIONS and revision == schema.REVISION:
            return
        known = known_revisions(migrations)
        if revision == known[0]:
            return
        if revision is not None and revision not in known:
            raise DatabaseError(
                f"{self.name} has schema {revision}, newer than this version's {known[0]}",
                hint="upgrade tunefarm",
            )
        if self.read_only:
            raise DatabaseError(
                f"{self.name} has schema {revision}, older than this version's {known[0]}",
                hint="upgrade it with: tune db upgrade",
            )
        self._migrate(path, migrations)

    def _check_small_tables(self, path: Path) -> None:
        """Everything but the trials, which are checked when they are read."""
        with self.reading() as session:
            for table in _SMALL_TABLES:
                for name, problem, _ in examined(session, table):
                    if problem:
                        raise sqlite_file.damaged(path, f"{table.name} {name}: {problem}")

    def _migrate(self, path: Path | None, migrations: Path) -> None:
        """Create or upgrade the schema: all of it or nothing, once if several processes try."""
        with self._writer.begin() as connection:
            revision = schema_revision(connection)
            tables = inspect(connection).get_table_names()
            if revision is None and tables:
                raise DatabaseError(f"{self.name} has tables but no schema version")
            if revision is not None and path is not None:
                _back_up(self._engine, path, revision)
            if revision is None:
                connection.exec_driver_sql(f"PRAGMA application_id = {sqlite_file.APPLICATION_ID}")
            migrate(connection, migrations)


def _insert_new(model: type[schema.Base]) -> Insert:
    """Insert rows, leaving those as they are that are there already."""
    return insert(model).on_conflict_do_nothing()


def _parse(path_or_url: str | Path) -> Path | None:
    """The file that is meant; None for a database in memory."""
    if isinstance(path_or_url, Path):
        return path_or_url
    location: str | None = path_or_url
    if "://" in path_or_url:
        try:
            url = make_url(path_or_url)
        except ArgumentError as error:
            raise DatabaseError(f"not a database URL: {path_or_url}") from error
        if url.get_backend_name() != "sqlite":
            raise DatabaseError(
                f"databases of kind {url.get_backend_name()} are not supported",
                hint="give a file name",
            )
        location = url.database
    if location in (None, "", ":memory:") and path_or_url:
        return None
    if not location or "\0" in location:
        raise DatabaseError(f"{path_or_url!r} is not a file name")
    return Path(location)


def _check_path(path: Path, *, create: bool) -> None:
    try:
        sqlite_file.check_file(path)
        if path.exists() and (create or path.stat().st_size):
            return
        if not create:
            raise DatabaseError(f"no such database: {path}", hint="tune --model makes one")
        if not path.parent.is_dir():
            raise DatabaseError(f"cannot create {path}: its folder does not exist")
    except OSError as error:
        raise DatabaseError(f"cannot open {path}: {error.strerror or error}") from error


def _back_up(engine: Engine, path: Path, revision: str) -> None:
    """Copy the file beside itself, under a name that is free."""
    number = 0
    while True:
        suffix = f".{number}" if number else ""
        try:
            sqlite_file.back_up(engine, path.with_name(f"{path.name}.{revision}{suffix}.backup"))
        except FileExistsError:
            number += 1
        except OSError as error:
            raise DatabaseError(
                f"cannot back up {path} before its upgrade: {error.strerror or error}"
            ) from error
        else:
            return


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """Turn the database library's errors into DatabaseErrors that name the database."""
    try:
        yield
    except StatementError as error:
        reason = str(error.orig or error).splitlines()[0]
        if sqlite_file.may_pass(error.orig):
            raise DatabaseUnavailableError(f"{name}: {reason}") from error
        raise DatabaseError(f"{name}: {reason}") from error
    except sqlite_file.SqliteError as error:
        raise DatabaseError(f"{name}: {error}") from error
    except UnicodeDecodeError as error:
        raise DatabaseError(f"{name} is damaged: {sqlite_file.NOT_TEXT}") from error
    except json.JSONDecodeError as error:
        raise DatabaseError(f"{name} holds a damaged record: {error}") from error
