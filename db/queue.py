"""Jobs that wait for their turn, in a database: what outlives every process that works on them.

An entry is `waiting` until a process takes it. That process is its holder, and says so now and
then; an entry whose holder is gone may be taken by another one, which goes on with it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tunefarm.configs.errors import DatabaseError
from tunefarm.db import schema
from tunefarm.db.processes import ProcessId, clock, is_alive, machine_name, this_process
from tunefarm.db.records import ENTRY_STATES, EntryState
from tunefarm.db.rows import record_of
from tunefarm.db.store import Store


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """A job of the queue: the `arguments` of its command, to be run in `folder`.

    `options` are the queue's own of it (a JSON object), `job` the id of the job that its last
    attempt has made ("" before), `seconds` what all attempts took, `error` why the last one failed.
    Times are seconds since the epoch. `is_held` says whether a process is at work on it, `holder`
    which one, for people ("" where none is).
    """

    id: str
    model_name: str
    arguments: tuple[str, ...]
    folder: str
    options: Mapping[str, Any]
    state: EntryState
    job: str
    attempts: int
    seconds: float
    error: str
    created: float
    updated: float
    is_held: bool
    holder: str


def add_entry(
    store: Store,
    model_name: str,
    arguments: Sequence[str],
    folder: str,
    options: Mapping[str, Any],
) -> QueueEntry:
    """Add a job behind all others."""
    now = time.time()
    uid = uuid.uuid4().hex
    row = {
        "uid": uid,
        "model_name": model_name,
        "arguments": list(arguments),
        "folder": folder,
        "options": dict(options),
        "state": "waiting",
        "holder": None,
        "job": "",
        "attempts": 0,
        "seconds": 0.0,
        "error": "",
        "created": now,
        "updated": now,
    }
    store.write(lambda session: session.add(schema.QueueEntry(**row)))
    return entry(store, uid)


def entries(store: Store) -> list[QueueEntry]:
    """The whole queue, in the order in which it was added."""
    with store.reading() as session:
        rows = session.scalars(select(schema.QueueEntry).order_by(schema.QueueEntry.id)).all()
        return [_entry(session, row) for row in rows]


def entry(store: Store, id: str) -> QueueEntry:
    """The entry with this id. Raises DatabaseError if there is none."""
    with store.reading() as session:
        return _entry(session, _row(session, id, to_change=False))


def take_entry(store: Store, id: str) -> bool:
    """Have this process work on the entry; False if another one does, or nothing is left to do.

    Counts as an attempt.
    """

    def take(session: Session) -> bool:
        row = _row(session, id)
        if row.state in ("finished", "failed") or _is_held(session, row):
            return False
        row.state, row.holder, row.attempts = "running", _holder(session), row.attempts + 1
        row.updated = time.time()
        return True

    return store.write(take)


def hold_entry(store: Store, id: str, seconds: float | None = None) -> None:
    """Say that this process is still at work on the entry, and what all attempts took until now.

    Raises DatabaseError if another process has taken it.
    """

    def hold(session: Session) -> None:
        row = _row(session, id)
        _check_holder(row)
        row.holder = _holder(session)
        if seconds is not None:
            row.seconds = seconds

    store.write(hold)


def change_entry(store: Store, id: str, **changes: Any) -> QueueEntry:
    """Change what the entry says: its state, job, seconds, error or options.

    An entry that is no longer `running` has no holder. Raises DatabaseError for an unknown one,
    and for one that another process has taken.
    """
    known = {"state", "job", "seconds", "error", "options"}
    if unknown := changes.keys() - known:
        raise DatabaseError(f"an entry of the queue has no {', '.join(sorted(unknown))}")
    if changes.get("state", "waiting") not in ENTRY_STATES:
        raise DatabaseError(f"no such state of an entry: {changes['state']!r}")

    def change(session: Session) -> None:
        row = _row(session, id)
        if _is_held(session, row):
            _check_holder(row)
        for name, value in changes.items():
            setattr(row, name, value)
        if row.state != "running":
            row.holder = None
        row.updated = time.time()

    store.write(change)
    return entry(store, id)


def remove_entry(store: Store, id: str) -> None:
    """Take the entry out of the queue. Raises DatabaseError if a process is at work on it."""

    def remove(session: Session) -> None:
        row = _row(session, id)
        if _is_held(session, row):
            raise DatabaseError(
                f"{row.model_name} ({id}) is being worked on", hint=f"tune stop {row.job or id}"
            )
        session.delete(row)

    store.write(remove)


def jobs_of_process(store: Store, pid: int) -> list[str]:
    """The running jobs that a process of this machine is at work on, by its number."""
    statement = (
        select(schema.Job.uid)
        .join(schema.Lease, schema.Lease.job_id == schema.Job.id)
        .where(schema.Lease.pid == pid, schema.Lease.host == this_process().host)
        .order_by(schema.Job.id)
    )
    with store.reading() as session:
        return list(session.scalars(statement))


def trials_of_jobs(store: Store, jobs: Sequence[str]) -> int:
    """How many trials these jobs have recorded, those of finalists included."""
    statement = (
        select(func.count())
        .select_from(schema.Trial)
        .join(schema.Job, schema.Job.id == schema.Trial.job_id)
        .where(schema.Job.uid.in_(jobs))
    )
    with store.reading() as session:
        return int(session.scalar(statement) or 0)


def _row(session: Session, id: str, *, to_change: bool = True) -> schema.QueueEntry:
    statement = select(schema.QueueEntry).filter_by(uid=id)
    row = session.scalar(statement.with_for_update() if to_change else statement)
    if row is None:
        raise DatabaseError(f"{id!r} is not in the queue", hint="tune jobs list shows what is")
    return row


def _entry(session: Session, row: schema.QueueEntry) -> QueueEntry:
    process = _process(row) if _is_held(session, row) else None
    return record_of(
        QueueEntry,
        row,
        id=row.uid,
        arguments=tuple(row.arguments),
        is_held=process is not None,
        holder="" if process is None else f"process {process.pid} on {machine_name(process)}",
    )


def _holder(session: Session) -> dict[str, Any]:
    process = this_process()
    seen = clock(session)
    return {"host": process.host, "pid": process.pid, "started": process.started, "seen": seen}


def _process(row: schema.QueueEntry) -> ProcessId | None:
    holder = row.holder
    return holder and ProcessId(holder["host"], holder["pid"], holder["started"])


def _is_held(session: Session, row: schema.QueueEntry) -> bool:
    process = _process(row)
    if process is None:
        return False
    return is_alive(process, row.uid, row.holder["seen"], clock(session))


def _check_holder(row: schema.QueueEntry) -> None:
    process = _process(row)
    if process is not None and process != this_process():
        raise DatabaseError(f"another process is at work on {row.model_name} ({row.uid})")
