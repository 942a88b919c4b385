"""What is asked of a store about tasks and jobs: each function one short read of plain values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Select, exists, func, select
from sqlalchemy.orm import Session, aliased

from tunefarm.db import schema, statements
from tunefarm.db.checksum import damaged_row
from tunefarm.db.processes import is_lost
from tunefarm.db.raw_rows import intact_rows
from tunefarm.db.records import (
    LOST_TO_NOISE,
    OK,
    BestRecord,
    JobRecord,
    JobTask,
    TargetRecord,
    TaskKey,
    TrialRecord,
    WorkloadRecord,
)
from tunefarm.db.rows import job_row, record_of
from tunefarm.db.store import Store

_NUMBERS_AT_ONCE = 500
_NOTHING: Mapping[str, object] = {}
_OF_TASKS = (schema.Trial, schema.Best)
_OUT_OF_ORDER = 64
"""A transaction may commit trials with lower numbers than those that others have committed."""


@dataclass(frozen=True, slots=True)
class TaskSummary:
    """What the database knows of one task. `best_latency` is in seconds, None if none is ok.

    Trials that were lost to noise, `scattered` ones, have not `failed`.
    """

    key: TaskKey
    workload_name: str
    trials: int
    failed: int
    scattered: int
    best_latency: float | None
    last_created: float


class _Totals(NamedTuple):
    """The figures of a TaskSummary, in its order."""

    trials: int
    failed: int
    scattered: int
    best: float | None
    last: float


_NO_TRIALS = _Totals(0, 0, 0, None, -math.inf)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where trials and verdicts come from: an addition (None: this database's own jobs and checks),
    and the machines that measured them, by their numbers."""

    addition: int | None
    machines: tuple[int, ...]

    @property
    def parameters(self) -> dict[str, object]:
        """Of the statements that ask for one."""
        return {"addition": self.addition, "machines": list(self.machines)}


def machines(store: Store) -> dict[int, Mapping[str, Any]]:
    """The fingerprints of the machines that measured, by their numbers."""
    with store.reading() as session:
        rows = session.scalars(select(schema.Machine).order_by(schema.Machine.id))
        return {row.id: row.description for row in rows}


def own(store: Store) -> Origin:
    """This database's own jobs and checks, wherever they measured."""
    return Origin(None, tuple(machines(store)))


class OriginOfTask(NamedTuple):
    """An addition and a machine that ok trials of a task are from, the newest one's number, and how
    many there are."""

    addition: int | None
    machine: int
    newest: int
    trials: int


def origins(store: Store, key: TaskKey) -> list[OriginOfTask]:
    """Where a task's ok trials are from, the one with the newest first."""
    with store.reading() as session:
        rows = session.execute(statements.ORIGINS, statements.key_of(key))
        return sorted((OriginOfTask(*row) for row in rows), key=lambda one: -one.newest)


def statuses(store: Store, key: TaskKey, origin: Origin) -> dict[str, int]:
    """How many schedules were measured there with each result: ok if one of its trials was, else
    that of its newest trial."""
    parameters = {**statements.key_of(key), **origin.parameters}
    found: dict[str, str] = {}
    with store.reading() as session:
        for hash, status in session.execute(statements.STATUSES_OF_ORIGIN, parameters):
            if found.get(hash) != OK:
                found[hash] = status
    return dict(Counter(found.values()))


def schedules(store: Store, key: TaskKey, origin: Origin) -> set[str]:
    """The hashes of the schedules that were measured there, whatever came of it."""
    parameters = {**statements.key_of(key), **origin.parameters}
    with store.reading() as session:
        return set(session.scalars(statements.SCHEDULES_OF_ORIGIN, parameters))


def damaged(store: Store, workload: str | None = None) -> dict[str, str]:
    """The rows that are left out, all or the records of a workload, by name, and what is wrong."""
    if workload is None:
        chosen = {name: set(rows) for name, rows in store.damaged.items()}
    else:
        chosen = {table.__tablename__: _left_of(store, table, workload) for table in _OF_TASKS}
    return {
        f"{name} {number}": problem
        for name, rows in store.damaged.items()
        for number, problem in rows.items()
        if number in chosen.get(name, ())
    }


