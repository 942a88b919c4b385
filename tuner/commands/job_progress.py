"""Progress of a job as the options of `tune` ask for it: shown, logged, or as JSON lines."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

from tunefarm.configs.errors import SettingsError, system_errors_as
from tunefarm.tuner.commands.verbosity import LOG, OutputError, is_quiet
from tunefarm.tuner.reports.job_state import JobState
from tunefarm.tuner.reports.progress import Progress, make_progress
from tunefarm.tuner.reports.report import TaskStatus, format_seconds

STDOUT = "-"
EVENT_SECONDS = 1.0  # between two events that only tell of new trials


class JobProgress(Progress):
    """Hands everything on to what is shown, logs what becomes faster, and writes JSON lines.

    A line is an object with `event`: "message" with a `text`, "progress" with counts of trials and
    latencies, and "end" with the state of the job. Seconds that are not known are null.
    """

    def __init__(
        self,
        shown: Progress,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stream` is where the lines go; None: nowhere."""
        self._shown = shown
        self._stream = stream
        self._clock = clock
        self._began = clock()
        self._written = -math.inf
        self._trials = -1
        self._pending: dict[str, Any] | None = None
        self._best: dict[tuple[str, str, str], float] = {}
        self._has_ended = False

    def start(self) -> None:
        """The job begins to measure."""
        self._shown.start()

    def message(self, text: str) -> None:
        """One line that stays."""
        self._shown.message(text)
        self._write({"event": "message", "text": text})

    def update(self, tasks: Sequence[TaskStatus], elapsed: float, left: float | None) -> None:
        """The state of all tasks."""
        self._shown.update(tasks, elapsed, left)
        self._log(tasks)
        if self._stream is None:
            return
        self._pending = {"event": "progress", "seconds_left": left, **_counts(tasks)}
        is_due = self._clock() - self._written >= EVENT_SECONDS
        if is_due and self._pending["trials"] != self._trials:
            self._flush()

    def stop(self) -> None:
        """Nothing is measured any more."""
        self._shown.stop()
        self._flush()

    def end(self, state: str, result: Mapping[str, Any]) -> None:
        """The last line: how the job ended, and what came of it. Later calls do nothing."""
        if self._has_ended:
            return
        self._has_ended = True
        self._flush()
        self._write({"event": "end", "state": state, **result})

    def _flush(self) -> None:
        if self._pending is not None:
            self._trials = self._pending["trials"]
            self._write(self._pending)
            self._pending = None

    def _write(self, event: dict[str, Any]) -> None:
        """One line with the seconds since the command began; that it fails ends no job."""
        if self._stream is None:
            return
        self._written = self._clock()
        event["seconds"] = round(self._written - self._began, 3)
        try:
            print(json.dumps(event, allow_nan=False), file=self._stream, flush=True)
        except (OSError, OutputError) as error:
            self._stream = None
            self._shown.message(f"cannot write the progress as JSON: {error}")

    def _log(self, tasks: Sequence[TaskStatus]) -> None:
        for task in tasks:
            key = task.key, task.target, task.sizes
            if task.is_measured and task.latency.value < self._best.get(key, math.inf):
                self._best[key] = task.latency.value
                LOG.info(
                    "%s %s: %s after %d trials",
                    *(task.title, task.key[:8], format_seconds(task.latency.value), task.trials),
                )


def _counts(tasks: Sequence[TaskStatus]) -> dict[str, Any]:
    """What `tune status --json` has of a job's trials and latencies, by the same names."""
    state = JobState(tuple(tasks))
    seconds = {
        "untuned_seconds": state.untuned,
        "expected_seconds": state.expected.value,
        "speed_up": state.speed_up,
    }
    return {
        "kernels": len(tasks),
        "kernels_measured": sum(task.is_measured for task in tasks),
        "trials": state.trials,
        "failures": state.failures,
        "scattered": state.scattered,
        **{name: value if math.isfinite(value) else None for name, value in seconds.items()},
    }


@contextmanager
def job_progress(path: str | None) -> Iterator[JobProgress]:
    """The progress of a command's jobs; JSON lines go to the file at `path`, or to stdout ("-").

    Where the block ends without an end of the job, that has failed. Raises SettingsError for a file
    that cannot be written.
    """
    shown = Progress() if is_quiet() else make_progress()
    with ExitStack() as opened:
        stream: TextIO | None = sys.stdout if path == STDOUT else None
        if path is not None and path != STDOUT:
            with system_errors_as(SettingsError, f"write {path}"):
                stream = opened.enter_context(open(path, "w", encoding="utf-8"))
        progress = JobProgress(shown, stream)
        try:
            yield progress
        finally:
            progress.end("failed", {})
