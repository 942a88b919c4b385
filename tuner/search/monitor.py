"""Monitor: writes where a job stands to its record, for those who are not the driver."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tunefarm.db.store import Store
from tunefarm.tuner.reports.gains import UNKNOWN_GAIN, ModelGain
from tunefarm.tuner.reports.job_state import JobState, Moment, with_moment
from tunefarm.tuner.reports.report import TaskStatus

RECORD_SECONDS = 5.0  # between two states of a job in the database

PREPARING = "building the untuned model"
SEARCHING = "searching"
FINALISTS = "comparing the fastest"
SIZES = "comparing at several sizes"
CONFIRMING = "measuring the whole model"
FINAL = "-final-"
"""In the ids of requests in which finalists meet."""


class Monitor:
    """Where a job stands, written down now and then; one of all jobs of a command, in turn.

    The methods are for the driver's thread.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.state = JobState()
        self._clock, self._now = clock, now
        self._store: Store | None = None
        self._job = ""
        self._began = clock()
        self._measured: Counter[str] = Counter()
        self._phase = ""
        self._workers = 0
        self._gain = UNKNOWN_GAIN
        self._written = -RECORD_SECONDS

    def begin(self, store: Store, job: str) -> None:
        """From now on it is about this job."""
        self._store, self._job = store, job
        self._began = self._clock()
        self._measured.clear()
        self._phase, self._workers, self._gain = "", 0, UNKNOWN_GAIN
        self.state = JobState()

    def confirm(self, gain: ModelGain) -> None:
        """The whole model was measured."""
        self._gain = gain

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
        self._follow(tasks)
        if self._clock() - self._written < RECORD_SECONDS:
            return
        self._take(tasks, left, busy)
        self._record()

    def end(self, tasks: Sequence[TaskStatus]) -> JobState:
        """The job has ended; where it stands, for its record."""
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
            history=self._follow(tasks),
            model=self._gain,
        )

    def _follow(self, tasks: Sequence[TaskStatus]) -> tuple[Moment, ...]:
        """The history of the job, with where it stands now if that is another place."""
        state, history = JobState(tasks=tuple(tasks)), self.state.history
        moment = Moment(self._clock() - self._began, state.trials, state.expected.value)
        if not history or history[-1][1:] != moment[1:]:
            history = with_moment(history, moment)
            self.state = replace(self.state, history=history)
        return history

    def _record(self) -> None:
        self._written = self._clock()
        if self._store is not None:
            self._store.update_job(self._job, self.state.to_json())
