"""Denormal numbers of arrays become zeros of their sign, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunefarm.compiler.types.denormals import flush_in_place, flushed
from tunefarm.compiler.types.dtypes import DType

BITS: dict[DType, tuple[Any, int, int]] = {
    DType.BF16: (np.uint16, 7, 15),
    DType.F32: (np.uint32, 23, 31),
    DType.F64: (np.uint64, 52, 63),
}
"""An integer of the same width, and the lowest bits of the exponent and of the sign."""


@pytest.mark.parametrize("dtype", BITS)
def test_all_below_the_smallest_normal_number_is_flushed(dtype: DType) -> None:
    integer, exponent, sign = BITS[dtype]
    normal = [1 << exponent, (1 << exponent) + 1, 3 << exponent, ((1 << sign) - 1)]
    tiny = [1, 2, (1 << exponent) - 1, 1 << (exponent - 1)]
    given = np.array([0, *normal, *tiny], integer)
    given = np.concatenate([given, given | integer(1 << sign)])
    expected = given.copy()
    expected[(given & integer((1 << sign) - 1)) < integer(1 << exponent)] &= integer(1 << sign)
    assert np.count_nonzero(expected != given) == 2 * len(tiny)
    found = flushed(given.view(dtype.numpy))
    np.testing.assert_array_equal(found.view(integer), expected)
    flush_in_place(given.view(dtype.numpy))
    np.testing.assert_array_equal(given, expected)


def test_an_array_without_any_is_the_same_and_narrow_floats_are_not_looked_at() -> None:
    for array in (np.ones(3, np.float32), np.array([6e-8], np.float16), np.arange(3)):
        assert flushed(array) is array
