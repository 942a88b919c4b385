"""Live progress of a job on stderr: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Group
from rich.live import Live
from rich.text import Text

from tunefarm.tuner.reports.report import (
    TaskStatus,
    format_counts,
    format_duration,
    format_latency,
    format_seconds,
    sum_of,
)
from tunefarm.tuner.reports.task_table import TaskTable
from tunefarm.tuner.reports.terminal import console

PLAIN_INTERVAL = 10.0  # seconds between plain lines


class Progress:
    """Shows a job while it runs; this one shows nothing: the library's default."""

    def start(self) -> None:
        """The job begins to measure."""

    def message(self, text: str) -> None:
        """One line that stays."""

    def update(self, tasks: Sequence[TaskStatus], elapsed: float, left: float | None) -> None:
        """The state of all tasks; `left` is the time left in seconds, None if there is no limit."""

    def stop(self) -> None:
        """Nothing is measured any more."""


def status_line(tasks: Sequence[TaskStatus], elapsed: float, left: float | None) -> str:
    """The whole job in one line: what is expected to be confirmed, nothing that is only claimed."""
    trials = sum(task.trials for task in tasks)
    failures = sum(task.failures for task in tasks)
    scattered = sum(task.scattered for task in tasks)
    parts = [format_counts(f"{trials} trials", failures, scattered)]
    parts += _latencies(tasks)
    parts.append(f"{format_duration(elapsed)} elapsed")
    if left is not None:
        parts.append(f"at most {format_duration(left)} left to search")
    return ", ".join(parts)


def _latencies(tasks: Sequence[TaskStatus]) -> list[str]:
    """The sum of kernels as it is expected and untuned; of the kernels measured if not of all.

    The untuned figure is left out while a default schedule among them has none: the two could not
    be compared.
    """
    tasks = [task for task in tasks if not task.sizes]
    known = [task for task in tasks if task.is_measured]
    parts = []
    if len(known) < len(tasks):
        parts.append(f"{len(known)} of {len(tasks)} kernels measured")
    if not known:
        return parts
    parts.append(f"sum of kernels expected at {format_latency(sum_of(known))}")
    untuned = sum(task.occurrences * task.default for task in known)
    if math.isfinite(untuned):
        parts.append(f"untuned {format_seconds(untuned)}")
    return parts


class LiveProgress(Progress):
    """A table that is redrawn in place."""

    def __init__(self, stream: TextIO) -> None:
        self._console = console(stream)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)

    def start(self) -> None:
        self._live.start()

    def message(self, text: str) -> None:
        self._console.print(text)

    def update(self, tasks: Sequence[TaskStatus], elapsed: float, left: float | None) -> None:
        rows = max(4, self._console.size.height - 8)
        line = Text(status_line(tasks, elapsed, left))
        self._live.update(Group(TaskTable(tasks, limit=rows), line))

    def stop(self) -> None:
        self._live.stop()


class PlainProgress(Progress):
    """A line now and then, for logs and pipes."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._printed = -PLAIN_INTERVAL

    def start(self) -> None:
        self._printed = self._clock() - PLAIN_INTERVAL

    def message(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def update(self, tasks: Sequence[TaskStatus], elapsed: float, left: float | None) -> None:
        now = self._clock()
        if now - self._printed < PLAIN_INTERVAL:
            return
        self._printed = now
        self.message(status_line(tasks, elapsed, left))


def make_progress(stream: TextIO | None = None) -> Progress:
    """Live where `stream` (stderr if None) is a terminal, plain lines elsewhere."""
    target = sys.stderr if stream is None else stream
    return LiveProgress(target) if target.isatty() else PlainProgress(target)
