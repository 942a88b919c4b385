"""JobState: where a job stands, as its driver writes it now and then for others to read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tunefarm.tuner.reports.gains import UNKNOWN_GAIN, ModelGain
from tunefarm.tuner.reports.report import Latency, TaskStatus, sum_of

NOISE = 0.02  # what a default latency, which has no interval, may be off
MOST_MOMENTS = 200  # of a job's history
_DIGITS = 6  # of a latency: more than is ever known of it
_LATENCIES = ("default", "best", "expected", "low", "high", "claimed", "confirmed")
_TEXTS = ("kernel", "nodes", "key", "target", "sizes", "ended", "reason")
_COUNTS = ("occurrences", "trials", "failures", "scattered")
_COLUMNS = (*_TEXTS, *_COUNTS, *_LATENCIES)


class Moment(NamedTuple):
    """After so many seconds and trials the model's kernels were expected to take `latency`."""

    seconds: float
    trials: int
    latency: float


def with_moment(history: tuple[Moment, ...], moment: Moment) -> tuple[Moment, ...]:
    """The history and one more moment; every second one is left out where they become many."""
    if not math.isfinite(moment.latency):
        return history
    if len(history) >= MOST_MOMENTS:
        history = history[::2]
    return (*history, moment)


@dataclass(frozen=True, slots=True)
class JobState:
    """Where a job stood at the moment `at`, in seconds since the epoch (0: it is not known).

    `phase` is what it was doing, `elapsed` and `left` are seconds (None: no limit is known). Of
    `workers` requests that may be under way, `busy` were. `measured` are this job's trials by their
    status, `tasks` where each kernel stood. `history` is how the sum of kernels that is expected
    came down, `model` is the whole model once it was measured.
    """

    tasks: tuple[TaskStatus, ...] = ()
    phase: str = ""
    elapsed: float = 0.0
    left: float | None = None
    workers: int = 0
    busy: int = 0
    measured: Mapping[str, int] = field(default_factory=dict)
    at: float = 0.0
    history: tuple[Moment, ...] = ()
    model: ModelGain = UNKNOWN_GAIN
    totals: Mapping[str, int] = field(default_factory=dict)  # as recorded, if `tasks` are not

    @property
    def trials(self) -> int:
        """Trials of all kernels, those of earlier jobs included."""
        return self._total("trials")

    @property
    def failures(self) -> int:
        """Trials that failed."""
        return self._total("failures")

    @property
    def scattered(self) -> int:
        """Those discarded as too noisy, which are no failures."""
        return self._total("scattered")

    @property
    def expected(self) -> Latency:
        """The sum of kernels that is expected, in seconds; NaN before all were measured."""
        greatest = [task for task in self.tasks if not task.sizes]
        if not greatest or not all(task.is_measured for task in greatest):
            return Latency(math.nan)
        return sum_of(greatest)

    @property
    def untuned(self) -> float:
        """The same with the default schedules."""
        total = math.fsum(t.occurrences * t.default for t in self.tasks if not t.sizes)
        return total if self.tasks and math.isfinite(total) else math.nan

    @property
    def speed_up(self) -> float:
        """How much lower the sum of kernels is expected to be; NaN where that may be noise."""
        expected = self.expected
        if not expected.high < (1.0 - NOISE) * self.untuned:
            return math.nan
        return self.untuned / expected.value

    def _total(self, name: str) -> int:
        if self.tasks:
            return sum(getattr(task, name) for task in self.tasks)
        return self.totals.get(name, 0)

    def to_json(self) -> dict[str, Any]:
        """As JSON values, short: a row per kernel."""
        return {
            "tasks": len(self.tasks),
            "trials": self.trials,
            "failures": self.failures,
            "scattered": self.scattered,
            "phase": self.phase,
            "elapsed": round(self.elapsed, 1),
            "left": None if self.left is None else round(self.left, 1),
            "workers": self.workers,
            "busy": self.busy,
            "measured": dict(self.measured),
            "at": round(self.at, 1),
            "history": [[round(m.seconds, 1), m.trials, _short(m.latency)] for m in self.history],
            "model": [_short(value) for value in self.model] if self.model.is_known else None,
            "columns": list(_COLUMNS),
            "kernels": [_row(task) for task in self.tasks],
        }

    @staticmethod
    def of(progress: Any) -> JobState:
        """The state of a job's progress as recorded, whichever version did so: what is not there,
        or not of its type, is not known."""
        values = progress if isinstance(progress, Mapping) else {}
        counts = {name: _count(values.get(name)) for name in ("trials", "failures", "scattered")}
        left = values.get("left")
        measured = values.get("measured")
        return JobState(
            tasks=_tasks(values.get("columns"), values.get("kernels")),
            phase=_text(values.get("phase")),
            elapsed=_seconds(values.get("elapsed")),
            left=None if left is None else _seconds(left),
            workers=_count(values.get("workers")),
            busy=_count(values.get("busy")),
            measured={
                str(status): _count(number)
                for status, number in (measured.items() if isinstance(measured, Mapping) else ())
            },
            at=_seconds(values.get("at")),
            history=_history(values.get("history")),
            model=_model(values.get("model")),
            totals=counts,
        )


def _row(task: TaskStatus) -> list[Any]:
    texts = [getattr(task, name) for name in _TEXTS]
    counts = [getattr(task, name) for name in _COUNTS]
    return [*texts, *counts, *(_short(getattr(task, name)) for name in _LATENCIES)]


def _tasks(columns: Any, rows: Any) -> tuple[TaskStatus, ...]:
    if not (isinstance(columns, Sequence) and isinstance(rows, list)):
        return ()
    found = []
    for row in rows:
        if not isinstance(row, list) or len(row) != len(columns):
            return ()
        values = dict(zip(map(str, columns), row, strict=True))
        given: dict[str, Any] = {name: _text(values.get(name)) for name in _TEXTS}
        given |= {name: _count(values.get(name)) for name in _COUNTS}
        given |= {name: _latency(values.get(name)) for name in _LATENCIES}
        for name in ("default", "best"):  # infinity is what these are where they are not known
            given[name] = math.inf if math.isnan(given[name]) else given[name]
        found.append(TaskStatus(**given))
    return tuple(found)


def _history(rows: Any) -> tuple[Moment, ...]:
    """What reads as moments, in the order of time."""
    found = []
    for row in rows[:MOST_MOMENTS] if isinstance(rows, list) else ():
        if not isinstance(row, list) or len(row) != 3:
            continue
        moment = Moment(_latency(row[0]), _count(row[1]), _latency(row[2]))
        if 0 <= moment.seconds < math.inf and 0 < moment.latency < math.inf:
            found.append(moment)
    return tuple(sorted(found))


def _model(values: Any) -> ModelGain:
    if not isinstance(values, list) or len(values) != len(UNKNOWN_GAIN):
        return UNKNOWN_GAIN
    return ModelGain(*map(_latency, values))


def _short(seconds: float) -> float | None:
    return float(f"{seconds:.{_DIGITS}g}") if math.isfinite(seconds) else None


def _latency(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else math.nan


def _seconds(value: Any) -> float:
    found = _latency(value)
    return found if math.isfinite(found) else 0.0


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
