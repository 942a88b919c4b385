"""What is asked of a store. Every function is one short read; results are plain values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, Select, case, func, literal_column, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from db import schema
from db.records import (
    OK,
    BestRecord,
    JobRecord,
    JobTask,
    TargetRecord,
    TaskKey,
    TrialRecord,
    WorkloadRecord,
)
from db.store import Store


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """What the database knows of one task. `best_latency` is in seconds, None if none is ok."""

    key: TaskKey
    workload_name: str
    trials: int
    ok_trials: int
    best_latency: float | None
    last_created: float


def best_trial(store: Store, key: TaskKey) -> TrialRecord | None:
    """The ok trial with the lowest latency, the older one of two equals."""
    return best_trials(store, [key]).get(key)


def best_trials(store: Store, keys: Iterable[TaskKey]) -> dict[TaskKey, TrialRecord]:
    """`best_trial` of each key that has one."""
    best = {}
    with store.reading() as session:
        for key in keys:
            row = session.execute(_trials().where(schema.Trial.id == _fastest(key))).first()
            if row is not None:
                best[key] = _trial(row)
    return best


def best(store: Store, key: TaskKey) -> tuple[BestRecord, TrialRecord] | None:
    """What the newest job that settled the task chose, and its trial."""
    with store.reading() as session:
        newest = (
            select(schema.Best, schema.Job.uid)
            .join(schema.Job, schema.Job.id == schema.Best.job_id)
            .where(_task_id(schema.Best.task_id, key))
            .order_by(schema.Best.id.desc())
            .limit(1)
        )
        found = session.execute(newest).first()
        if found is None:
            return None
        row, job_id = found
        trial = _trial(session.execute(_trials().where(schema.Trial.id == row.trial_id)).one())
        return _best(row, job_id, trial), trial


def trial_of(store: Store, best: BestRecord) -> TrialRecord | None:
    """The trial that a best names."""
    with store.reading() as session:
        named = _trials().where(
            _of_task(best.key),
            schema.Trial.schedule_hash == best.schedule_hash,
            schema.Trial.request_id == best.request_id,
        )
        row = session.execute(named).first()
        return None if row is None else _trial(row)


def iterate_bests(store: Store) -> Iterator[BestRecord]:
    """Everything that was settled, in the order it was."""
    with store.reading() as session:
        rows = session.execute(
            select(schema.Best, schema.Job.uid)
            .join(schema.Job, schema.Job.id == schema.Best.job_id)
            .order_by(schema.Best.id)
        ).all()
        found = []
        for row, job_id in rows:
            trial = session.execute(_trials().where(schema.Trial.id == row.trial_id)).one()
            found.append(_best(row, job_id, _trial(trial)))
    yield from found


def trials_of_bests(store: Store) -> set[int]:
    """Numbers of the trials that jobs have settled on."""
    with store.reading() as session:
        return set(session.scalars(select(schema.Best.trial_id).distinct()))


def measured_hashes(store: Store, key: TaskKey) -> set[str]:
    """Hashes of all schedules of which a trial is recorded, whatever its status."""
    with store.reading() as session:
        hashes = select(schema.Trial.schedule_hash).where(_of_task(key))
        return set(session.scalars(hashes.distinct()))


def trials(
    store: Store, key: TaskKey, *, only_ok: bool = False, limit: int | None = None
) -> list[TrialRecord]:
    """Trials of a task in the order they were recorded; with `limit` the newest ones."""
    with store.reading() as session:
        return _newest(session, _trials().where(_of_task(key)), only_ok, limit)


def trials_of_target(
    store: Store, target: str, *, only_ok: bool = False, limit: int | None = None
) -> list[TrialRecord]:
    """Trials of all tasks of a target, to start a cost model from; order as in `trials`."""
    with store.reading() as session:
        tasks = (
            select(schema.Task.id)
            .join(schema.Target, schema.Target.id == schema.Task.target_id)
            .where(schema.Target.key == target)
        )
        statement = _trials().where(schema.Trial.task_id.in_(tasks))
        return _newest(session, statement, only_ok, limit)


def iterate_trials(store: Store) -> Iterator[TrialRecord]:
    """All trials in the order they were recorded, a batch at a time."""
    last = 0
    while True:
        with store.reading() as session:
            page = _trials().where(schema.Trial.id > last).order_by(schema.Trial.id).limit(1000)
            records = [_trial(row) for row in session.execute(page)]
        if not records:
            return
        yield from records
        last = records[-1].number or last


def trial(store: Store, number: int) -> TrialRecord | None:
    """The trial with this number."""
    with store.reading() as session:
        row = session.execute(_trials().where(schema.Trial.id == number)).first()
        return None if row is None else _trial(row)


def count_trials(store: Store, key: TaskKey | None = None) -> dict[str, int]:
    """Number of trials by status, of one task or of all."""
    with store.reading() as session:
        statement = select(schema.Trial.status, func.count()).group_by(schema.Trial.status)
        if key is not None:
            statement = statement.where(_of_task(key))
        return {row[0]: row[1] for row in session.execute(statement)}


def workloads(store: Store, keys: Sequence[str] | None = None) -> dict[str, WorkloadRecord]:
    """Workloads by key: those of `keys` that are known, or all."""
    statement = select(schema.Workload).order_by(schema.Workload.id)
    if keys is not None:
        statement = statement.where(schema.Workload.key.in_(keys))
    with store.reading() as session:
        return {
            row.key: WorkloadRecord(row.key, row.name, row.kernel)
            for row in session.scalars(statement)
        }


def targets(store: Store) -> dict[str, TargetRecord]:
    """All targets by key."""
    with store.reading() as session:
        rows = session.scalars(select(schema.Target).order_by(schema.Target.id))
        return {row.key: TargetRecord(row.key, row.description) for row in rows}


def jobs(
    store: Store, *, model_hash: str | None = None, limit: int | None = None
) -> list[JobRecord]:
    """Jobs, of one model or of all, newest first."""
    statement = select(schema.Job).order_by(schema.Job.started.desc(), schema.Job.id.desc())
    if model_hash is not None:
        statement = statement.where(schema.Job.model_hash == model_hash)
    with store.reading() as session:
        return [_job(session, row) for row in session.scalars(statement.limit(limit)).all()]


def job(store: Store, job_id: str) -> JobRecord | None:
    """The job with this id."""
    with store.reading() as session:
        row = session.scalar(select(schema.Job).filter_by(uid=job_id))
        return None if row is None else _job(session, row)


def summary(store: Store, workload: str | None = None) -> list[TaskSummary]:
    """One line per task that has trials, of one workload or of all."""
    statement = (
        select(
            *_KEY,
            schema.Workload.name,
            func.count(),
            func.sum(case((_IS_OK, 1), else_=0)),
            func.min(case((_IS_OK, schema.Trial.latency))),
            func.max(schema.Trial.created),
        )
        .select_from(schema.Trial)
        .join(schema.Task, schema.Task.id == schema.Trial.task_id)
        .join(schema.Workload, schema.Workload.id == schema.Task.workload_id)
        .join(schema.Target, schema.Target.id == schema.Task.target_id)
        .group_by(schema.Task.id, schema.Workload.id, schema.Target.id)
        .order_by(schema.Task.id)
    )
    if workload is not None:
        statement = statement.where(schema.Workload.key == workload)
    with store.reading() as session:
        return [TaskSummary(TaskKey(*row[:5]), *row[5:]) for row in session.execute(statement)]


_KEY = (
    schema.Workload.key,
    schema.Target.key,
    schema.Task.threads,
    schema.Task.numerics,
    schema.Task.compiler_version,
)


_IS_OK = schema.Trial.status == literal_column(f"'{OK}'")
"""Written out, because a partial index is not used for a bound parameter."""


def _of_task(key: TaskKey) -> ColumnElement[bool]:
    return _task_id(schema.Trial.task_id, key)


def _task_id(column: InstrumentedAttribute[int], key: TaskKey) -> ColumnElement[bool]:
    task = (
        select(schema.Task.id)
        .join(schema.Workload, schema.Workload.id == schema.Task.workload_id)
        .join(schema.Target, schema.Target.id == schema.Task.target_id)
        .where(
            schema.Workload.key == key.workload,
            schema.Target.key == key.target,
            schema.Task.threads == key.threads,
            schema.Task.numerics == key.numerics,
            schema.Task.compiler_version == key.compiler_version,
        )
    )
    return column == task.scalar_subquery()


def _fastest(key: TaskKey) -> ScalarSelect[int]:
    return (
        select(schema.Trial.id)
        .where(_of_task(key), _IS_OK)
        .order_by(schema.Trial.latency, schema.Trial.id)
        .limit(1)
        .scalar_subquery()
    )


def _trials() -> Select[Any]:
    return (
        select(schema.Trial, schema.Machine.description, schema.Job.uid, *_KEY)
        .join(schema.Task, schema.Task.id == schema.Trial.task_id)
        .join(schema.Workload, schema.Workload.id == schema.Task.workload_id)
        .join(schema.Target, schema.Target.id == schema.Task.target_id)
        .join(schema.Machine, schema.Machine.id == schema.Trial.machine_id)
        .outerjoin(schema.Job, schema.Job.id == schema.Trial.job_id)
    )


def _newest(
    session: Session, statement: Select[Any], only_ok: bool, limit: int | None
) -> list[TrialRecord]:
    if only_ok:
        statement = statement.where(_IS_OK)
    newest_first = statement.order_by(schema.Trial.id.desc()).limit(limit)
    return [_trial(row) for row in reversed(session.execute(newest_first).all())]


def _trial(result: Any) -> TrialRecord:
    row, machine, job_id, *key = result
    assert isinstance(row, schema.Trial)
    return TrialRecord(
        key=TaskKey(*key),
        request_id=row.request_id,
        sketch=row.sketch,
        choices=row.choices,
        schedule=row.schedule,
        status=row.status,
        latency=row.latency,
        samples=tuple(row.samples),
        error=row.error,
        build_seconds=row.build_seconds,
        check_seconds=row.check_seconds,
        run_seconds=row.run_seconds,
        machine=machine,
        conditions=row.conditions,
        job=job_id,
        created=row.created,
        number=row.id,
    )


def _best(row: schema.Best, job_id: str, trial: TrialRecord) -> BestRecord:
    return BestRecord(
        key=trial.key,
        schedule_hash=trial.schedule_hash,
        request_id=trial.request_id,
        default_latency=row.default_latency,
        ratio=row.ratio,
        low=row.low,
        high=row.high,
        met=tuple(row.met),
        job=job_id,
        created=row.created,
    )


def _job(session: Session, row: schema.Job) -> JobRecord:
    tasks = session.execute(
        select(schema.JobTask, *_KEY)
        .join(schema.Task, schema.Task.id == schema.JobTask.task_id)
        .join(schema.Workload, schema.Workload.id == schema.Task.workload_id)
        .join(schema.Target, schema.Target.id == schema.Task.target_id)
        .where(schema.JobTask.job_id == row.id)
        .order_by(schema.JobTask.position)
    )
    return JobRecord(
        id=row.uid,
        model_name=row.model_name,
        model_hash=row.model_hash,
        settings=row.settings,
        state=row.state,
        started=row.started,
        updated=row.updated,
        finished=row.finished,
        progress=row.progress,
        tasks=tuple(JobTask(TaskKey(*found[1:]), found[0].occurrences) for found in tasks),
    )
