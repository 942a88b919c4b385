"""Is an output right? Comparison with the reference, under a tolerance that fits the arithmetic.

A sum of K terms in any order has an error of at most K u sum|terms| (Higham, Accuracy and Stability
of Numerical Algorithms, 2nd ed., section 4.2), and with roundings of random sign about sqrt(K) u
sum|terms| (Higham and Mary 2019). Neither is known per element, so the terms' size is taken from
the output itself:

    tolerance = (sum_tolerance(type, K) + inner) * (|expected| + rms(expected))

with K the kernel's reduction length, see `tunefarm.compiler.types.numerics`, and `inner` the
roundings to narrow types on the way, see `tunefarm.measure.worker.rounding`. A result that is
itself stored in a narrow type was summed in f32 and rounded once: it may be off by one of its own
spacings besides. So sums in a narrow type are refused, of whose spacings many pile up. Integers and
bools must be equal; NaN equals NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.types.dtypes import WIDE_FLOATS, DType
from tunefarm.compiler.types.numerics import is_narrow, sum_tolerance
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.measure.worker.rounding import Rounding

Floats: TypeAlias = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The worst element of a wrong output, and how many elements are wrong."""

    index: tuple[int, ...]
    got: float | int | bool
    expected: float | int | bool
    wrong: int
    total: int

    def __str__(self) -> str:
        where = ", ".join(map(str, self.index))
        return (
            f"output[{where}] is {self.got}, expected {self.expected}"
            f" ({self.wrong} of {self.total} elements are wrong)"
        )


def tolerance(expected: Floats, dtype: DType, rounding: Rounding) -> tuple[float, float]:
    """(relative, absolute) tolerance of a float output of this type before it was stored."""
    relative = sum_tolerance(dtype, rounding.length) + rounding.inner
    finite = expected[np.isfinite(expected)]
    if not finite.size:
        return relative, 0.0
    largest = float(np.max(np.abs(finite)))
    if largest == 0.0:
        return relative, 0.0
    scaled = finite.reshape(-1) / finite.dtype.type(largest)  # squares that cannot overflow
    rms = largest * math.sqrt(float(np.dot(scaled, scaled)) / finite.size)
    return relative, relative * rms


class OutputCheck:
    """What an output is to be, with what depends on that alone computed once."""

    def __init__(
        self, expected: Array, rounding: Rounding, needed: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """`expected` of a kernel that rounds so; of its elements only the `needed` ones count."""
        self._needed = needed
        dtype = DType.from_numpy(expected.dtype)
        self._expected = expected
        self._is_float = dtype.is_float
        if not self._is_float:
            return
        floats = self._floats = _computed(expected)
        relative, absolute = tolerance(floats, dtype, rounding)
        with np.errstate(invalid="ignore", over="ignore"):
            self._limit: Floats = np.abs(floats)
            self._limit *= relative
            self._limit += absolute
            if is_narrow(dtype):
                self._limit += np.abs(np.spacing(expected).astype(self._limit.dtype))
        self._is_finite = bool(np.isfinite(self._limit).all())

    def mismatch(self, got: Array) -> Mismatch | None:
        """The worst element of `got`, or None when all are right. Shapes and types are equal."""
        if self._needed is not None:
            got = np.where(self._needed, got, self._expected)
        if self._is_float:
            return self._compare_floats(_computed(got))
        if got.dtype == np.bool_:
            return _exact(got.view(np.uint8), self._expected.view(np.uint8))
        return _exact(got, self._expected)

    def _compare_floats(self, got: Floats) -> Mismatch | None:
        expected = self._floats
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(got - expected)
            right = error <= self._limit
        if self._is_finite and right.all():
            return None
        return _mismatch_of_floats(got, expected, error, self._limit, right)


def compare_output(got: Array, expected: Array, rounding: Rounding) -> Mismatch | None:
    """The worst element of `got`, or None when all are right. Shapes and types are equal."""
    return OutputCheck(expected, rounding).mismatch(got)


def _computed(values: Array) -> Floats:
    """Floats in a type that NumPy computes with: narrow ones as f32, which holds them."""
    dtype = DType.from_numpy(values.dtype)
    return cast(Floats, values if dtype in WIDE_FLOATS else values.astype(np.float32))


def _mismatch_of_floats(
    got: Floats, expected: Floats, error: Floats, limit: Floats, right: npt.NDArray[np.bool_]
) -> Mismatch | None:
    """The worst element that is neither `right` nor as infinite or as no number as expected."""
    right &= np.isfinite(expected)
    right |= (got == expected) | (np.isnan(got) & np.isnan(expected))
    if right.all():
        return None
    wrong = np.flatnonzero(~right)
    with np.errstate(invalid="ignore", over="ignore"):
        excess = error.reshape(-1)[wrong] / np.maximum(
            limit.reshape(-1)[wrong], np.finfo(limit.dtype).tiny
        )
    excess[np.isnan(excess)] = np.inf
    return _mismatch(got, expected, int(wrong[np.argmax(excess)]), len(wrong))


def _exact(got: Array, expected: Array) -> Mismatch | None:
    if np.array_equal(got, expected):
        return None
    wrong = np.flatnonzero(got != expected)
    return _mismatch(got, expected, int(wrong[0]), len(wrong))


def _mismatch(got: Array, expected: Array, position: int, wrong: int) -> Mismatch:
    index = tuple(int(i) for i in np.unravel_index(position, got.shape))
    return Mismatch(index, got[index].item(), expected[index].item(), wrong, got.size)
