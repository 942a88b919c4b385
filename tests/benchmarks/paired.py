"""Two series of neighbours compared by the median of their log-ratios, for benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.compare import Comparison


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
    times = np.asarray([a, b], dtype=np.float64) if len(a) == len(b) else np.zeros((2, 0))
    if not times.size or not np.all(times > 0):
        raise MeasureError(f"cannot pair {len(a)} samples with {len(b)}, all of them positive")
    logs = np.log(times[0] / times[1])
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(logs), size=(resamples, len(logs)))
    medians = np.median(logs[picks], axis=1)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(medians, [tail, 1.0 - tail])
    return Comparison(
        float(np.exp(np.median(logs))), float(np.exp(low)), float(np.exp(high)), len(logs)
    )
