"""Axes of drawings: round values that divide a range, and where they lie."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
