"""What is asked of a store about whole models: builds, what was chosen, how long they take.

The newest record is the one with the highest number, because clocks are set back.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, func, select

from tunefarm.db import schema
from tunefarm.db.records import BuildRecord, LatencyRecord, PlanRecord
from tunefarm.db.rows import record_of
from tunefarm.db.store import Store


def builds(store: Store, *, limit: int | None = None) -> list[BuildRecord]:
    """What was built from the records, newest first."""
    statement = (
        select(schema.Build, schema.Target.key)
        .join(schema.Target, schema.Target.id == schema.Build.target_id)
        .order_by(schema.Build.id.desc())
        .limit(limit)
    )
    with store.reading() as session:
        rows = session.execute(statement)
        return [record_of(BuildRecord, row, id=row.uid, target=target) for row, target in rows]


def plans(store: Store) -> list[PlanRecord]:
    """What was chosen for models as a whole, newest first."""
    return _plans(store, _of_plans())


def newest_plan(
    store: Store,
    model_hash: str,
    target: str,
    threads: int,
    numerics: str,
    compiler_version: str | None,
    *,
    cpus: Collection[str] | None = None,
) -> PlanRecord | None:
    """What was last chosen for a model under these conditions; None if nothing was.

    That of any version of the compiler where it is None. With `cpus` only what this database's own
    jobs have chosen on one of them; "" is one that is not known.
    """
    plan = schema.Plan
    statement = _of_plans().where(
        plan.model_hash == model_hash,
        schema.Target.key == target,
        plan.threads == threads,
        plan.numerics == numerics,
    )
    if compiler_version is not None:
        statement = statement.where(plan.compiler_version == compiler_version)
    if cpus is not None:
        statement = statement.where(
            plan.addition_id.is_(None), func.coalesce(plan.cpu, "").in_(cpus)
        )
    return next(iter(_plans(store, statement.limit(1))), None)


def _of_plans() -> Select[Any]:
    of_target = schema.Target.id == schema.Plan.target_id
    columns: tuple[Any, ...] = (schema.Plan, schema.Target.key)
    return select(*columns).join(schema.Target, of_target).order_by(schema.Plan.id.desc())


def _plans(store: Store, statement: Select[Any]) -> list[PlanRecord]:
    with store.reading() as session:
        rows = session.execute(statement)
        return [record_of(PlanRecord, row, id=row.uid, target=target) for row, target in rows]


def latencies(store: Store) -> list[LatencyRecord]:
    """How long whole models take, as it was measured, newest first."""
    row, job = schema.Latency, schema.Job
    statement = (
        select(row, schema.Target.key, schema.Machine.description, job.uid)
        .join(schema.Target, schema.Target.id == row.target_id)
        .join(schema.Machine, schema.Machine.id == row.machine_id)
        .outerjoin(job, job.id == row.job_id)
        .order_by(row.id.desc())
    )
    with store.reading() as session:
        return [
            record_of(LatencyRecord, found, id=found.uid, target=target, machine=machine, job=uid)
            for found, target, machine, uid in session.execute(statement)
        ]


def is_built(store: Store, model_hash: str, artefact_sha256: str) -> bool:
    """Whether a build of this model that gave this artifact is listed."""
    same = schema.Build.model_hash == model_hash, schema.Build.artefact_sha256 == artefact_sha256
    with store.reading() as session:
        return session.scalar(select(schema.Build.id).where(*same).limit(1)) is not None