def _left_of(
    store: Store, model: type[schema.Trial] | type[schema.Best], workload: str
) -> set[int]:
    """The numbers of those rows of a workload that are left out, by what they say they are of."""
    numbers = store.damaged.get(model.__tablename__)
    if not numbers:
        return set()
    row, task, kernel = (each.__table__.c for each in (model, schema.Task, schema.Workload))
    statement = select(row.id).where(
        row.id.in_(list(numbers)),
        row.task_id == task.id,
        task.workload_id == kernel.id,
        kernel.key == workload,
    )
    with store.reading() as session:
        return set(session.scalars(statement))


def leave_trial(store: Store, number: int, problem: str) -> None:
    """Read as if a trial, and what jobs have settled on it, were not there."""
    with store.reading() as session:
        of_trial = select(schema.Best.id).where(schema.Best.trial_id == number)
        bests = list(session.scalars(of_trial))
    store.leave("trials", {number: problem})
    store.leave("bests", dict.fromkeys(bests, f"trials {number}, which it refers to, {problem}"))


def best(
    store: Store, key: TaskKey, origin: Origin | None = None
) -> tuple[BestRecord, TrialRecord] | None:
    """What the newest job that settled the task chose, and its trial; of all, or of one origin."""
    statement, parameters = statements.NEWEST_BEST, statements.key_of(key)
    if origin is not None:
        statement = statements.NEWEST_BEST_OF_ORIGIN
        parameters |= origin.parameters
    with store.reading() as session:
        found = session.execute(statement, parameters).first()
        return None if found is None else _settled(session, found)


def trial_of(store: Store, best: BestRecord) -> TrialRecord | None:
    """The trial that a best names."""
    named = statements.OF_TASK.where(
        schema.Trial.schedule_hash == best.schedule_hash,
        schema.Trial.request_id == best.request_id,
    )
    return next(iter(_read_trials(store, named, best.key)), None)


def iterate_bests(store: Store) -> Iterator[BestRecord]:
    """Everything that was settled, in the order it was."""
    with store.reading() as session:
        rows = session.execute(statements.BESTS.order_by(schema.Best.id)).all()
        found = [_settled(session, row)[0] for row in rows]
    yield from found


def trials_of_bests(store: Store) -> set[int]:
    """Numbers of the trials that jobs have settled on."""
    with store.reading() as session:
        return set(session.scalars(select(schema.Best.trial_id).distinct()))


def finalists(store: Store, key: TaskKey, origin: Origin | None = None) -> list[TrialRecord]:
    """The task's trials that were measured side by side, in the order they were recorded."""
    if origin is None:
        return _read_trials(store, statements.FINALISTS, key)
    return _read_trials(store, statements.FINALISTS_OF_ORIGIN, key, origin.parameters)


def fastest_trial(store: Store, key: TaskKey) -> TrialRecord | None:
    """The fastest ok trial."""
    with store.reading() as session:
        found = session.scalar(statements.FASTEST, statements.key_of(key))
        if found is None:
            return None
        return _trial(session.execute(statements.NUMBERED, {"number": found}).one())


class TrialSummary(NamedTuple):
    """The columns of a trial that say whether its schedule may be the one to apply."""

    number: int
    schedule_hash: str
    status: str
    latency: float | None
    reference: str | None
    low: float | None
    high: float | None


def contenders(
    store: Store,
    key: TaskKey,
    most: int,
    *,
    after: int = 0,
    without: Collection[str] = (),
    origin: Origin | None = None,
) -> list[TrialSummary]:
    """The trials of the schedules that have one of the `most` fastest ok trials, in their order.

    Only trials that were recorded after the one numbered `after` count, and schedules without the
    hashes `without`. Their checksums are not looked at: read what comes of it by `numbered`.
    """
    parameters = {**statements.key_of(key), "after": after, "most": most}
    if origin is not None:
        parameters |= origin.parameters
    if without:
        statement = statements.contenders(without, of_origin=origin is not None)
    else:
        is_all = origin is None
        statement = statements.CONTENDERS if is_all else statements.CONTENDERS_OF_ORIGIN
    with store.reading() as session:
        rows = session.execute(statement, parameters)
        return [TrialSummary(*row) for row in rows]


