"""Sharing a database with other jobs: who measures a candidate, and what others have measured.

A candidate is claimed before it is measured. One that another job has claimed waits for that job's
result, which is learnt from like one's own; when the claim lapses, because that job is no more, the
candidate is measured here. Results for the same tasks are taken over as they come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tunefarm.db import queries
from tunefarm.db.records import TaskKey, TrialRecord
from tunefarm.db.store import Store
from tunefarm.db.work import Claim, claim, release_claims, renew_lease
from tunefarm.measure.measurement import Status

LOOK_SECONDS = 0.5
RETRY_SECONDS = 2.0  # between two attempts to claim what another job has claimed


@dataclass(slots=True)
class JobCoordination:
    """The other jobs of a database, as one job sees them.

    `seen` is the number of the last trial that the job knows of.
    """

    store: Store
    job: str
    keys: Sequence[TaskKey]
    seen: int
    clock: Callable[[], float] = time.monotonic
    _looked: float = 0.0
    _retried: float = 0.0
    _done: tuple[Claim, ...] = ()

    def claim(self, wanted: Iterable[Claim]) -> set[Claim]:
        """Those of the candidates that this job may measure."""
        done, self._done = self._done, ()
        return claim(
            self.store, self.job, wanted, done=done, unmeasured=(Status.INFRASTRUCTURE.value,)
        )

    def go_on(self, at_work: Iterable[Claim]) -> set[Claim]:
        """Take the job again after a pause of this process, in which others may have taken it to
        be lost; those of the claims at work that are another job's now, or measured.

        Raises LeaseTakenError if another process goes on with the job.
        """
        renew_lease(self.store, self.job)
        wanted = set(at_work)
        return wanted - self.claim(wanted)

    def measured(self, claims: Iterable[Claim]) -> None:
        """These claims are needed no more; they are given up with the next that is made."""
        self._done = (*self._done, *claims)

    def may_retry(self) -> bool:
        """Whether it is time to try again for what others have claimed."""
        now = self.clock()
        if now - self._retried < RETRY_SECONDS:
            return False
        self._retried = now
        return True

    def news(self) -> list[TrialRecord]:
        """What other jobs have measured of the tasks since the last time, now and then."""
        now = self.clock()
        if now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        self.seen, records = queries.trials_of_others(
            self.store, self.keys, job=self.job, after=self.seen
        )
        return records

    def results(self, key: TaskKey, hashes: Sequence[str]) -> list[TrialRecord]:
        """What is recorded of these schedules, whenever that was."""
        return queries.trials_of_schedules(self.store, key, hashes)

    def leave(self) -> None:
        """Give up everything that is claimed."""
        self._done = ()
        release_claims(self.store, self.job)
