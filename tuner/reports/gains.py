"""Gains in words. What an interval does not exclude is never shown as a gain or a loss."""

from __future__ import annotations

import math

from tunefarm.tuner.reports.report import format_ratio

NO_DIFFERENCE = "no difference found"


def gain(ratio: float, low: float, high: float) -> str:
    """A speed-up from a ratio of times with its interval: `1.85x (1.80x to 1.91x)`.

    Where the interval holds 1 there is none: `no difference found (0.97x to 1.04x)`.
    """
    if not 0 < low <= ratio <= high < math.inf:
        return "-"
    bounds = f"({format_ratio(1 / high)} to {format_ratio(1 / low)})"
    if low <= 1.0 <= high:
        return NO_DIFFERENCE if low == high else f"{NO_DIFFERENCE} {bounds}"
    return f"{format_ratio(1 / ratio)} {bounds}"


def gain_class(low: float, high: float) -> str:
    """How a page shows it: "better", "worse", or "same" where nobody can tell."""
    if not 0 < low <= high < math.inf or low <= 1.0 <= high:
        return "same"
    return "better" if high < 1.0 else "worse"
