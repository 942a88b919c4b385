"""Between records and rows: ids by key, and the values of a row."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Insert, func, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import Session

from tunefarm.configs.errors import DatabaseError
from tunefarm.db import schema
from tunefarm.db.records import (
    CONFIRMED,
    BestRecord,
    BuildRecord,
    JobRecord,
    JobTask,
    LatencyRecord,
    PlanRecord,
    Record,
    TargetRecord,
    TaskKey,
    TrialRecord,
    WorkloadRecord,
    canonical_json,
    hash_json,
)

_Record = TypeVar("_Record")
_ERROR_CHARACTERS = 16_000
_PARENTS_LOCK = int.from_bytes(b"parents", "big")
_NOTHING: Mapping[tuple[str, object], int] = {}


def insert_new(session: Session, model: type[schema.Base]) -> Insert:
    """Insert rows, leaving those as they are that are there already, also if others add them."""
    if session.get_bind().dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql  # takes long to import

        return postgresql.insert(model).on_conflict_do_nothing()
    return sqlite.insert(model).on_conflict_do_nothing()


def lock_parents(session: Session) -> None:
    """Make other processes that add rows which trials refer to wait for the transaction's end.

    Two transactions that add the same few rows in different orders would wait for each other.
    SQLite needs none of it: it has one writer at a time.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_PARENTS_LOCK)))


class RowIds:
    """Row ids by key, for one transaction; tasks and machines are added on demand.

    `known` are ids of rows that were committed before; afterwards it has those of this transaction
    too, and may serve the next one if this one was committed.
    """

    def __init__(
        self,
        session: Session,
        known: Mapping[tuple[str, object], int] = _NOTHING,
        addition: int | None = None,
    ) -> None:
        """`addition` is the number of the one that the rows come with, if they do."""
        self._session = session
        self.known = dict(known)
        self.addition = addition

    def task(self, key: TaskKey) -> int:
        """Raises DatabaseError if the workload or the target is not in the database."""
        return self._once("task", key, lambda: self._task(key))

    def machine(self, description: Mapping[str, Any]) -> int:
        """The row of a machine, which is made if it is new."""
        key = hash_json(description)
        values = {"key": key, "description": dict(description)}
        return self._once(
            "machine", key, lambda: self._found_or_added(schema.Machine, values, key=key)
        )

    def job(self, uid: str | None) -> int | None:
        """The row of a job; None for none."""
        if uid is None:
            return None
        return self._once("job", uid, lambda: job_row(self._session, uid).id)

    def trial(self, key: TaskKey, schedule_hash: str, request_id: str) -> int:
        """Raises DatabaseError if there is no such trial."""
        values = {"schedule_hash": schedule_hash, "request_id": request_id}
        found = self._session.scalar(
            select(schema.Trial.id).filter_by(task_id=self.task(key), **values)
        )
        if found is None:
            raise DatabaseError(f"trial {request_id!r} is not in the database")
        return found

    def target(self, key: str) -> int:
        """Raises DatabaseError if there is no such target."""
        return self._required(schema.Target, key)

    def _once(self, kind: str, key: object, find: Callable[[], int]) -> int:
        if (kind, key) not in self.known:
            self.known[kind, key] = find()
        return self.known[kind, key]

    def _task(self, key: TaskKey) -> int:
        values = {
            **_columns(key, "workload", "target"),
            "workload_id": self._required(schema.Workload, key.workload),
            "target_id": self._required(schema.Target, key.target),
        }
        return self._found_or_added(schema.Task, values, **values)

    def _required(self, model: type[schema.Workload] | type[schema.Target], key: str) -> int:
        found = self._session.scalar(select(model.id).where(model.key == key))
        if found is None:
            kind = model.__name__.lower()
            raise DatabaseError(
                f"{kind} {key!r} is not in the database", hint=f"add the {kind} first"
            )
        return found

    def _found_or_added(
        self, model: type[schema.Numbered], values: Mapping[str, Any], **key: Any
    ) -> int:
        """The id of the row with this key, after adding it if there is none."""
        same = select(model.id).filter_by(**key)
        found = self._session.scalar(same)
        if found is None:
            lock_parents(self._session)
            self._session.execute(insert_new(self._session, model).values(values))
            found = self._session.scalar(same)  # ours, or that of a process that was quicker
        assert found is not None
        return found


def add_rows(session: Session, ids: RowIds, records: Sequence[Record]) -> int:
    """Add the rows of records of one kind that are not there yet; how many there were.

    Raises DatabaseError for a record that cannot be kept, or refers to one that is not there.
    """
    kind = type(records[0])
    if kind in _PARENTS:
        lock_parents(session)
    if kind is JobRecord:
        return sum(_add_job(session, ids, job) for job in records if isinstance(job, JobRecord))
    model, values = _ROWS[kind]
    statement = insert_new(session, model).execution_options(preserve_rowcount=True)
    rows = [values(ids, record) for record in records]
    if kind is BestRecord:
        rows = [row for row in rows if not _is_known(session, row)]
    if not rows:
        return 0
    if issubclass(model, schema.Brought):
        rows = [{**row, "addition_id": ids.addition} for row in rows]
    return session.connection().execute(statement, rows).rowcount


