"""Where records come from: imports, merges and packs, of which the last one can be undone.

What a database's own jobs write has no addition. What comes from elsewhere has the number of one,
so that a build knows it apart, and `roll_back` finds it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy import CursorResult, delete, exists, select
from sqlalchemy.orm import Session

from tunefarm.configs.clock import steady_time
from tunefarm.configs.errors import DatabaseError
from tunefarm.db import schema
from tunefarm.db.store import Store

AdditionKind: TypeAlias = Literal["import", "merge", "pack"]

_BROUGHT: tuple[type[schema.Brought], ...] = (
    schema.Best,
    schema.Trial,
    schema.Build,
    schema.Plan,
    schema.Latency,
    schema.Job,
)
"""What rows an addition brings, those that refer to others first."""


@dataclass(frozen=True, slots=True)
class Addition:
    """An import, a merge or a pack, and where it came from; `finished` is None if it was broken
    off, or is under way."""

    number: int
    kind: str
    source: str
    started: float
    finished: float | None

    def __str__(self) -> str:
        return f"the {self.kind} of {self.source}"


def additions(store: Store) -> dict[int, Addition]:
    """All of them by number, the oldest first."""
    with store.reading() as session:
        rows = session.scalars(select(schema.Addition).order_by(schema.Addition.id))
        return {row.id: _addition(row) for row in rows}


@contextmanager
def bringing(store: Store, kind: AdditionKind, source: str) -> Iterator[int]:
    """The number that records of `source` are added with while the block runs.

    One that was broken off goes on with its number. Nothing is left of one that brought nothing.
    """

    def begin(session: Session) -> int:
        newest = session.scalar(select(schema.Addition).order_by(schema.Addition.id.desc()))
        same = newest is not None and (newest.kind, newest.source) == (kind, source)
        if newest is not None and same and newest.finished is None:
            return newest.id
        row = schema.Addition(kind=kind, source=source, started=steady_time(), finished=None)
        session.add(row)
        session.flush()
        return row.id

    number = store.write(begin)
    try:
        yield number
    except BaseException:
        store.write(lambda session: _drop_if_empty(session, number))
        raise
    store.write(lambda session: _finish(session, number))


def _finish(session: Session, number: int) -> None:
    row = session.get_one(schema.Addition, number)
    row.finished = steady_time()
    session.flush()
    _drop_if_empty(session, number)


def _drop_if_empty(session: Session, number: int) -> None:
    brought = (exists().where(table.addition_id == number) for table in _BROUGHT)
    if not any(session.scalar(select(one)) for one in brought):
        session.execute(delete(schema.Addition).where(schema.Addition.id == number))


@dataclass(frozen=True, slots=True)
class RolledBack:
    """An addition that was undone, and how many rows of each table went with it."""

    addition: Addition
    rows: Counter[str]


def roll_back(store: Store) -> RolledBack:
    """Delete what the last addition brought: builds are what they were before, but for what a check
    has measured here since. Kernels, targets and machines that nothing else refers to go with it.

    Raises DatabaseError, and changes nothing, if there is no addition, or a job has since recorded
    something for a job, or settled on a trial, that came with it.
    """

    def roll_back(session: Session) -> RolledBack:
        row = session.scalar(select(schema.Addition).order_by(schema.Addition.id.desc()).limit(1))
        if row is None:
            raise DatabaseError(
                f"{store.name}: nothing was imported, merged or added that could be undone",
                hint="what this database's own jobs recorded stays",
            )
        addition = _addition(row)
        _refuse_needed(session, store.name, addition)
        rows = Counter(dict(_delete_brought(session, addition.number)))
        session.execute(delete(schema.Addition).where(schema.Addition.id == addition.number))
        return RolledBack(addition, +rows)

    try:
        return store.write(roll_back)
    finally:
        store.forget_ids()


def _refuse_needed(session: Session, name: str, addition: Addition) -> None:
    """Raise DatabaseError if the database's own rows, or earlier ones, refer to those that go."""
    trials = select(schema.Trial.id).where(schema.Trial.addition_id == addition.number)
    jobs = select(schema.Job.id).where(schema.Job.addition_id == addition.number)
    needed: Sequence[tuple[type[schema.Brought], Any]] = (
        (schema.Best, schema.Best.trial_id.in_(trials)),
        (schema.Best, schema.Best.job_id.in_(jobs)),
        (schema.Trial, schema.Trial.job_id.in_(jobs)),
        (schema.Latency, schema.Latency.job_id.in_(jobs)),
    )
    for table, refers in needed:
        kept = table.addition_id.is_distinct_from(addition.number)
        if session.scalar(select(exists().where(kept, refers))):
            raise DatabaseError(
                f"{name}: {addition} cannot be undone: a job has gone on from what it brought",
                hint="tune db export writes everything to a file; nothing was changed",
            )


def _delete_brought(session: Session, number: int) -> Iterator[tuple[str, int]]:
    """Delete an addition's rows, then what only they referred to."""
    tasks = set(session.scalars(select(schema.Trial.task_id).filter_by(addition_id=number)))
    machines = set(session.scalars(select(schema.Trial.machine_id).filter_by(addition_id=number)))
    machines |= set(
        session.scalars(select(schema.Latency.machine_id).filter_by(addition_id=number))
    )
    targets = set(session.scalars(select(schema.Plan.target_id).filter_by(addition_id=number)))
    jobs = select(schema.Job.id).where(schema.Job.addition_id == number)
    tasks |= set(
        session.scalars(select(schema.JobTask.task_id).where(schema.JobTask.job_id.in_(jobs)))
    )
    for child in (schema.JobTask, schema.Lease, schema.Request, schema.Claim):
        session.execute(delete(child).where(child.job_id.in_(jobs)))
    for table in _BROUGHT:
        statement = delete(table).where(table.addition_id == number)
        yield table.__tablename__, _count(session.execute(statement))
    used = {row.id: (row.workload_id, row.target_id) for row in _rows(session, schema.Task, tasks)}
    _delete_orphans(session, schema.Task, set(used))
    _delete_orphans(session, schema.Workload, {workload for workload, _ in used.values()})
    _delete_orphans(session, schema.Target, targets | {target for _, target in used.values()})
    _delete_orphans(session, schema.Machine, machines)


def _rows(session: Session, table: Any, numbers: set[int]) -> Sequence[Any]:
    return session.scalars(select(table).where(table.id.in_(numbers))).all()


def _delete_orphans(session: Session, table: Any, numbers: set[int]) -> None:
    """Delete those of these rows that no row refers to."""
    referring = [
        column
        for other in schema.Base.metadata.sorted_tables
        for column in other.columns
        if any(key.column.table is table.__table__ for key in column.foreign_keys)
    ]
    free = [~exists().where(column == table.id) for column in referring]
    session.execute(
        delete(table)
        .where(table.id.in_(numbers), *free)
        .execution_options(synchronize_session=False)
    )


def _count(result: Any) -> int:
    assert isinstance(result, CursorResult)
    return result.rowcount


def _addition(row: schema.Addition) -> Addition:
    return Addition(row.id, row.kind, row.source, row.started, row.finished)