def numbered(store: Store, numbers: Sequence[int]) -> list[TrialRecord]:
    """The trials with these numbers, in their order; a few at once."""
    if not numbers:
        return []
    with store.reading() as session:
        if len(numbers) == 1:
            rows = session.execute(statements.NUMBERED, {"number": numbers[0]})
        else:
            rows = session.execute(statements.SOME, {"numbers": list(numbers)})
        return [_trial(row) for row in rows]


def trials(store: Store, key: TaskKey, *, limit: int | None = None) -> list[TrialRecord]:
    """Trials of a task in the order they were recorded; with `limit` the newest ones."""
    newest_first = statements.OF_TASK.order_by(schema.Trial.id.desc()).limit(limit)
    return _read_trials(store, newest_first, key)[::-1]


def some_trials(
    store: Store,
    key: TaskKey,
    *,
    fastest: int,
    newest: int,
    schedule_hash: str,
) -> list[TrialRecord]:
    """All trials of the schedules that have one of so many fastest, so many of the newest trials,
    and those of one schedule; in order."""
    of_task = select(schema.Trial.id).where(statements.IS_OF_TASK)
    key_values = statements.key_of(key)
    parts = (
        of_task.order_by(schema.Trial.id.desc()).limit(newest),
        of_task.where(schema.Trial.schedule_hash == schedule_hash),
    )
    with store.reading() as session:
        found = session.execute(statements.CONTENDERS, {**key_values, "after": 0, "most": fastest})
        numbers = sorted(
            {row.id for row in found}
            | {n for part in parts for n in session.scalars(part, key_values)}
        )
        rows: list[Any] = []
        for start in range(0, len(numbers), _NUMBERS_AT_ONCE):
            batch = numbers[start : start + _NUMBERS_AT_ONCE]
            rows += session.execute(statements.SOME, {"numbers": batch})
        return [_trial(row) for row in rows]


def tasks(store: Store, *, only_ok: bool = False) -> list[TaskKey]:
    """The tasks that have trials (or ok ones), in the order in which they were first seen."""
    trial = exists().where(schema.Trial.task_id == schema.Task.id)
    trial = trial.where(statements.IS_OK) if only_ok else trial
    statement = statements.keyed(*statements.KEY).where(trial).order_by(schema.Task.id)
    with store.reading() as session:
        return [TaskKey(*row) for row in session.execute(statement)]


def tasks_of_workload(store: Store, workload: str) -> list[TaskKey]:
    """The tasks of a workload that have ok trials, those of the newest versions of the compiler
    first."""
    with store.reading() as session:
        rows = session.execute(statements.WITH_RECORDS, {"workload": workload})
        return sorted((TaskKey(*row) for row in rows), key=_newest_version_first)


def _newest_version_first(key: TaskKey) -> tuple[int, str]:
    version = key.compiler_version
    return -int(version) if version.isdecimal() else 0, version


def iterate_trials(store: Store) -> Iterator[TrialRecord]:
    """All trials in the order they were recorded, a batch at a time."""
    last = 0
    while True:
        with store.reading() as session:
            page = (
                statements.trials()
                .where(schema.Trial.id > last)
                .order_by(schema.Trial.id)
                .limit(1000)
            )
            records = [_trial(row) for row in session.execute(page)]
        if not records:
            return
        yield from records
        last = records[-1].number or last


def last_trial(store: Store) -> int:
    """The number of the newest trial, 0 if there is none."""
    with store.reading() as session:
        return session.scalar(statements.LAST) or 0


def trials_of_others(
    store: Store, keys: Collection[TaskKey], *, job: str, after: int
) -> tuple[int, list[TrialRecord]]:
    """The number of the newest trial, and the trials of these tasks that other jobs recorded since
    the one numbered `after`: some earlier ones too, of a server that numbers them out of order."""
    with store.reading() as session:
        last = session.scalar(statements.LAST) or 0
        if last <= after:
            return last, []
        first = after if session.get_bind().dialect.name == "sqlite" else after - _OUT_OF_ORDER
        others = schema.Job.uid.is_(None) | (schema.Job.uid != job)
        rows = session.execute(
            statements.trials().where(schema.Trial.id > first, others).order_by(schema.Trial.id)
        )
        return last, [record for record in map(_trial, rows) if record.key in keys]


