"""Element types: what they hold of each other, as NumPy has it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.processes import python
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType

NUMBERS = [dtype for dtype in DType if dtype is not DType.STRING]  # which is stored as one
NUMPYS_OWN = tuple(dtype for dtype in NUMBERS if dtype.numpy.type.__module__ == "numpy")


@pytest.mark.parametrize("one", NUMPYS_OWN)
def test_type_holds_what_numpy_casts_safely_within_a_kind(one: DType) -> None:
    for other in NUMPYS_OWN:
        alike = (one.is_float, one.is_integer) == (other.is_float, other.is_integer)
        assert one.holds(other) == (alike and np.can_cast(other.numpy, one.numpy, "safe")), other


@pytest.mark.parametrize("one", DType)
def test_type_holds_another_exactly_if_it_has_its_numbers(one: DType) -> None:
    for other in DType:
        if other is one or not one.holds(other) or other.bits > 16:
            continue
        unsigned = np.dtype(f"u{other.bytes}")
        numbers = np.arange(1 << max(other.bits, 1), dtype=unsigned).view(other.numpy)
        there = converted(converted(numbers, one), other)
        np.testing.assert_array_equal(converted(there, DType.F64), converted(numbers, DType.F64))


def test_f32_holds_all_narrow_floats_and_they_not_each_other() -> None:
    narrow = [dtype for dtype in DType if dtype.is_float and dtype.bits == 8]
    assert all(DType.F32.holds(dtype) for dtype in (*narrow, DType.F16, DType.BF16))
    assert not DType.F16.holds(DType.BF16) and not DType.BF16.holds(DType.F16)
    assert not any(one.holds(other) for one, other in itertools.permutations(narrow, 2))


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.is_integer])
def test_limits_are_the_least_and_greatest_numbers(dtype: DType) -> None:
    for limit in dtype.limits:
        assert int(np.array([limit]).astype(dtype.numpy)[0]) == limit


@pytest.mark.parametrize("dtype", NUMBERS)
def test_bytes_are_those_of_the_numpy_type(dtype: DType) -> None:
    assert dtype.bytes == dtype.numpy.itemsize
    assert DType.from_numpy(dtype.numpy) is dtype


def test_targets_and_numerics_do_without_numpy() -> None:
    program = (
        "import sys, tunefarm.compiler.target, tunefarm.compiler.types.numerics; "
        "print('numpy' in sys.modules)"
    )
    done = python("-c", program, check=True)
    assert done.stdout == "False\n"
