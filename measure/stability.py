"""How much the samples of one measurement scatter, and when that is too much.

The measure is the relative median absolute deviation: robust, so one interrupted sample of seven
does not condemn a measurement. The standard deviation was rejected because a single outlier
dominates it, the range because it grows with the number of samples.
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
