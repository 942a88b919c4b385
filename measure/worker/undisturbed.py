"""Slices that a CPU quota has stopped, or that hold page faults, are timed again."""

from __future__ import annotations

import math
from time import thread_time

from tunefarm.compiler.errors import MeasureError
from tunefarm.compiler.runtime.machine.slice_clock import SliceClock
from tunefarm.compiler.with_count import with_count
from tunefarm.measure.cpu_quota import CpuQuota, Throttling
from tunefarm.measure.worker.timer import Run

_TRIES = 6
_AS_LONG = 2  # tries of the length that was asked for; then each is half as long


class UndisturbedSlices:
    """Times slices within a quota, with all memory there. `stopped` and `faulted` count those that
    were not, and were timed again.

    A process above its quota is stopped until the next period, for tens of milliseconds: a slice in
    which that happened says nothing about speed, although little of the wait is left in its time,
    since what others did meanwhile is in the caches. The kernel counts the periods in which it
    stopped a group, and it does so before the group goes on, so a slice whose end finds another
    count than its begin was stopped, or another process of the group was. The next slice has a
    fresh period to itself.

    A page fault takes from half a microsecond to milliseconds, and none is in a model's time that
    runs for the second time.
    """

    def __init__(
        self, quota: CpuQuota | None, threads: int | None, clock: SliceClock | None = None
    ) -> None:
        """`threads` of what is timed decide what counts where every try is stopped, as with calls
        that need more than the quota has in a period: of one thread its CPU time, of several
        nothing; None: what the last try took. `clock` is the one of the slices: without it page
        faults count."""
        self.stopped = 0
        self.faulted = 0
        self._quota = quota
        self._threads = threads
        self._clock = clock
        self._throttling = None if quota is None else Throttling(quota.stats)

    def seconds(self, run: Run, calls: int) -> float:
        """Seconds of `calls` calls; where that is too long for the quota, as many times those of
        fewer calls. Raises MeasureError if several threads are stopped in every try.

        What has page faults in every try makes them itself: the fastest try counts.
        """
        fastest = math.inf
        for _ in range(_TRIES):
            seconds = self._within_quota(run, calls)
            if self._clock is None or not self._clock.faults:
                return seconds
            self.faulted += 1
            fastest = min(fastest, seconds)
        return fastest

    def _within_quota(self, run: Run, calls: int) -> float:
        if self._throttling is None:
            return run(calls)
        tried, taken, used = calls, 0.0, 0.0
        for number in range(_TRIES):
            tried = calls if number < _AS_LONG else max(1, tried // 2)
            before, begin = self._throttling.count(), thread_time()
            taken, used = run(tried), thread_time() - begin
            if self._throttling.count() == before:
                return taken * calls / tried
            self.stopped += 1
        if self._threads is None:
            return taken * calls / tried
        if self._threads == 1:
            return used * calls / tried
        threads = with_count(self._threads, "thread")
        raise MeasureError(
            f"{self._quota} stops every timed run of {threads}",
            hint="tune for fewer threads, or give the container whole cores",
        )

    def close(self) -> None:
        """Idempotent."""
        if self._throttling is not None:
            self._throttling.close()
