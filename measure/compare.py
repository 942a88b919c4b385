"""Paired comparison of two candidates that were timed in interleaved runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.errors import MeasureError


@dataclass(frozen=True, slots=True)
class Comparison:
    """How fast A is compared with B: `ratio` = time of A / time of B, below 1 when A is faster.

    `low` and `high` bound the ratio with the asked confidence.
    """

    ratio: float
    low: float
    high: float
    pairs: int

    def a_is_faster(self, effect: float = 0.0) -> bool:
        """A is faster beyond doubt (interval excludes 1) and by more than `effect` (0.02 = 2 %)."""
        return self.high < 1.0 and self.ratio < 1.0 - effect

    def b_is_faster(self, effect: float = 0.0) -> bool:
        """B is faster beyond doubt, and by more than `effect`."""
        return self.low > 1.0 and 1.0 / self.ratio < 1.0 - effect


def compare_paired(
    a: Sequence[float],
    b: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> Comparison:
    """Compare the i-th sample of `a` with the i-th of `b`, which were taken next to each other.

    The statistic is the median of log(a/b): logarithms make a ratio and its inverse symmetric, the
    median ignores interrupted pairs, and pairing cancels slow drift of the machine. The interval
    is the percentile bootstrap over pairs (Efron and Tibshirani 1993, section 13.3).
    Raises MeasureError when there are no pairs or a time is not positive.
    """
    if len(a) != len(b) or not a:
        raise MeasureError(f"cannot pair {len(a)} samples with {len(b)}")
    times_a, times_b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if not (np.all(times_a > 0) and np.all(times_b > 0)):
        raise MeasureError("times to compare must be positive")
    logs = np.log(times_a / times_b)
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(logs), size=(resamples, len(logs)))
    medians = np.median(logs[picks], axis=1)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(medians, [tail, 1.0 - tail])
    return Comparison(
        float(np.exp(np.median(logs))), float(np.exp(low)), float(np.exp(high)), len(logs)
    )
