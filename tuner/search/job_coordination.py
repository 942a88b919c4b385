"""Sharing a database with other jobs: who measures a candidate, what others have measured, and the
heartbeat that says that this job is still there.

A candidate is claimed before it is measured. One that another job has claimed waits for that job's
result, which is learnt from like one's own; when the claim lapses, because that job is no more, the
candidate is measured here. Results for the same tasks are taken over as they come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tunefarm.configs.clock import since_boot
from tunefarm.configs.errors import (
    DatabaseError,
    DatabaseMovedError,
    DatabaseUnavailableError,
    LeaseTakenError,
)
from tunefarm.db import queries
from tunefarm.db.records import TaskKey, TrialRecord
from tunefarm.db.store import Store
from tunefarm.db.work import Claim, asked, claim, release_claims, renew_lease
from tunefarm.measure.measurement import Status
from tunefarm.tuner.interrupt import signals_held
from tunefarm.tuner.reports.progress import Progress

# What a job does while its database cannot be written: it waits, says so, and goes on.

DATABASE_RETRY_SECONDS = 1.0
REMIND_SECONDS = 60.0


class RetryPolicy:
    """Asked by a store before it gives up (`Store.patience`). After `stop` it waits no more."""

    def __init__(
        self,
        progress: Progress,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress = progress
        self._sleep = sleep
        self._clock = clock
        self._stopped = False
        self._said = -REMIND_SECONDS

    def stop(self) -> None:
        """Wait no more; safe to call from a signal handler."""
        self._stopped = True

    def __call__(self, error: DatabaseUnavailableError) -> bool:
        """Wait and report; whether to try again."""
        if isinstance(error, DatabaseMovedError):  # and the store goes on
            self._progress.message(error.message)
            return True
        if self._stopped:
            return False
        now = self._clock()
        if now - self._said >= REMIND_SECONDS:
            self._said = now
            self._progress.message(
                f"{error.message}: the job pauses and goes on when the database can be written"
                " (Ctrl-C ends it; what was recorded is safe)"
            )
        self._sleep(DATABASE_RETRY_SECONDS)
        return not self._stopped


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


PAUSE_SECONDS = 20.0
"""Less than what a lease lasts, more than anything that is done between two looks."""


class Pauses:
    """Notices that this process did not run for a while: it was stopped, or its machine slept.

    Asked often; by a clock that goes on while the machine sleeps.
    """

    def __init__(self, clock: Callable[[], float] = since_boot) -> None:
        self._clock = clock
        self._asked = clock()

    def has_been(self) -> bool:
        """Whether nobody has asked for so long that there may have been a pause."""
        now, before = self._clock(), self._asked
        self._asked = now
        return now - before > PAUSE_SECONDS


_RENEW_SECONDS = 10.0
_LISTEN_SECONDS = 1.0  # between two looks at what is asked of the job


@contextmanager
def heartbeat(
    store: Store, job: str, stop: Callable[[str], bool], seconds: float = _RENEW_SECONDS
) -> Iterator[None]:
    """Within it the job's lease is renewed every so many seconds, whatever else goes on.

    When another process asks the job to stop, `stop` is called, from a thread of its own, with who
    that was, until it has told the job. What cannot be read or written is so the next time: whoever
    waits for it does so in the job itself. A database in memory is this process's own, and has one
    connection: it needs none.
    """
    if store.name == ":memory:":
        yield
        return
    ended = threading.Event()

    def beat() -> None:
        listens, renewed = True, time.monotonic()
        while not ended.wait(min(seconds, _LISTEN_SECONDS)):
            try:
                if time.monotonic() - renewed >= seconds:
                    renew_lease(store, job)
                    renewed = time.monotonic()
                request = asked(store, job) if listens else None
            except LeaseTakenError as error:
                listens = listens and not stop(error.message)
                continue
            except DatabaseUnavailableError as error:
                with suppress(DatabaseError):
                    store.go_on_elsewhere(error)
                continue
            except DatabaseError:
                continue
            if request is not None and not ended.is_set():
                listens = not stop(request[1])

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    with signals_held():
        thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
