"""How much the samples of one measurement scatter, and when that is too much.

The measure is the relative median absolute deviation: robust, so one interrupted sample of seven
does not condemn a measurement. The standard deviation was rejected because a single outlier
dominates it, the range because it grows with the number of samples.

What to expect: on two shared virtual cores (Zen 3), identical kernels of half a millisecond that
met as finalists (12 pairs of samples of 10 ms, in two fresh processes; `python -m
tests.benchmarks.farm equal`) had a median ratio of 1.0003, 90 % of 200 meetings within 0.9959 to
1.0048; with a load on the other core 1.0004, within 0.9951 to 1.0048. None of the 400 meetings had
a winner, and of 100 meetings with a kernel 5 % slower by construction all had the right one. In a
search beside builds the relative MAD of a measurement was 1.0 % in the median, 3.3 % at the 85th
percentile, and above the limit in 7 % to 10 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

UNSTABLE_MAD = 0.05  # flagged in the record; such a measurement should not win a search


def relative_mad(samples: Sequence[float]) -> float:
    """Median of |sample - median| over the median; 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    middle = median(samples)
    if middle <= 0.0:
        return 0.0
    return median(abs(sample - middle) for sample in samples) / middle


def is_unstable(samples: Sequence[float], limit: float = UNSTABLE_MAD) -> bool:
    """Whether the samples scatter more than `limit` (relative MAD)."""
    return relative_mad(samples) > limit
