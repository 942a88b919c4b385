"""CallQueue: calls of a model that wait for cores, for `Executable.run_async`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

R = TypeVar("R")


class CallQueue:
    """Runs calls in the order in which they come, at most as many at a time as there are cores for.

    More at once would share the cores: all would end later, and none sooner.
    """

    def __init__(self, threads: int) -> None:
        """Each call keeps `threads` cores busy."""
        self.workers = max(1, usable_cores() // threads)
        self._process = os.getpid()
        self._executor = self._started()

    def submit(self, call: Callable[[], R]) -> Future[R]:
        """What a call will return, or raise."""
        if self._process != os.getpid():  # after a fork the threads are the parent's
            self._process, self._executor = os.getpid(), self._started()
        return self._executor.submit(call)

    def _started(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, "tunefarm-calls")


def usable_cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
