"""Gains in words. What an interval does not exclude is never shown as a gain or a loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tunefarm.measure.measurement import is_unchanged
from tunefarm.tuner.reports.report import (
    KEY_CHARACTERS,
    TaskStatus,
    format_ratio,
    format_seconds,
)

_MOST_GAINS = 3  # kernels that are named with their reasons
NO_DIFFERENCE = "no difference found"
UNCHANGED = "unchanged"
"""Of two builds that are one to the byte: there is one latency, and no ratio."""


def gain(ratio: float, low: float, high: float) -> str:
    """A speed-up from a ratio of times with its interval: `1.85x (1.80x to 1.91x)`.

    Where the interval holds 1 there is none: `no difference found (0.97x to 1.04x)`, and where
    nothing was compared, since both are one build, `unchanged`.
    """
    if is_unchanged(low, high):
        return UNCHANGED
    if not 0 < low <= ratio <= high < math.inf:
        return "-"
    bounds = f"({format_ratio(1 / high)} to {format_ratio(1 / low)})"
    if low <= 1.0 <= high:
        return f"{NO_DIFFERENCE} {bounds}"
    return f"{format_ratio(1 / ratio)} {bounds}"


def headline(ratio: float, low: float, high: float) -> str:
    """What tuning gained, in one line, with its interval or that there is no gain.

    `1.85x as fast as untuned (95 % interval 1.80x to 1.91x)`
    """
    if is_unchanged(low, high):
        return f"{UNCHANGED} by tuning: the tuned build is the untuned one"
    if not 0 < low <= ratio <= high < math.inf:
        return "no result"
    bounds = f"(95 % interval {format_ratio(1 / high)} to {format_ratio(1 / low)})"
    if low <= 1.0 <= high:
        return f"{NO_DIFFERENCE} between tuned and untuned {bounds}"
    return f"{format_ratio(1 / ratio)} as fast as untuned {bounds}"


class ModelGain(NamedTuple):
    """The whole model as its job has confirmed it: seconds untuned and as it is applied from now
    on, and its speed-up as a ratio of times with its interval; NaN where nothing is known.

    With dynamic shapes the seconds are those at the maximum sizes, and the ratio is the mean over
    the sizes that were measured.
    """

    untuned: float = math.nan
    tuned: float = math.nan
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @property
    def is_known(self) -> bool:
        """Whether the model was measured."""
        return math.isfinite(self.untuned)

    @property
    def interval(self) -> tuple[float, float, float]:
        """The ratio with its interval."""
        return self.ratio, self.low, self.high

    @property
    def gain(self) -> str:
        """The speed-up in words, see `gain`."""
        return gain(self.ratio, self.low, self.high)

    def __str__(self) -> str:
        """Both latencies and the gain; one latency where both are one build."""
        if is_unchanged(self.low, self.high):
            untuned = format_seconds(self.untuned)
            return f"{untuned}, {UNCHANGED}: the tuned build is the untuned one"
        bounds = f"{format_ratio(1 / self.high)} to {format_ratio(1 / self.low)}"
        return (
            f"{format_seconds(self.untuned)} untuned, {format_seconds(self.tuned)} tuned: "
            f"{self.as_fast} (95 % sure: {bounds})"
        )

    def reaches(self, speed_up: float) -> bool:
        """Whether the model is so many times as fast, and beyond doubt faster at all."""
        return 1.0 / self.ratio >= speed_up and self.high < 1.0

    @property
    def as_fast(self) -> str:
        """The speed-up without its interval; what that does not exclude is no result."""
        if is_unchanged(self.low, self.high):
            return UNCHANGED
        if self.low <= 1.0 <= self.high:
            return NO_DIFFERENCE
        return f"{format_ratio(1 / self.ratio)} as fast"


UNKNOWN_GAIN = ModelGain()
"""Of a model that was not measured."""


def gain_class(low: float, high: float) -> str:
    """How a page shows it: "better", "worse", or "same" where nobody can tell."""
    if not 0 < low <= high < math.inf or low <= 1.0 <= high:
        return "same"
    return "better" if high < 1.0 else "worse"


def largest_gains(tasks: Sequence[TaskStatus]) -> list[str]:
    """A line for each of the kernels that gained most of the model's time, and why.

    `conv1 + relu1 (0cb3bf35) 1.10x: tile 5x4 instead of 9x3 (7 % slower without)`
    """
    gained = [task for task in tasks if task.reason and task.high < task.default]
    gained.sort(key=lambda task: task.occurrences * (task.latency.value - task.default))
    return [
        f"{task.title} ({task.key[:KEY_CHARACTERS]}) {format_ratio(1.0 / task.confirmed)}: "
        f"{task.reason}"
        for task in gained[:_MOST_GAINS]
    ]
