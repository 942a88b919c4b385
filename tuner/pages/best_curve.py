"""The best latency so far over a job's time, as a drawing for the report; round values of axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tunefarm.tuner.reports.job_state import Moment
from tunefarm.tuner.reports.report import format_duration, format_seconds

WIDTH, HEIGHT = 380, 180
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 18, 10, 26
_TIMES = 4  # marks of the time axis


def best_curve(history: Sequence[Moment]) -> dict[str, Any] | None:
    """A path and marks of both axes, in pixels; None of a history that is no line yet."""
    known = [moment for moment in history if 0 < moment.latency < math.inf]
    if len(known) < 2:
        return None
    first, last = known[0].seconds, max(known[-1].seconds, known[0].seconds + 1e-3)
    low, high = min(m.latency for m in known), max(m.latency for m in known)
    margin = max(0.08 * (high - low), 0.01 * high)
    low, high = low - margin, high + margin

    def across(seconds: float) -> float:
        share = (seconds - first) / (last - first)
        return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)

    def down(latency: float) -> float:
        share = (high - latency) / (high - low)
        return round(_TOP + share * (HEIGHT - _TOP - _BOTTOM), 1)

    path = f"M{across(first)} {down(known[0].latency)}"
    path += "".join(f"H{across(m.seconds)}V{down(m.latency)}" for m in known[1:])
    times = [first + part * (last - first) / (_TIMES - 1) for part in range(_TIMES)]
    marks = {format_duration(seconds): across(seconds) for seconds in times}
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "path": path,
        "x": [{"at": at, "text": text} for text, at in marks.items()],
        "y": [
            {"at": down(value), "text": format_seconds(value)}
            for value in round_values(low, high, 4)
        ],
        "left": _LEFT,
        "right": WIDTH - _RIGHT,
        "bottom": HEIGHT - _BOTTOM,
        "caption": _caption(known),
    }


def _caption(history: Sequence[Moment]) -> str:
    """Where the line begins and ends, in words."""
    first, last = history[0], history[-1]
    return (
        "Expected latency of the model's kernels with the best schedules so far: "
        f"{format_seconds(first.latency)} after {first.trials} trials, "
        f"{format_seconds(last.latency)} after {last.trials}."
    )


_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
MOST_TICKS = 6


def round_values(low: float, high: float, most: int = MOST_TICKS) -> list[float]:
    """At most so many multiples of a round number within a range: 0, 0.5, 1, 1.5.

    `low` is below `high`, both are finite.
    """
    smallest = (high - low) / max(1, most - 1)
    scale = 10.0 ** math.floor(math.log10(smallest))
    step = next(scale * step for step in _STEPS if scale * step >= 0.999 * smallest)
    return list(_multiples(step, low, high))


def _multiples(step: float, low: float, high: float) -> Iterator[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    for number in range(first, last + 1):
        yield float(f"{number * step:.6g}")
