"""Who is at work on a database: leases of jobs, claims of candidates, and what others ask of a job.

A running job has a lease, which names its process. A job whose process is gone is lost, and its
claims have lapsed with it. A driver claims a candidate before it measures it, so that no other one
does; a claim lapses by itself too, because a process can be there and do nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from tunefarm.configs.clock import steady_time
from tunefarm.configs.errors import DatabaseError, LeaseTakenError
from tunefarm.db import schema
from tunefarm.db.processes import (
    clock,
    hold_lease,
    is_held,
    is_lost,
    let_go,
    machine_name,
    process_of,
    this_process,
)
from tunefarm.db.records import TaskKey
from tunefarm.db.rows import RowIds, insert_new, job_row
from tunefarm.db.store import Store

CLAIM_SECONDS = 900.0
"""Longer than a candidate waits and is measured, whatever its time limits usually are."""

_LONGEST_CLAIM_SECONDS = 2.0 * CLAIM_SECONDS
"""One that ends later was made before a clock was set back."""

Claim: TypeAlias = tuple[TaskKey, str]
"""A task and the hash of a schedule."""


@dataclass(frozen=True, slots=True)
class LostJob:
    """A job whose process has gone without a word; `where` is "process 12 on HOST", or ""."""

    id: str
    model_hash: str
    started: float
    where: str


def renew_lease(store: Store, job: str) -> bool:
    """Say that this process is at work on the job; whether the lease had lapsed meanwhile.

    A job that was taken to be lost, because its process was stopped for long, runs again. Raises
    LeaseTakenError if another process goes on with it, and DatabaseError; does not wait.
    """
    with store.writing() as session:
        row = job_row(session, job)
        lapsed = row.state == "lost"
        if lapsed and (heir := _heir(session, row)) is not None:
            raise LeaseTakenError(
                f"{heir} goes on with this job, which was taken to be lost while it was stopped",
                hint="what was measured is recorded; tune status shows both",
            )
        if lapsed:
            row.state, row.finished = "running", None
        row.updated = steady_time()
        hold_lease(session, job)
        return lapsed


def _heir(session: Session, row: schema.Job) -> str | None:
    """The process at work on a later job that is this one again, for people; None if none is."""
    later = select(schema.Job).where(
        schema.Job.id > row.id,
        schema.Job.state == "running",
        schema.Job.model_hash == row.model_hash,
    )
    for job in session.scalars(later).all():
        lease = session.scalar(select(schema.Lease).filter_by(job_id=job.id))
        if lease is None or not is_held(session, lease) or job.settings != row.settings:
            continue
        process = process_of(lease)
        return f"process {process.pid} on {machine_name(process)}"
    return None


def close_lost_jobs(store: Store) -> list[LostJob]:
    """Record that jobs are lost, of all that are, and let go of what they claimed."""

    def close(session: Session) -> list[LostJob]:
        found = []
        for row in session.scalars(select(schema.Job).filter_by(state="running")).all():
            lease = session.scalar(select(schema.Lease).filter_by(job_id=row.id))
            if lease is not None and is_held(session, lease):
                continue
            row.state, row.finished = "lost", row.updated
            let_go(session, row.id)
            process = None if lease is None else process_of(lease)
            where = "" if process is None else f"process {process.pid} on {machine_name(process)}"
            found.append(LostJob(row.uid, row.model_hash, row.started, where))
        return found

    return store.write(close)


def claim(
    store: Store,
    job: str,
    wanted: Iterable[Claim],
    *,
    done: Iterable[Claim] = (),
    unmeasured: Collection[str] = (),
) -> set[Claim]:
    """Claim candidates for the job; those that it got, which nobody else measures or has measured.

    Trials with a status of `unmeasured` do not count. The job's claims `done` are given up.
    """
    wanted, done = list(wanted), list(done)

    def work(session: Session) -> set[Claim]:
        ids = RowIds(session)
        number = ids.job(job)
        assert number is not None
        for key, hashes in _by_task(done).items():
            session.execute(
                delete(schema.Claim).where(
                    schema.Claim.task_id == ids.task(key),
                    schema.Claim.job_id == number,
                    schema.Claim.schedule_hash.in_(hashes),
                )
            )
        return {
            (key, hash)
            for key, hashes in _by_task(wanted).items()
            for hash in _claimed(session, number, ids.task(key), hashes, unmeasured)
        }

    return store.write(work) if wanted or done else set()


def release_claims(store: Store, job: str) -> None:
    """Give up all claims of the job."""

    def release(session: Session) -> None:
        number = job_row(session, job).id
        session.execute(delete(schema.Claim).where(schema.Claim.job_id == number))

    store.write(release)


def _by_task(claims: Iterable[Claim]) -> Mapping[TaskKey, list[str]]:
    grouped: dict[TaskKey, list[str]] = {}
    for key, hash in claims:
        grouped.setdefault(key, []).append(hash)
    return grouped


def _claimed(
    session: Session, job: int, task: int, hashes: Sequence[str], unmeasured: Collection[str]
) -> set[str]:
    """Claim these schedules of a task; those that the job has, and that nobody has measured."""
    now = clock(session)
    of_these = schema.Claim.task_id == task, schema.Claim.schedule_hash.in_(hashes)
    for row in session.scalars(select(schema.Claim).where(*of_these)).all():
        lasts = 0.0 < row.expires - now < _LONGEST_CLAIM_SECONDS
        if row.job_id != job and (not lasts or is_lost(session, row.job_id)):
            same = schema.Claim.id == row.id, schema.Claim.job_id == row.job_id
            session.execute(delete(schema.Claim).where(*same))
    rows = [
        {"task_id": task, "schedule_hash": hash, "job_id": job, "expires": now + CLAIM_SECONDS}
        for hash in hashes
    ]
    session.execute(insert_new(session, schema.Claim), rows)
    mine = (*of_these, schema.Claim.job_id == job)
    ours = set(session.scalars(select(schema.Claim.schedule_hash).where(*mine)))
    measured = set(
        session.scalars(
            select(schema.Trial.schedule_hash).where(
                schema.Trial.task_id == task,
                schema.Trial.schedule_hash.in_(hashes),
                schema.Trial.confirmed == 0,
                schema.Trial.status.not_in(unmeasured),
            )
        )
    )
    if measured & ours:
        late = schema.Claim.schedule_hash.in_(measured & ours)
        session.execute(delete(schema.Claim).where(*mine, late))
    return ours - measured


_What: TypeAlias = Literal["stop"]
_WHATS: tuple[_What, ...] = get_args(_What)


def ask(store: Store, job: str, what: _What) -> bool:
    """Ask the process that is at work on the job; False if there is none.

    Asked again before it was heard, it is asked once. Raises DatabaseError for an unknown job.
    """
    process = this_process()
    by = f"process {process.pid} on {machine_name(process)}"

    def write(session: Session) -> bool:
        row = job_row(session, job)
        if row.state != "running" or is_lost(session, row.id):
            return False
        values = {"job_id": row.id, "what": what, "asked_by": by, "created": clock(session)}
        session.execute(insert_new(session, schema.Request).values(values))
        return True

    return store.write(write)


def asked(store: Store, job: str) -> tuple[_What, str] | None:
    """What is asked of the process that is at work on the job, and by whom; None if nothing is.

    Raises DatabaseError; does not wait.
    """
    with store.reading() as session:
        number = job_row(session, job).id
        row = session.scalar(select(schema.Request).filter_by(job_id=number))
        if row is None:
            return None
        for what in _WHATS:
            if row.what == what:
                return what, row.asked_by
    raise DatabaseError(f"job {job} is asked for {row.what!r}, which this version does not know")
