"""The jobs of a database by the names that people give them."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.configs.errors import DatabaseError
from tunefarm.db import queries
from tunefarm.db.records import JobRecord
from tunefarm.db.store import Store

NEWEST = "last"
"""Names the job that began last."""
_SHORT = 8  # characters of an id that tell jobs apart in nearly all databases


def find_job(store: Store, name: str) -> JobRecord:
    """The job whose id begins so; `last` is the newest.

    Raises DatabaseError if there is none, or more than one.
    """
    jobs = queries.jobs(store)
    if not jobs:
        raise DatabaseError(f"{store.name} has no jobs yet", hint="tune MODEL begins one")
    if name == NEWEST:
        return jobs[0]
    found = [job for job in jobs if job.id.startswith(name)] if name else []
    if len(found) != 1:
        text = f"{len(found)} jobs begin" if found else "no job begins"
        raise DatabaseError(f"{store.name}: {text} with {name!r}", hint="tune status lists them")
    return found[0]


def short_id(job: JobRecord, jobs: Sequence[JobRecord] = ()) -> str:
    """The start of the job's id that no other one of `jobs` has, 8 characters at least."""
    length = _SHORT
    others = [other.id for other in jobs if other.id != job.id]
    while length < len(job.id) and any(other.startswith(job.id[:length]) for other in others):
        length += 4
    return job.id[:length]
