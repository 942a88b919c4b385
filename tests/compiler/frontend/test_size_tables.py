"""Floats that are computed of sizes: as integers again they are quotients, where any gives them."""

from __future__ import annotations

import numpy as np
import pytest

from tunefarm.compiler.frontend.size_tables import (
    Between,
    Real,
    UndecidedError,
    applied,
    real_of,
    whole_number,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Dimension, Size, Symbol, bounds_of, divide, value_of

N = Symbol.of("n", 1, 300)


def _times(size: Dimension, factor: float) -> Real:
    return applied(np.multiply, real_of(size, DType.F32), np.float32(factor))


@pytest.mark.parametrize("factor", [0.5, 1.5, 2.0, 0.4375, 1 / 3, 0.7, 2.6, -0.25, 1 / 14])
@pytest.mark.parametrize("rounded", [np.floor, np.ceil, np.rint, np.positive])
def test_a_size_times_a_number_is_a_quotient(factor: float, rounded: np.ufunc) -> None:
    found = whole_number(applied(rounded, _times(N, factor)))
    numbers = np.arange(1, 301, dtype=np.float32)
    wanted = rounded(numbers * np.float32(factor)).astype(np.int64)
    low, high = int(wanted.min()), int(wanted.max())
    if isinstance(found, Between):  # what is rounded, or is below 0 and goes upwards
        assert (found.low, found.high) == (low, high)
        assert factor not in (2.0, 1 / 3) and (rounded, factor) not in (
            (np.floor, 0.5),
            (np.ceil, 1.5),
        )
        return
    assert [value_of(found, {"n": n}) for n in range(1, 301)] == wanted.tolist()
    assert bounds_of(found) == (low, high)


def test_what_divides_without_rest_is_no_quotient_any_more() -> None:
    assert whole_number(_times(divide(N, 2), 2.0)) == 2 * divide(N, 2)
    assert whole_number(applied(np.divide, _times(N, 6.0), real_of(N, DType.F32))) == 6


def test_bounds_of_floats_are_those_of_what_comes_out() -> None:
    size = Symbol.of("n", 1, 40)
    found = whole_number(applied(np.maximum, _times(size, 0.25), np.float32(3)))
    assert not isinstance(found, Between)
    assert [value_of(found, {"n": n}) for n in (1, 15, 16, 40)] == [3, 3, 4, 10]


def test_what_rounding_makes_no_quotient_has_bounds() -> None:
    assert whole_number(applied(np.sqrt, real_of(N, DType.F32))) == Between(1, 17)


@pytest.mark.parametrize(
    "value",
    [
        applied(np.log, applied(np.subtract, real_of(N, DType.F32), np.float32(1))),
        applied(np.divide, np.float32(1), real_of(Symbol.of("n", 0, 3), DType.F32)),
    ],
)
def test_what_is_no_number_is_left_to_the_run(value: Real) -> None:
    with pytest.raises(UndecidedError):
        whole_number(value)


def test_floats_of_several_sizes_have_bounds() -> None:
    """As what an image is resized to, whose sides are to be 8 at least or 14 at most."""
    height, width = (real_of(Symbol.of(name, 4, 9), DType.F32) for name in "hw")
    most = applied(np.maximum, height, width)
    scale = applied(np.minimum, np.float32(2), applied(np.divide, np.float32(14), most))
    found = whole_number(applied(np.floor, applied(np.multiply, width, scale)))
    assert found == Between(6, 18)


def test_floats_of_several_sizes_that_may_be_no_numbers_are_left_to_the_run() -> None:
    other = Symbol.of("m", 1, 4)
    assert isinstance(other, Size)
    both = applied(np.subtract, real_of(N, DType.F32), real_of(other, DType.F32))
    for function in (np.abs, np.exp, np.reciprocal):
        with pytest.raises(UndecidedError):
            applied(function, both)
    with pytest.raises(UndecidedError):
        whole_number(applied(np.sqrt, both))
