"""Gains in words. What an interval does not exclude is never shown as a gain or a loss."""

from __future__ import annotations

import math

from tunefarm.measure.unchanged import is_unchanged
from tunefarm.tuner.reports.report import format_ratio

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


def gain_class(low: float, high: float) -> str:
    """How a page shows it: "better", "worse", or "same" where nobody can tell."""
    if not 0 < low <= high < math.inf or low <= 1.0 <= high:
        return "same"
    return "better" if high < 1.0 else "worse"