def trials_of_schedules(store: Store, key: TaskKey, hashes: Sequence[str]) -> list[TrialRecord]:
    """The trials of a task's schedules with these hashes, in the order they were recorded."""
    of_these = statements.OF_TASK.where(schema.Trial.schedule_hash.in_(hashes)).order_by(
        schema.Trial.id
    )
    return _read_trials(store, of_these, key)


def count_trials(store: Store, key: TaskKey | None = None) -> dict[str, int]:
    """Number of trials by status, of one task or of all."""
    with store.reading() as session:
        statement = select(schema.Trial.status, func.count()).group_by(schema.Trial.status)
        if key is not None:
            statement = statement.where(statements.IS_OF_TASK)
        rows = session.execute(statement, None if key is None else statements.key_of(key))
        return {row[0]: row[1] for row in rows}


def trials_of_jobs(store: Store, jobs: Sequence[str]) -> dict[str, int]:
    """Numbers of the trials that each of these jobs has recorded, by their ids; 0 is left out."""
    statement = (
        select(schema.Job.uid, func.count())
        .join(schema.Trial, schema.Trial.job_id == schema.Job.id)
        .where(schema.Job.uid.in_(jobs))
        .group_by(schema.Job.uid)
    )
    with store.reading() as session:
        return {row[0]: row[1] for row in session.execute(statement)}


def without_reference(store: Store, numbers: Sequence[int] | None = None) -> list[int]:
    """Numbers of the trials (all, or of these) whose reference has no trial in the database."""
    reference = aliased(schema.Trial)
    is_there = exists().where(
        reference.task_id == schema.Trial.task_id,
        reference.schedule_hash == schema.Trial.reference,
    )
    gone = select(schema.Trial.id).where(schema.Trial.reference.is_not(None), ~is_there)
    if numbers is not None:
        gone = gone.where(schema.Trial.id.in_(numbers))
    with store.reading() as session:
        return list(session.scalars(gone.order_by(schema.Trial.id)))


def workloads(store: Store, keys: Sequence[str] | None = None) -> dict[str, WorkloadRecord]:
    """Workloads by key: those of `keys` that are known, or all."""
    statement = select(schema.Workload).order_by(schema.Workload.id)
    if keys is not None:
        statement = statement.where(schema.Workload.key.in_(keys))
    with store.reading() as session:
        return {row.key: record_of(WorkloadRecord, row) for row in session.scalars(statement)}


def targets(store: Store) -> dict[str, TargetRecord]:
    """All targets by key."""
    with store.reading() as session:
        rows = session.scalars(select(schema.Target).order_by(schema.Target.id))
        return {row.key: record_of(TargetRecord, row) for row in rows}


def jobs(store: Store, model_name: str | None = None) -> list[JobRecord]:
    """All jobs, or those of models of this name, newest first: by their numbers, because clocks are
    set back."""
    statement = select(schema.Job).order_by(schema.Job.id.desc())
    if model_name is not None:
        statement = statement.where(schema.Job.model_name == model_name)
    with store.reading() as session:
        return [_job(session, row) for row in session.scalars(statement).all()]


def job(store: Store, id: str) -> JobRecord:
    """The job with this id. Raises DatabaseError if there is none."""
    with store.reading() as session:
        return _job(session, job_row(session, id))


def summary(store: Store, workload: str | None = None) -> list[TaskSummary]:
    """One line per task that has trials, of one workload or of all, in the order of the tasks.

    Every trial is read for it. Raises DatabaseError if one of them, of any task, is damaged.
    """
    statement = statements.keyed(schema.Task.id, *statements.KEY, schema.Workload.name).order_by(
        schema.Task.id
    )
    if workload is not None:
        statement = statement.where(schema.Workload.key == workload)
    with store.reading() as session:
        tasks: dict[int, Any] = {row[0]: row[1:] for row in session.execute(statement)}
        totals = _totals(session)
    return [
        TaskSummary(TaskKey(*key), name, *totals[number])
        for number, (*key, name) in tasks.items()
        if number in totals
    ]