def _is_known(session: Session, row: Mapping[str, Any]) -> bool:
    """Whether what a check has settled is there: rows without a job are never the same in SQL."""
    if row["job_id"] is not None:
        return False
    same = {name: row[name] for name in ("job_id", "task_id", "trial_id", "created")}
    return session.scalar(select(schema.Best.id).filter_by(**same)) is not None


def _trial_values(ids: RowIds, record: TrialRecord) -> dict[str, Any]:
    """The columns of a trial's row. Raises DatabaseError for a trial that cannot be kept."""
    try:
        canonical_json([record.choices, record.samples, record.conditions, record.machine])
        schedule_hash = record.schedule_hash
    except (TypeError, ValueError) as error:
        raise DatabaseError(f"trial {record.request_id} is not JSON: {error}") from error
    if record.contradiction:
        raise DatabaseError(f"trial {record.request_id} cannot be: {record.contradiction}")
    latency = record.latency
    return {
        **_columns(record, "key", "job", "machine", "number"),
        "task_id": ids.task(record.key),
        "job_id": ids.job(record.job),
        "machine_id": ids.machine(record.machine),
        "choices": dict(record.choices),
        "schedule_hash": schedule_hash,
        "status": str(record.status),
        "latency": latency if latency is not None and math.isfinite(latency) else None,
        "error": _printable(record.error),
        "conditions": dict(record.conditions),
        "created": record.created or time.time(),
        "confirmed": int(bool(record.conditions.get(CONFIRMED))),
        "reference_samples": list(record.reference_samples) or None,
    }


def _best_values(ids: RowIds, record: BestRecord) -> dict[str, Any]:
    """The columns of a best's row. Raises DatabaseError if its trial is not in the database."""
    return {
        **_columns(record, "key", "job", "schedule_hash", "request_id"),
        "task_id": ids.task(record.key),
        "job_id": ids.job(record.job),
        "trial_id": ids.trial(record.key, record.schedule_hash, record.request_id),
        "created": record.created or time.time(),
    }


def _values_of_model(ids: RowIds, record: BuildRecord | PlanRecord) -> dict[str, Any]:
    """The columns of a build's or a plan's row. Raises DatabaseError if its target is not there."""
    return {
        **_columns(record, "id", "target"),
        "uid": record.id,
        "model_name": _printable(record.model_name),
        "target_id": ids.target(record.target),
    }


def _latency_values(ids: RowIds, record: LatencyRecord) -> dict[str, Any]:
    """The columns of a latency's row. Raises DatabaseError if its target or job is not there."""
    return {
        **_columns(record, "id", "target", "job", "machine"),
        "uid": record.id,
        "model_name": _printable(record.model_name),
        "target_id": ids.target(record.target),
        "job_id": ids.job(record.job),
        "machine_id": ids.machine(record.machine),
    }


def _columns(record: Any, *left_out: str) -> dict[str, Any]:
    """What the columns hold that are named as a field: of the record's fields all but some."""
    names = (field.name for field in fields(record))
    return {name: getattr(record, name) for name in names if name not in left_out}


def record_of(kind: Callable[..., _Record], row: schema.Base, **given: Any) -> _Record:
    """The inverse: the record of a row, with the `given` fields that are no columns of the row."""
    names = (field.name for field in fields(kind))  # type: ignore[arg-type]
    values = {name: getattr(row, name) for name in names if name not in given}
    return kind(**values, **given)


def _printable(text: str) -> str:
    """What every database can hold: valid Unicode without NUL, the end cut off if very long."""
    valid = text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
    return valid[:_ERROR_CHARACTERS]


def job_row(session: Session, uid: str) -> schema.Job:
    """The row of the job with this id. Raises DatabaseError if there is none."""
    row = session.scalar(select(schema.Job).filter_by(uid=uid))
    if row is None:
        raise DatabaseError(f"job {uid!r} is not in the database")
    return row


def _add_job(session: Session, ids: RowIds, record: JobRecord) -> bool:
    """Add a job and its tasks, unless its id is in the database already; whether it was not."""
    values = {
        **_columns(record, "id", "tasks"),
        "uid": record.id,
        "model_name": _printable(record.model_name),
        "addition_id": ids.addition,
    }
    added = insert_new(session, schema.Job).values(values).returning(schema.Job.id)
    number = session.scalar(added)
    if number is not None:
        _add_tasks(session, ids, number, record.tasks)
    return number is not None


def _add_tasks(session: Session, ids: RowIds, job: int, tasks: Sequence[JobTask]) -> None:
    session.add_all(
        schema.JobTask(
            job_id=job,
            task_id=ids.task(task.key),
            position=position,
            occurrences=task.occurrences,
        )
        for position, task in enumerate(tasks)
    )


_Values: TypeAlias = Callable[[RowIds, Any], dict[str, Any]]
_ROWS: Mapping[type[Record], tuple[type[schema.Base], _Values]] = {
    TargetRecord: (schema.Target, lambda _, record: _columns(record)),
    WorkloadRecord: (schema.Workload, lambda _, record: _columns(record)),
    TrialRecord: (schema.Trial, _trial_values),
    BestRecord: (schema.Best, _best_values),
    BuildRecord: (schema.Build, _values_of_model),
    PlanRecord: (schema.Plan, _values_of_model),
    LatencyRecord: (schema.Latency, _latency_values),
}
_PARENTS = (TargetRecord, WorkloadRecord, JobRecord)
"""Records that others refer to."""
