"""Where tasks stand, how figures are written, and values for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # a build that is listed already needs no NumPy
    from tunefarm.measure.compare import LogRatio


KEY_CHARACTERS = 8  # of a workload key in a table: enough to tell kernels of one name apart


class Latency(NamedTuple):
    """Seconds, with their 95 % interval; NaN where it is not known."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """Where one task stands. Latencies are seconds per call, infinity where none is known.

    `expected` is the latency that the best schedule is expected to have when it is confirmed, or
    had then, with its 95 % interval `low` to `high`. `claimed` and `confirmed` are times over the
    default's: what the search expected of its nominee before the finalists met, and what their
    meeting showed. All of these are NaN while nothing is known. `placement` is the best schedule's
    time where it was searched over its time with its buffers elsewhere, if that was measured.
    """

    kernel: str
    key: str
    occurrences: int
    trials: int
    failures: int
    default: float  # latency of the default schedule
    best: float
    ended: str = ""  # why it gets no more trials; empty while it runs
    scattered: int = 0  # trials discarded as too noisy, which are no failures
    expected: float = math.nan
    low: float = math.nan
    high: float = math.nan
    claimed: float = math.nan
    confirmed: float = math.nan
    placement: LogRatio | None = None
    target: str = ""  # the CPU, in a job for several
    sizes: str = ""  # that the kernel is tuned for, where they are not the model's maximum
    nodes: str = ""  # the model's nodes that it computes: `conv1 + relu1 (and 2 more)`
    reason: str = ""  # the choices of what was confirmed that are not the default schedule's

    @property
    def title(self) -> str:
        """The kernel by the model's nodes that it computes, where they are known."""
        name = self.nodes or self.kernel
        return f"{name} at {self.sizes}" if self.nodes and self.sizes else name

    @property
    def latency(self) -> Latency:
        """What the best schedule is expected to take, or what it is known by."""
        if math.isfinite(self.expected):
            return Latency(self.expected, self.low, self.high)
        return Latency(self.best)

    @property
    def is_unchanged(self) -> bool:
        """Whether the default schedule stays: its confirmed time over itself is 1, exactly."""
        return self.confirmed == 1.0 and self.low == self.high

    @property
    def is_measured(self) -> bool:
        """Whether any schedule has a latency."""
        return math.isfinite(self.latency.value)

    @property
    def cost(self) -> float:
        """Seconds that the model spends in this kernel."""
        return self.occurrences * self.latency.value

    @property
    def speed_up(self) -> float:
        """Default latency over that of the best schedule; NaN while one of them is unknown."""
        if not (math.isfinite(self.default) and self.is_measured):
            return math.nan
        return self.default / self.latency.value


def sum_of(tasks: Sequence[TaskStatus]) -> Latency:
    """Seconds that the model spends in the tasks that were measured, at its maximum sizes.

    Their errors are independent: the squares of the intervals' halves add up.
    """
    parts = [
        (task.occurrences, task.latency) for task in tasks if task.is_measured and not task.sizes
    ]
    total = math.fsum(times * latency.value for times, latency in parts)
    below = math.hypot(*(times * (latency.value - latency.low) for times, latency in parts))
    above = math.hypot(*(times * (latency.high - latency.value) for times, latency in parts))
    return Latency(total, total - below, total + above)


def short_titles(titles: Sequence[str]) -> list[str]:
    """Titles of a table's kernels without the folder that the names of their nodes begin with.

    Exporters name nodes by the path to their layer, and a narrow column shows the beginning.
    """
    paths = [title.split(" + ")[0].split("/")[:-1] for title in titles]
    levels = zip(*paths, strict=False) if len(paths) > 1 else ()
    shared = takewhile(lambda level: len(set(level)) == 1, levels)
    folder = "".join(f"{level[0]}/" for level in shared)
    return [
        " + ".join(name.removeprefix(folder) for name in title.split(" + ")) for title in titles
    ]


def shares(tasks: Sequence[TaskStatus]) -> list[float]:
    """Each task's share of the model's time; NaN while nothing of it was measured, and of tasks for
    other sizes than the maximum."""
    total = sum_of(tasks).value
    if total <= 0:
        return [math.nan] * len(tasks)
    return [
        task.cost / total if task.is_measured and not task.sizes else math.nan for task in tasks
    ]


