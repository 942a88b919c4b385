"""Processes: which one this is, and whether one that held a lease is still there."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from tunefarm.configs.clock import since_boot
from tunefarm.db import schema
from tunefarm.db.rows import job_row

LEASE_SECONDS = 60.0
"""A process of another machine that was not seen for so long is taken to be gone."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process of any machine: `host` tells machines, boots and containers apart, `started` two
    processes that had the same number."""

    host: str
    pid: int
    started: int


def this_process() -> ProcessId:
    """The process that asks."""
    pid = os.getpid()
    return ProcessId(_host(), pid, _started(pid))


_sightings: dict[tuple[ProcessId, str], tuple[float, float]] = {}
"""What a process of another machine last said of something, and when that was (`since_boot`)."""


def is_alive(process: ProcessId, work: str, seen: float, now: float) -> bool:
    """Whether the process is there; of another machine's: was seen within `LEASE_SECONDS`.

    `seen` is when it last said that it is at `work`, `now` the present, both in seconds since the
    epoch by the database's clock. That is believed once: from then on the process is alive for as
    long as it says something new, by a clock of this one that nobody sets.
    """
    if process.host != _host():
        return _unseen_seconds((process, work), seen, now) < LEASE_SECONDS
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # it is there and somebody else's, or it is said below
    return _started(process.pid) == process.started


def _unseen_seconds(of: tuple[ProcessId, str], seen: float, now: float) -> float:
    here = since_boot()
    said, moment = _sightings.get(of, (seen, here - abs(now - seen)))
    if said != seen:
        moment = here
    _sightings[of] = seen, moment
    return here - moment


def machine_name(process: ProcessId) -> str:
    """The process's machine, for people."""
    return process.host.partition(" ")[0]


def _host() -> str:
    boot = _read("/proc/sys/kernel/random/boot_id")[:8]
    try:
        space = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        space = ""
    return f"{platform.node()} {boot} {space}".strip()


def _started(pid: int) -> int:
    """When the process began, in ticks since the machine did (proc(5)); 0 where that is not told,
    -1 for one that has ended and is only not yet buried."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 20:
        return 0
    return -1 if fields[0] in "ZX" else int(fields[19])


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


# Leases, within a transaction: which process is at work on a running job.


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
