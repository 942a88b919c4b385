"""Leases, within a transaction: which process is at work on a running job."""

from __future__ import annotations

import time

from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from tunefarm.db import schema
from tunefarm.db.processes import ProcessId, is_alive, this_process
from tunefarm.db.rows import job_row


def hold_lease(session: Session, job: str) -> None:
    """Say that this process is at work on the job, now."""
    number, now = job_row(session, job).id, clock(session)
    row = session.scalar(select(schema.Lease).filter_by(job_id=number))
    if row is None:
        row = schema.Lease(job_id=number)
        session.add(row)
    process = this_process()
    row.host, row.pid, row.process_started = process.host, process.pid, process.started
    row.seen = now


def let_go(session: Session, job_id: int) -> None:
    """Delete the lease, the claims and the requests of the job with this row id."""
    session.execute(delete(schema.Lease).where(schema.Lease.job_id == job_id))
    session.execute(delete(schema.Request).where(schema.Request.job_id == job_id))
    session.execute(delete(schema.Claim).where(schema.Claim.job_id == job_id))


def is_lost(session: Session, job_id: int) -> bool:
    """Whether nobody is at work on the job with this row id."""
    lease = session.scalar(select(schema.Lease).filter_by(job_id=job_id))
    return lease is None or not is_held(session, lease)


def process_of(lease: schema.Lease) -> ProcessId:
    """The process that holds a lease."""
    return ProcessId(lease.host, lease.pid, lease.process_started)


def is_held(session: Session, lease: schema.Lease) -> bool:
    """Whether its process is alive, or was seen so lately that it may be."""
    job = session.scalar(select(schema.Job.uid).filter_by(id=lease.job_id))
    return is_alive(process_of(lease), str(job), lease.seen, clock(session))


def clock(session: Session) -> float:
    """Seconds since the epoch: a server's, so that machines agree."""
    if session.get_bind().dialect.name == "postgresql":
        return float(session.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or 0.0)
    return time.time()