def format_seconds(seconds: float) -> str:
    """A latency with a unit: `1.234 ms`; `-` where there is none."""
    if not math.isfinite(seconds):
        return "-"
    unit, scale = _unit(seconds)
    return f"{seconds * scale:.4g} {unit}"


def format_latency(latency: Latency) -> str:
    """A latency with its interval, if it has one: `1.234 ms (1.21 to 1.26)`; `-` where none is."""
    if not (math.isfinite(latency.low) and latency.low < latency.high < math.inf):
        return format_seconds(latency.value)
    _, scale = _unit(latency.value)
    low, high = latency.low * scale, latency.high * scale
    return f"{format_seconds(latency.value)} ({low:.3g} to {high:.3g})"


def _unit(seconds: float) -> tuple[str, float]:
    """The unit in which a latency reads well, and how many of it a second has."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1.0:
            return unit, scale
    return "ns", 1e9


def format_speed_up(before: float, after: float) -> str:
    """The ratio of two latencies just as `format_seconds` shows them: `1.85x`; `-` without one."""
    if not (math.isfinite(before) and math.isfinite(after) and after > 0):
        return "-"
    return format_ratio(float(f"{before:.4g}") / float(f"{after:.4g}"))


def format_duration(seconds: float) -> str:
    """A time span as `1:02:03` or `2:03`."""
    total = max(0, round(seconds))
    hours, minutes = total // 3600, total // 60 % 60
    return f"{hours}:{minutes:02}:{total % 60:02}" if hours else f"{minutes}:{total % 60:02}"


def format_time(seconds: float) -> str:
    """Seconds since the epoch as `2026-01-31 12:34` in UTC; `-` beyond the calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return "-"


def format_share(share: float) -> str:
    """A share in per cent; `-` where it is not known."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else "-"


def format_bytes(count: float) -> str:
    """Bytes as people read them: `32 KiB`."""
    unit = "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024:
            break
        count, unit = count / 1024, larger
    return f"{count:.4g} {unit}"


def format_counts(what: str, failures: int, scattered: int) -> str:
    """The count and how many of them say nothing: `9 trials (3 failed, 2 discarded as too noisy)`.

    What was too noisy gave the right result: it has not failed.
    """
    counted = ((failures, "failed"), (scattered, "discarded as too noisy"))
    parts = ", ".join(f"{count} {why}" for count, why in counted if count)
    return f"{what} ({parts})" if parts else what


def format_times(ratio: float, low: float, high: float) -> str:
    """A time over another one with its interval: `0.812 (0.790 to 0.834)`."""
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def format_ratio(ratio: float) -> str:
    """A speed-up: `1.85x`; `-` where it is not known."""
    return f"{ratio:.2f}x" if math.isfinite(ratio) else "-"


def task_to_json(task: TaskStatus) -> dict[str, Any]:
    """The summary as JSON values; unknown latencies are null.

    `best_seconds` and `speed_up` are what is expected to be confirmed, or was; the ratios are times
    over the default's.
    """
    return {
        "kernel": task.kernel,
        "nodes": task.nodes,
        "workload": task.key,
        "target": task.target,
        "sizes": task.sizes,
        "occurrences": task.occurrences,
        "trials": task.trials,
        "failures": task.failures,
        "scattered": task.scattered,
        "default_seconds": _finite(task.default),
        "best_seconds": _finite(task.latency.value),
        "expected_seconds": _finite(task.expected),
        "low_seconds": _finite(task.low),
        "high_seconds": _finite(task.high),
        "speed_up": _finite(task.speed_up),
        "claimed_ratio": _finite(task.claimed),
        "confirmed_ratio": _finite(task.confirmed),
        "placement_ratio": None if task.placement is None else task.placement.ratio,
        "placement_low": None if task.placement is None else task.placement.low,
        "placement_high": None if task.placement is None else task.placement.high,
        "reason": task.reason,
        "ended": task.ended,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
