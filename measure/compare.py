"""Paired comparison of two candidates that were timed in interleaved runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.measurement import MeasureResult, is_unchanged

USUAL_SCATTER = 0.05
"""Standard deviation of the log-ratio of two neighbouring slices, before any pair is known."""
USUAL_PAIRS = 1  # that such knowledge is worth
DISCOUNT = 3.0  # a slice k times as slow as its side's fastest weighs k^-DISCOUNT
FASTEST = 0.2  # the fastest is believed up to so far (log) below the median
BETWEEN_RUNS = 0.01
"""Standard deviation of what two runs of one pair differ by, beyond the error of their slices.

0.8 % to 1.6 % for four pairs of convolutions, 200 runs each, during builds (Zen 5, two shared
cores; `python -m tests.benchmarks.farm again --load`).
"""
KNOWN_RUNS = 4
"""Runs that `BETWEEN_RUNS` and the errors of slices are worth as knowledge of how runs differ."""
ALONE_DEVIATION = 0.1
"""Standard error of the log time of what was measured alone, as before there were pairs: that of
the core's speed, which wandered meanwhile."""
_NORMAL = 1.96  # standard deviations to either side that hold 95 % of normal values
_ONE_SIGMA = 0.683  # share of normal values within a standard deviation
_NEIGHBOURS = 0.72  # what the neighbours of other rounds leave of the variance


@dataclass(frozen=True, slots=True)
class LogRatio:
    """log(time of A / time of B) from so many pairs of slices, and its standard error."""

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
        return math.exp(self.mean - _NORMAL * self.deviation)

    @property
    def high(self) -> float:
        """Upper end of the ratio's 95 % interval."""
        return math.exp(self.mean + _NORMAL * self.deviation)


def log_ratio(a: Sequence[float], b: Sequence[float]) -> LogRatio:
    """The log-ratio of two series whose i-th times were taken next to each other, round by round.

    `mean` is a weighted median of the differences of neighbours: a slice of one side against the
    other side's slices of its own round (counted twice), of the round before and the one after.
    Where either slice is slow for its side, it was interrupted or the core was out of its mood,
    and the difference weighs less. `deviation` is the weighted 68 % quantile of the distances from
    it, mixed with what is usual, over the root of the rounds that were quiet.

    On recorded traces of a shared core (tests/data/clock_traces.npz), a kernel against itself, 14
    rounds: 90 % of the ratios within 1.8 %, 2.0 % for the plain median of the rounds, and a third
    fewer rounds for the same variance. The mean of all trimmed by a quarter scatters more than the
    median does, the ratio of two medians, or of two low quantiles, twice as much. The deviations
    hold 67 % to 73 % of the log-ratios, 1.96 of them 93 % (3 rounds) to 95 %.
    Raises MeasureError when there are no pairs or a time is not positive.
    """
    logs_a, logs_b = _logs(a, b)
    slow_a, slow_b = _slowness(logs_a), _slowness(logs_b)
    rounds = _weights(slow_a, slow_b)
    differences = np.concatenate(
        (logs_a - logs_b, logs_a[1:] - logs_b[:-1], logs_a[:-1] - logs_b[1:])
    )
    weights = np.concatenate(
        (2.0 * rounds, _weights(slow_a[1:], slow_b[:-1]), _weights(slow_a[:-1], slow_b[1:]))
    )
    mean = _weighted_quantile(differences, weights, 0.5)
    scatter = _weighted_quantile(np.abs(differences - mean), weights, _ONE_SIGMA)
    known = USUAL_PAIRS * USUAL_SCATTER**2 + len(a) * scatter**2
    variance = _NEIGHBOURS * known / (USUAL_PAIRS + len(a)) / float(rounds.sum())
    return LogRatio(mean, math.sqrt(variance), len(a))


def pooled(ratios: Sequence[LogRatio]) -> LogRatio:
    """What several independent log-ratios of the same two say, each by the inverse of its variance.

    Where they contradict each other, the deviation grows accordingly (Birge, Phys. Rev. 40, 1932).
    Raises MeasureError without any.
    """
    if not ratios:
        raise MeasureError("there is no ratio to pool")
    weights = [1.0 / ratio.deviation**2 for ratio in ratios]
    total = math.fsum(weights)
    both = list(zip(ratios, weights, strict=True))
    mean = math.fsum(weight * ratio.mean for ratio, weight in both) / total
    squares = math.fsum(weight * (ratio.mean - mean) ** 2 for ratio, weight in both)
    disagreement = max(1.0, squares / max(1, len(ratios) - 1))
    pairs = sum(ratio.pairs for ratio in ratios)
    return LogRatio(mean, math.sqrt(disagreement / total), pairs)


def across_runs(ratios: Sequence[LogRatio]) -> LogRatio:
    """Several runs of one pair as one: code and buffers lay elsewhere in each, which changes a
    ratio for as long as they lie there.

    A run counts by the error of its slices and `BETWEEN_RUNS`. How far the runs really are from
    their mean says whether that is right (Hartung and Knapp, Statist. Med. 20, 2001), with
    `KNOWN_RUNS` of evidence that it is. The `deviation` times 1.96 is half the 95 % interval of
    Student's distribution with that many degrees of freedom. Raises MeasureError without any.
    """
    apart = [replace(run, deviation=math.hypot(run.deviation, BETWEEN_RUNS)) for run in ratios]
    found = pooled(apart)
    squares = math.fsum(((run.mean - found.mean) / run.deviation) ** 2 for run in apart)
    total = math.fsum(run.deviation**-2 for run in apart)
    freedom = KNOWN_RUNS + len(apart) - 1
    variance = (KNOWN_RUNS + squares) / freedom / total
    return replace(found, deviation=_student(freedom) / _NORMAL * math.sqrt(variance))


def _student(freedom: int) -> float:
    """The 97.5 % quantile of Student's distribution (Abramowitz and Stegun 26.7.5), 4 or more."""
    z = _NORMAL
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


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

    @property
    def is_unchanged(self) -> bool:
        """A and B are one build: nothing was compared."""
        return is_unchanged(self.low, self.high)

    def b_is_faster(self, effect: float = 0.0) -> bool:
        """B is faster beyond doubt, and by more than `effect`."""
        return self.low > 1.0 and 1.0 / self.ratio < 1.0 - effect


def _logs(
    a: Sequence[float], b: Sequence[float]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    if len(a) != len(b) or not a:
        raise MeasureError(f"cannot pair {len(a)} samples with {len(b)}")
    times_a, times_b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if not (np.all(times_a > 0) and np.all(times_b > 0)):
        raise MeasureError("times to compare must be positive")
    return np.log(times_a), np.log(times_b)


def _slowness(logs: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """How far each slice is above the fastest of its side, 0 at least."""
    ordered = np.sort(logs)  # np.median takes as long as all the rest
    middle = ordered[(len(logs) - 1) // 2] + ordered[len(logs) // 2]
    fastest = max(float(ordered[0]), float(middle) / 2.0 - FASTEST)
    return np.maximum(logs - fastest, 0.0)


def _weights(
    slow_a: npt.NDArray[np.float64], slow_b: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = np.exp(-DISCOUNT * np.maximum(slow_a, slow_b))
    return weights


def _weighted_quantile(
    values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], share: float
) -> float:
    """The value that `share` of the weight lies below; halfway between two where it is between."""
    order = np.argsort(values, kind="stable")
    below = np.cumsum(weights[order])
    at, slack = share * below[-1], 1e-9 * below[-1]
    low, high = np.searchsorted(below, (at - slack, at + slack))
    return float(values[order[low]] + values[order[min(high, len(order) - 1)]]) / 2.0
