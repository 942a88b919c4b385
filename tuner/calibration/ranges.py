"""From the values that a tensor had to the range that eight bits are spent on.

`minmax` keeps all, `percentile P` the middle P per cent, `mse` the range whose rounding and
clipping leave the smallest mean square error (Migacz, "8-bit inference with TensorRT", 2017, and
Banner et al., "Post training 4-bit quantization", 2019, choose clips from histograms alike).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.types.tensor_type import Array

MINMAX, PERCENTILE, MSE = "minmax", "percentile", "mse"
METHODS = (MINMAX, PERCENTILE, MSE)
DEFAULT_PERCENTILE = 99.99

_HALF = 2048  # bins of either sign
_MOST_COUNTED = 1 << 16  # elements of an array that the histogram counts
_STEPS = 255
_CLIPS = np.linspace(0.2, 1.0, 33)

_Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Method:
    """How ranges follow from values; `percentile` is of account for that method only."""

    name: str = MINMAX
    percentile: float = DEFAULT_PERCENTILE

    @staticmethod
    def of(text: str) -> Method:
        """`minmax`, `mse`, `percentile` or `percentile:99.9`. Raises SettingsError for others."""
        name, colon, share = text.partition(":")
        if name not in METHODS or (colon and name != PERCENTILE):
            raise SettingsError(
                f"no method {text!r} of calibration",
                hint=f"there are {MINMAX}, {MSE}, {PERCENTILE} and {PERCENTILE}:99.9",
            )
        if not colon:
            return Method(name)
        try:
            percentile = float(share)
        except ValueError:
            percentile = math.nan
        if not 50.0 < percentile <= 100.0:
            raise SettingsError(f"the percentile {share!r} is not a number between 50 and 100")
        return Method(name, percentile)

    def __str__(self) -> str:
        return f"{self.name} {self.percentile:g}" if self.name == PERCENTILE else self.name


class ValueRange:
    """What a tensor's values were over several runs: their minimum and maximum, and a histogram.

    The bins reach from -limit to limit, a power of two that grows with the values: then pairs of
    bins become one, so that what was counted stays right. Zeros are counted apart: they are exact
    however a tensor is quantised. NaN and infinities (masks have them) are passed over.
    """

    def __init__(self) -> None:
        self.low, self.high = math.inf, -math.inf
        self.zeros = 0
        self._limit = 0.0
        self._counts = np.zeros(2 * _HALF, np.int64)

    def add(self, array: Array) -> None:
        """Take in the values of one run."""
        values = np.asarray(array, np.float64).reshape(-1)
        finite = np.isfinite(values)
        if not finite.all():
            values = values[finite]
        if not values.size:
            return
        self.low, self.high = min(self.low, values.min()), max(self.high, values.max())
        self._reach(max(abs(self.low), abs(self.high)))
        counted = values[:: -(-values.size // _MOST_COUNTED)]
        nonzero = counted[counted != 0.0]
        self.zeros += counted.size - nonzero.size
        if nonzero.size:
            bins = np.floor((nonzero / self._limit + 1.0) * _HALF).astype(np.int64)
            bins = np.clip(bins, 0, 2 * _HALF - 1)
            self._counts += np.bincount(bins, minlength=2 * _HALF)

    def range(self, method: Method) -> tuple[float, float]:
        """The range to keep; (0, 0) if there were no values."""
        if self.low > self.high:
            return 0.0, 0.0
        if method.name == MINMAX or not self._counts.any():
            return float(self.low), float(self.high)
        low, high = self._middle(method.percentile) if method.name == PERCENTILE else self._least()
        return max(low, float(self.low)), min(high, float(self.high))

    def _reach(self, largest: float) -> None:
        """Widen the bins until they hold `largest`."""
        if largest <= self._limit or largest == 0.0:
            return
        limit = 2.0 ** math.ceil(math.log2(largest))
        limit = limit if limit > largest else 2.0 * limit
        for _ in range(min(64, round(math.log2(limit / self._limit))) if self._limit else 0):
            pairs = self._counts.reshape(-1, 2).sum(axis=1)
            self._counts = np.zeros(2 * _HALF, np.int64)
            self._counts[_HALF // 2 : _HALF // 2 + _HALF] = pairs
        self._limit = limit

    def _edges(self) -> _Doubles:
        return np.linspace(-self._limit, self._limit, 2 * _HALF + 1)

    def _middle(self, percentile: float) -> tuple[float, float]:
        counts = self._counts.astype(np.float64)
        counts[_HALF] += self.zeros
        shares = np.cumsum(counts) / counts.sum()
        tail = (1.0 - percentile / 100.0) / 2.0
        edges = self._edges()
        first = int(np.searchsorted(shares, tail, side="right"))
        last = int(np.searchsorted(shares, 1.0 - tail, side="left"))
        return float(edges[first]), float(edges[min(last, 2 * _HALF - 1) + 1])

    def _least(self) -> tuple[float, float]:
        """The pair of clips with the smallest square error, with evenly distributed rounding."""
        used = np.flatnonzero(self._counts)
        edges = self._edges()
        centres = (edges[used] + edges[used + 1]) / 2.0
        counts = self._counts[used].astype(np.float64)
        lows = np.unique(np.minimum(self.low, 0.0) * _CLIPS)
        highs = np.unique(np.maximum(self.high, 0.0) * _CLIPS)
        below = np.square(np.maximum(lows[:, None] - centres, 0.0)) @ counts
        above = np.square(np.maximum(centres - highs[:, None], 0.0)) @ counts
        steps = (highs[None, :] - lows[:, None]) / _STEPS
        errors = below[:, None] + above[None, :] + counts.sum() * np.square(steps) / 12.0
        row, column = np.unravel_index(int(np.argmin(errors)), errors.shape)
        return float(lows[row]), float(highs[column])
