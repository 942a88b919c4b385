"""Is a candidate clearly slower than the incumbent? Asked after each sample, to take few of them.

A sequential probability ratio test (Wald, Sequential Analysis, 1947) on x = log(sample /
incumbent), taken as normal with the deviation SIGMA: "as fast as the incumbent" (mean 0) against
"slower by SLOWER". Each sample adds

    delta / SIGMA^2 * (x - delta / 2)        with delta = log(1 + SLOWER)

and the candidate is given up when the sum exceeds log(1 / ERROR). A single sample adds at most half
of that (Huber's clipping), so one interrupted sample never decides. There is no early acceptance:
what may be the best is measured in full.
"""

from __future__ import annotations

import math

SLOWER = 0.10
SIGMA = 0.05  # relative; more than that is unstable anyway
ERROR = 0.01  # share of candidates as fast as the incumbent that are given up

_DELTA = math.log1p(SLOWER)
_LIMIT = math.log(1.0 / ERROR)


class SequentialTest:
    """Takes the samples of one candidate, in seconds per call."""

    def __init__(self, incumbent: float) -> None:
        """`incumbent`: the best latency known, seconds per call."""
        self._incumbent = incumbent
        self._sum = 0.0

    def is_slower(self, sample: float) -> bool:
        """Take a sample in; whether the candidate is clearly slower by now."""
        x = math.log(max(sample, 1e-12) / self._incumbent)
        step = _DELTA / SIGMA**2 * (x - _DELTA / 2.0)
        self._sum += max(-_LIMIT / 2.0, min(_LIMIT / 2.0, step))
        return self._sum >= _LIMIT
