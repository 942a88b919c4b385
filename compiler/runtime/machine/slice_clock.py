"""The clock of timed slices: what a thread waited for its core while others had it does not count,
and page faults within a slice show.

With other processes on the core a slice of a few milliseconds is interrupted or not, and the longer
it is the more often: two sides of a pair whose slices differ in length would differ by that as
well. The kernel of Linux keeps how long a thread could run but did not (the second number of its
schedstat).

A page that is not there, as new memory is before somebody has written to it, is found or cleared
at the first access: up to 4 ms for 2 MB on a virtual machine. The kernel counts such faults, and
does not say how long they took.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from time import perf_counter

_NANO = 1e-9
_LEAST = 1e-9
_LONGEST = 96  # bytes of the file: three numbers


class SliceClock:
    """Seconds of pieces of work on one thread, the one that makes the clock.

    Without `waits`, or where the system does not keep them, what was waited counts, and faults are
    those of all threads. `faults` are those within the last piece that has ended.
    """

    def __init__(
        self,
        *,
        waits: bool = True,
        now: Callable[[], float] = perf_counter,
        path: str | None = None,
    ) -> None:
        self.faults = 0
        self._now = now
        self._whose = resource.RUSAGE_THREAD if waits else resource.RUSAGE_SELF
        self._file: int | None = None
        if waits:
            path = path or f"/proc/self/task/{threading.get_native_id()}/schedstat"
            try:
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return  # the system does not keep it

    def start(self) -> None:
        """A piece of work begins."""
        self._faulted = self._all_faults()
        self._start = self._now()
        self._waited = self._waits()  # within the time, so that no wait is subtracted but not in it

    def seconds(self) -> float:
        """Since its start, above zero. The piece has ended."""
        waited = self.waited()
        seconds = self._now() - self._start - waited
        self.faults = self._all_faults() - self._faulted
        return max(_LEAST, seconds)

    def waited(self) -> float:
        """Seconds since its start that do not count."""
        return self._waits() - self._waited

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _all_faults(self) -> int:
        """Page faults since the thread, or the process, began."""
        usage = resource.getrusage(self._whose)
        return usage.ru_minflt + usage.ru_majflt

    def _waits(self) -> float:
        """Seconds that the thread has waited for a core since it began."""
        if self._file is None:
            return 0.0
        columns = os.pread(self._file, _LONGEST, 0).split()
        return _NANO * int(columns[1]) if len(columns) > 1 else 0.0
