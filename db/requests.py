"""What one process asks of another that is at work on a job: to stop."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunefarm.configs.errors import DatabaseError
from tunefarm.db import schema
from tunefarm.db.leases import clock, is_lost
from tunefarm.db.processes import machine_name, this_process
from tunefarm.db.rows import insert_new, job_row
from tunefarm.db.store import Store

What: TypeAlias = Literal["stop"]
WHATS: tuple[What, ...] = get_args(What)


def ask(store: Store, job: str, what: What) -> bool:
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


def asked(store: Store, job: str) -> tuple[What, str] | None:
    """What is asked of the process that is at work on the job, and by whom; None if nothing is.

    Raises DatabaseError; does not wait.
    """
    with store.reading() as session:
        number = job_row(session, job).id
        row = session.scalar(select(schema.Request).filter_by(job_id=number))
        if row is None:
            return None
        for what in WHATS:
            if row.what == what:
                return what, row.asked_by
    raise DatabaseError(f"job {job} is asked for {row.what!r}, which this version does not know")
