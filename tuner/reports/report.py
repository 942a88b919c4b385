"""What a job or a build did, as tables for a terminal and values for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

KEY_CHARACTERS = 8  # of a workload key in a table: enough to tell kernels of one name apart


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """Where one task stands. Latencies are seconds per call, infinity where none is known.

    `expected` is the latency that the best schedule is expected to have when it is confirmed, with
    its 95 % interval `low` to `high`. `claimed` and `confirmed` are times over the default's: what
    the search expected of its nominee before the finalists met, and what their meeting showed. All
    of these are NaN while nothing is known.
    """

    kernel: str
    key: str
    occurrences: int
    trials: int
    failures: int
    default: float  # latency of the default schedule
    best: float
    ended: str = ""  # why it gets no more trials; empty while it runs
    scattered: int = 0  # trials lost to noise, which are no failures
    expected: float = math.nan
    low: float = math.nan
    high: float = math.nan
    claimed: float = math.nan
    confirmed: float = math.nan

    @property
    def cost(self) -> float:
        """Seconds that the model spends in this kernel."""
        return self.occurrences * self.best

    @property
    def speed_up(self) -> float:
        """Default latency over best latency; NaN while one of them is unknown."""
        if not (math.isfinite(self.default) and math.isfinite(self.best)):
            return math.nan
        return self.default / self.best


def shares(tasks: Sequence[TaskStatus]) -> list[float]:
    """Each task's share of the model's time; NaN while nothing of it was measured."""
    total = sum(task.cost for task in tasks if math.isfinite(task.cost))
    if total <= 0:
        return [math.nan] * len(tasks)
    return [task.cost / total if math.isfinite(task.cost) else math.nan for task in tasks]


def format_seconds(seconds: float) -> str:
    """A latency with a unit: `1.234 ms`; `-` where there is none."""
    if not math.isfinite(seconds):
        return "-"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1.0:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds * 1e9:.4g} ns"


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


def format_ratio(ratio: float) -> str:
    """A speed-up: `1.85x`; `-` where it is not known."""
    return f"{ratio:.2f}x" if math.isfinite(ratio) else "-"


def task_table(tasks: Sequence[TaskStatus], *, limit: int | None = None, title: str = "") -> Table:
    """A row per kernel, the costliest first; at most `limit` of them."""
    table = Table(title=title or None, title_justify="left", header_style="bold")
    table.add_column("kernel", overflow="ellipsis", no_wrap=True, ratio=1)
    table.add_column("key", no_wrap=True, min_width=KEY_CHARACTERS)
    for name in ("times", "trials", "failed", "best", "share", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis")
    rows = sorted(zip(tasks, shares(tasks), strict=True), key=_costliest_first)
    for task, share in rows[:limit]:
        table.add_row(
            task.kernel,
            task.key[:KEY_CHARACTERS],
            str(task.occurrences),
            str(task.trials),
            str(task.failures),
            format_seconds(task.best),
            format_share(share),
            format_ratio(task.speed_up),
            task.ended,
        )
    if limit is not None and len(rows) > limit:
        table.caption = f"and {len(rows) - limit} more kernels"
    return table


def _costliest_first(row: tuple[TaskStatus, float]) -> tuple[float, str]:
    task, share = row
    return (-share if math.isfinite(share) else 0.0, task.key)


def task_to_json(task: TaskStatus) -> dict[str, Any]:
    """The summary as JSON values; unknown latencies are null."""
    return {
        "kernel": task.kernel,
        "workload": task.key,
        "occurrences": task.occurrences,
        "trials": task.trials,
        "failures": task.failures,
        "default_seconds": _finite(task.default),
        "best_seconds": _finite(task.best),
        "speed_up": _finite(task.speed_up),
        "ended": task.ended,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
