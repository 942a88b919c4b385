"""Was a sample disturbed? What else happened on its cores while it was taken.

A sample is tainted when the hypervisor took time from its cores, or when its threads waited for a
core longer than `QUEUED_SHARE` of the sample. An involuntary switch alone taints only where the
kernel does not keep the waiting time: one that costs microseconds of a sample of 10 ms is no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Protocol

from measure.machine import Activity, activity

QUEUED_SHARE = 0.01  # of the sample's duration


class Watch(Protocol):
    """Watches one sample at a time."""

    def begin(self) -> None:
        """A sample begins."""

    def disturbed(self) -> bool:
        """Whether the sample that ends now was disturbed."""


class NoWatch:
    """Sees nothing."""

    def begin(self) -> None:
        pass

    def disturbed(self) -> bool:
        return False


class CoreWatch:
    """Watches this process on its cores; `total` is what happened in all samples together."""

    def __init__(
        self,
        cores: Sequence[int],
        *,
        read: Callable[[Sequence[int]], Activity] = activity,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.total = Activity(0.0, 0, 0.0)
        self._cores = cores
        self._read = read
        self._clock = clock
        self._keeps_delay = Path("/proc/self/schedstat").exists()
        self.begin()

    def begin(self) -> None:
        self._before = self._read(self._cores)
        self._start = self._clock()

    def disturbed(self) -> bool:
        seconds = self._clock() - self._start
        noise = self._read(self._cores).since(self._before)
        self.total = Activity(
            self.total.steal_seconds + noise.steal_seconds,
            self.total.involuntary_switches + noise.involuntary_switches,
            self.total.queued_seconds + noise.queued_seconds,
        )
        return is_tainted(noise, seconds, self._keeps_delay)


def is_tainted(noise: Activity, seconds: float, keeps_delay: bool = True) -> bool:
    """Whether a sample of `seconds` is tainted by `noise`; `keeps_delay`: the kernel tells the
    run-queue delay."""
    if noise.steal_seconds > 0.0:
        return True
    if keeps_delay:
        return noise.queued_seconds > QUEUED_SHARE * seconds
    return noise.involuntary_switches > 0
