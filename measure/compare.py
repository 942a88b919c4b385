"""Paired comparison of two candidates that were timed in interleaved runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compiler.errors import MeasureError
from measure.measurement import MeasureResult

USUAL_SCATTER = 0.03
"""Standard deviation of the log-ratio of two neighbouring slices, before any pair is known."""
USUAL_PAIRS = 4  # that such knowledge is worth
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation, of normal values
_MEDIAN_LOSS = math.sqrt(math.pi / 2.0)  # standard error of a median over that of a mean


@dataclass(frozen=True, slots=True)
class LogRatio:
    """log(time of A / time of B): the median of `pairs` pairs, and its standard error."""

    mean: float
    deviation: float
    pairs: int

    @property
    def ratio(self) -> float:
        """Time of A / time of B."""
        return math.exp(self.mean)

    @property
    def low(self) -> float:
        """Lower end of the ratio's 95 % interval."""
        return math.exp(self.mean - 1.96 * self.deviation)

    @property
    def high(self) -> float:
        """Upper end of the ratio's 95 % interval."""
        return math.exp(self.mean + 1.96 * self.deviation)


def log_ratio(a: Sequence[float], b: Sequence[float]) -> LogRatio:
    """The log-ratio of two series whose i-th times were taken next to each other.

    Raises MeasureError when there are no pairs or a time is not positive.
    """
    logs = _log_ratios(a, b)
    middle = float(np.median(logs))
    scatter = _NORMAL_MAD * float(np.median(np.abs(logs - middle)))
    known = USUAL_PAIRS * USUAL_SCATTER**2 + len(logs) * scatter**2
    deviation = math.sqrt(known / (USUAL_PAIRS + len(logs)))
    return LogRatio(middle, _MEDIAN_LOSS * deviation / math.sqrt(len(logs)), len(logs))


def pair_of(result: MeasureResult) -> LogRatio | None:
    """A result's schedule against its first rival; None for one that was measured alone."""
    if not result.rivals or not result.samples:
        return None
    return log_ratio(result.samples, result.rivals[0])


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
    logs = _log_ratios(a, b)
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(logs), size=(resamples, len(logs)))
    medians = np.median(logs[picks], axis=1)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(medians, [tail, 1.0 - tail])
    return Comparison(
        float(np.exp(np.median(logs))), float(np.exp(low)), float(np.exp(high)), len(logs)
    )


def _log_ratios(a: Sequence[float], b: Sequence[float]) -> npt.NDArray[np.float64]:
    if len(a) != len(b) or not a:
        raise MeasureError(f"cannot pair {len(a)} samples with {len(b)}")
    times_a, times_b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if not (np.all(times_a > 0) and np.all(times_b > 0)):
        raise MeasureError("times to compare must be positive")
    logs: npt.NDArray[np.float64] = np.log(times_a / times_b)
    return logs