def _totals(session: Session) -> dict[int, _Totals]:
    """Of each task that has trials."""
    totals: dict[int, _Totals] = {}
    for row in intact_rows(session, schema.Base.metadata.tables["trials"]):
        trials, failed, scattered, best, last = totals.get(row["task_id"], _NO_TRIALS)
        status = row["status"]
        status = status.decode(errors="replace") if isinstance(status, bytes) else status
        if status == OK:
            best = row["latency"] if best is None else min(best, row["latency"])
        elif status in LOST_TO_NOISE:
            scattered += 1
        else:
            failed += 1
        totals[row["task_id"]] = _Totals(
            trials + 1, failed, scattered, best, max(last, row["created"])
        )
    return totals


def _trial(result: Any) -> TrialRecord:
    row, machine, job_id, *key = result
    assert isinstance(row, schema.Trial)
    if machine is None or None in key or (job_id is None) != (row.job_id is None):
        raise damaged_row(f"trials {row.id}", "what it refers to is not there")
    return record_of(
        TrialRecord,
        row,
        key=TaskKey(*key),
        samples=tuple(row.samples),
        reference_samples=tuple(row.reference_samples or ()),
        machine=machine,
        job=job_id,
        number=row.id,
    )


def _read_trials(
    store: Store, of_task: Select[Any], key: TaskKey, parameters: Mapping[str, object] = _NOTHING
) -> list[TrialRecord]:
    values = {**statements.key_of(key), **parameters}
    with store.reading() as session:
        return [_trial(row) for row in session.execute(of_task, values)]


def _settled(session: Session, found: Any) -> tuple[BestRecord, TrialRecord]:
    """What a row of `statements.BESTS` says, and its trial."""
    row, job_id = found
    trial = _trial(session.execute(statements.NUMBERED, {"number": row.trial_id}).one())
    best = record_of(
        BestRecord,
        row,
        key=trial.key,
        schedule_hash=trial.schedule_hash,
        request_id=trial.request_id,
        met=tuple(row.met),
        job=job_id,
    )
    return best, trial


def _job(session: Session, row: schema.Job) -> JobRecord:
    tasks = session.execute(
        statements.keyed(schema.JobTask.occurrences, *statements.KEY)
        .join(schema.JobTask, schema.JobTask.task_id == schema.Task.id)
        .where(schema.JobTask.job_id == row.id)
        .order_by(schema.JobTask.position)
    )
    return record_of(
        JobRecord,
        row,
        id=row.uid,
        state="lost" if row.state == "running" and is_lost(session, row.id) else row.state,
        tasks=tuple(JobTask(TaskKey(*key), occurrences) for occurrences, *key in tasks),
    )


class RelatedTask(NamedTuple):
    """A task, its number of ok trials, and the settings of the jobs that it was tuned in."""

    key: TaskKey
    records: int
    settings: list[Any]


def related_tasks(
    store: Store, workloads: Collection[str], model_hash: str, compiler_version: str
) -> list[RelatedTask]:
    """The tasks that are of these workloads, of jobs for the model with this hash, or of another
    version of the compiler, in the order in which they were first seen."""
    job, of_job, task = schema.Job, schema.JobTask, schema.Task
    of_model = (
        select(of_job.task_id, job.settings)
        .join(job, job.id == of_job.job_id)
        .where(job.model_hash == model_hash)
        .order_by(job.id)
    )
    counts = select(schema.Trial.task_id, func.count()).where(statements.IS_OK)
    with store.reading() as session:
        settings: dict[int, list[Any]] = {}
        for number, value in session.execute(of_model) if model_hash else ():
            settings.setdefault(number, []).append(value)
        counted = session.execute(counts.group_by(schema.Trial.task_id))
        records = {row[0]: row[1] for row in counted}
        rows = session.execute(statements.keyed(task.id, *statements.KEY).order_by(task.id))
        return [
            RelatedTask(TaskKey(*key), records.get(number, 0), settings.get(number, []))
            for number, *key in rows
            if key[0] in workloads or number in settings or key[-1] != compiler_version
        ]
