"""Statements of the queries, made once: making one takes longer than executing it.

Those of one task take the values of its key, `key_of`, as parameters.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    and_,
    bindparam,
    exists,
    func,
    literal_column,
    select,
)
from sqlalchemy.orm import InstrumentedAttribute, aliased

from tunefarm.db import schema
from tunefarm.db.records import OK, TaskKey

KEY = (
    schema.Workload.key,
    schema.Target.key,
    schema.Task.threads,
    schema.Task.numerics,
    schema.Task.compiler_version,
)


IS_OK = schema.Trial.status == literal_column(f"'{OK}'")
"""Written out, because a partial index is not used for a bound parameter."""
IS_CONFIRMED = schema.Trial.confirmed == literal_column("1")


def keyed(*columns: InstrumentedAttribute[Any]) -> Select[Any]:
    """Columns of tasks and of what their keys are made of."""
    return (
        select(*columns)
        .select_from(schema.Task)
        .join(schema.Workload, schema.Workload.id == schema.Task.workload_id)
        .join(schema.Target, schema.Target.id == schema.Task.target_id)
    )


def is_task(column: InstrumentedAttribute[int]) -> ColumnElement[bool]:
    """Whether the column is the task of the parameters `key_of`: statements are made only once."""
    same = zip(KEY, TaskKey.__slots__, strict=True)
    task = keyed(schema.Task.id).where(*(part == bindparam(name) for part, name in same))
    return column == task.scalar_subquery()


def key_of(key: TaskKey) -> dict[str, object]:
    """The columns of a task's key by name."""
    return {name: getattr(key, name) for name in TaskKey.__slots__}


def trials() -> Select[Any]:
    """Trials with what they refer to; None where that is gone, which makes it damaged."""
    return (
        select(schema.Trial, schema.Machine.description, schema.Job.uid, *KEY)
        .outerjoin(schema.Task, schema.Task.id == schema.Trial.task_id)
        .outerjoin(schema.Workload, schema.Workload.id == schema.Task.workload_id)
        .outerjoin(schema.Target, schema.Target.id == schema.Task.target_id)
        .outerjoin(schema.Machine, schema.Machine.id == schema.Trial.machine_id)
        .outerjoin(schema.Job, schema.Job.id == schema.Trial.job_id)
    )


def is_from(trial: Any) -> ColumnElement[bool]:
    """Whether a trial is of the origin that the parameters `of_origin` say."""
    brought = trial.addition_id.is_not_distinct_from(bindparam("addition", type_=Integer))
    return and_(brought, trial.machine_id.in_(bindparam("machines", expanding=True)))


def contenders(without: Collection[str] = (), *, of_origin: bool = False) -> Select[Any]:
    """What `contenders` asks for."""
    faster = aliased(schema.Trial)
    fastest = (
        select(faster.schedule_hash)
        .where(
            is_task(faster.task_id),
            faster.status == literal_column(f"'{OK}'"),
            faster.id > bindparam("after"),
        )
        .order_by(faster.latency, faster.id)
        .limit(bindparam("most"))
    )
    if without:
        fastest = fastest.where(faster.schedule_hash.not_in(without))
    trial = schema.Trial
    statement = (
        select(trial.id, trial.schedule_hash, trial.status, trial.latency)
        .add_columns(trial.reference, trial.low, trial.high)
        .where(is_task(trial.task_id), trial.id > bindparam("after"))
        .order_by(trial.id)
    )
    if of_origin:
        fastest, statement = fastest.where(is_from(faster)), statement.where(is_from(trial))
    return statement.where(trial.schedule_hash.in_(fastest))


IS_OF_TASK = is_task(schema.Trial.task_id)
LAST = select(func.max(schema.Trial.id))
OF_TASK = trials().where(IS_OF_TASK)
NUMBERED = trials().where(schema.Trial.id == bindparam("number"))
SOME = (
    trials()
    .where(schema.Trial.id.in_(bindparam("numbers", expanding=True)))
    .order_by(schema.Trial.id)
)
FINALISTS = OF_TASK.where(IS_CONFIRMED).order_by(schema.Trial.id)
FASTEST = (
    select(schema.Trial.id)
    .where(IS_OF_TASK, IS_OK)
    .order_by(schema.Trial.latency, schema.Trial.id)
    .limit(1)
)
CONTENDERS = contenders()
CONTENDERS_OF_ORIGIN = contenders(of_origin=True)
FINALISTS_OF_ORIGIN = FINALISTS.where(is_from(schema.Trial))
BESTS = select(schema.Best, schema.Job.uid).outerjoin(
    schema.Job, schema.Job.id == schema.Best.job_id
)
NEWEST_BEST = BESTS.where(is_task(schema.Best.task_id)).order_by(schema.Best.id.desc()).limit(1)
NEWEST_BEST_OF_ORIGIN = (
    NEWEST_BEST.join(schema.Trial, schema.Trial.id == schema.Best.trial_id)
    .where(schema.Trial.machine_id.in_(bindparam("machines", expanding=True)))
    .where(schema.Best.addition_id.is_not_distinct_from(bindparam("addition", type_=Integer)))
)
SCHEDULES_OF_ORIGIN = select(schema.Trial.schedule_hash).where(
    IS_OF_TASK, is_from(schema.Trial), schema.Trial.status != "infrastructure"
)
ORIGINS = (
    select(
        schema.Trial.addition_id,
        schema.Trial.machine_id,
        func.max(schema.Trial.id),
        func.count(),
    )
    .where(IS_OF_TASK, IS_OK)
    .group_by(schema.Trial.addition_id, schema.Trial.machine_id)
)
WITH_RECORDS = keyed(*KEY).where(
    schema.Workload.key == bindparam("workload"),
    exists().where(schema.Trial.task_id == schema.Task.id, IS_OK),
)
STATUSES_OF_ORIGIN = (
    select(schema.Trial.schedule_hash, schema.Trial.status)
    .where(IS_OF_TASK, is_from(schema.Trial))
    .order_by(schema.Trial.id)
)
