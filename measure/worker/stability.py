"""How much a kernel's slices scatter, and when that is the kernel's own doing.

The clock of a shared host wanders, so slices of a kernel alone say nothing about the kernel.
Divided by the next slices of the reference they do: what both sides share is gone. A candidate
scatters when these ratios do, while the reference's slices are quiet from one to the next. Where
they are not, the host is to blame, or the reference, and the ratio has a wide interval instead.

The measure is the distance from the median that two thirds of the values keep, the standard
deviation of normal values: interrupted slices are few and do not count, a second mode does. The
median absolute deviation was rejected here because it does not see a mode with less than half of
the slices, the standard deviation because a single outlier dominates it, the range because it grows
with the number of slices.

On recorded traces of a shared core, two convolutions of different shape timed against each other,
0.5 % at most are called noisy (a copy of 16 MiB, which feels other neighbours, against a
convolution: 0.3 % to 3 %); of a kernel with two modes 25 % apart, on a quiet core, 63 % to 88 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

UNSTABLE_SPREAD = 0.075
"""Spread of the ratios above which a candidate scatters."""
QUIETER = 3.0
"""So many times less than the candidate's ratios must a quiet reference spread."""
FEWEST_JUDGED = 8
"""Slices; of fewer, two that were interrupted look like a second mode."""
_SHARE = 0.683  # of normal values within a standard deviation


def relative_mad(samples: Sequence[float]) -> float:
    """Median of |sample - median| over the median; 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    middle = median(samples)
    if middle <= 0.0:
        return 0.0
    return median(abs(sample - middle) for sample in samples) / middle


def scatters(
    candidate: Sequence[float], reference: Sequence[float], limit: float = UNSTABLE_SPREAD
) -> bool:
    """Whether the candidate spreads by more than `limit` against a reference that is quiet.

    The i-th slices of both were taken next to each other.
    """
    found = spread_of_ratios(candidate, reference)
    if found <= limit or len(candidate) < FEWEST_JUDGED:
        return False
    changes = [math.log(after / before) for before, after in pairwise(reference)]
    return found > QUIETER * _within(changes)


def spread_of_ratios(candidate: Sequence[float], reference: Sequence[float]) -> float:
    """Spread of the log-ratios of slices that were taken next to each other."""
    logs = [math.log(a / b) for a, b in zip(candidate, reference, strict=True)]
    middle = median(logs) if logs else 0.0
    return _within([value - middle for value in logs])


def _within(values: Sequence[float]) -> float:
    """The size that two thirds of the values do not exceed."""
    if not values:
        return 0.0
    ordered = sorted(map(abs, values))
    return ordered[math.ceil(_SHARE * len(ordered)) - 1]
