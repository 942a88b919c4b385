"""Monitor: tells those who are not the driver where a job stands, by the job's record."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from db.store import Store
from tuner.reports.job_state import JobState
from tuner.reports.report import TaskStatus

RECORD_SECONDS = 5.0  # between two states of a job in the database

PREPARING = "building the untuned model"
SEARCHING = "searching"
FINALISTS = "comparing the fastest"
SIZES = "comparing at several sizes"
CONFIRMING = "measuring the whole model"


class Monitor:
    """Where a job stands, written down now and then; one of all jobs of a command.

    The methods are for the driver's thread.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.state = JobState()
        self._clock = clock
        self._now = now
        self._store: Store | None = None
        self._job = ""
        self._began = clock()
        self._measured: Counter[str] = Counter()
        self._phase = ""
        self._workers = 0
        self._written = -RECORD_SECONDS

    def begin(self, store: Store, job: str) -> None:
        """From now on it is about this job."""
        self._store, self._job, self._began = store, job, self._clock()
        self._measured.clear()
        self._phase, self._workers = "", 0

    def count(self, statuses: Iterable[str]) -> None:
        """Count what measurements have come to."""
        self._measured.update(map(str, statuses))

    def enter(self, phase: str, tasks: Sequence[TaskStatus], left: float | None) -> None:
        """The job does something else from now on; `left` are its seconds (None: no limit)."""
        self._phase = phase
        self._take(tasks, left, busy=0)
        self._record()

    def update(
        self,
        tasks: Sequence[TaskStatus],
        left: float | None,
        *,
        workers: int,
        busy: int,
    ) -> None:
        """Where the job stands, with so many seconds `left`; `busy` of the requests that `workers`
        can take are under way."""
        self._workers = workers
        if self._clock() - self._written < RECORD_SECONDS:
            return
        self._take(tasks, left, busy)
        self._record()

    def end(self, tasks: Sequence[TaskStatus]) -> JobState:
        """The state of the job at its end, for its record."""
        self._phase, self._workers = "", 0
        self._take(tasks, None, busy=0)
        self._store = None
        return self.state

    def _take(self, tasks: Sequence[TaskStatus], left: float | None, busy: int) -> None:
        self.state = JobState(
            tasks=tuple(tasks),
            phase=self._phase,
            elapsed=self._clock() - self._began,
            left=left,
            workers=self._workers,
            busy=busy,
            measured=dict(self._measured),
            at=self._now(),
        )

    def _record(self) -> None:
        self._written = self._clock()
        if self._store is not None:
            self._store.update_job(self._job, self.state.to_json())
