"""What the comparison with the reference lets pass, and what not."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.types.dtypes import DType
from compiler.types.numerics import DEFAULT_NUMERICS, Algorithm, Numerics
from measure.worker.check_output import compare_output, tolerance


def random_floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_equal_outputs_pass() -> None:
    expected = random_floats(7, 13)
    assert compare_output(expected.copy(), expected, 1) is None


@pytest.mark.parametrize("length", [9, 576, 4608])
def test_rounding_of_a_long_sum_passes_and_a_forgotten_term_does_not(length: int) -> None:
    rng = np.random.default_rng(length)
    a = rng.uniform(-1, 1, (200, length)).astype(np.float32)
    b = rng.uniform(-1, 1, (length, 30)).astype(np.float32)
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    total = np.zeros((200, 30), np.float32)
    for k in range(length):
        total += a[:, k, None] * b[None, k]
    assert compare_output(total, expected, length) is None
    mismatch = compare_output(total - a[:, -1, None] * b[None, -1], expected, length)
    assert mismatch is not None and mismatch.wrong > 1000


def test_worst_element_is_named() -> None:
    expected = random_floats(5, 6)
    got = expected.copy()
    got[1, 2] += 0.01
    got[3, 4] += 1.0
    mismatch = compare_output(got, expected, 1)
    assert mismatch is not None
    assert (mismatch.index, mismatch.wrong, mismatch.total) == ((3, 4), 2, 30)
    assert mismatch.got == got[3, 4] and mismatch.expected == expected[3, 4]
    assert str(mismatch).startswith("output[3, 4] is ")


def test_element_that_was_not_written_is_the_worst() -> None:
    expected = random_floats(100)
    got = expected.copy()
    got[3], got[98] = 1e30, np.nan
    mismatch = compare_output(got, expected, 1)
    assert mismatch is not None and mismatch.index == (98,)


def test_infinity_and_nan_equal_themselves_only() -> None:
    expected = np.array([np.inf, -np.inf, np.nan, 1.0], dtype=np.float32)
    assert compare_output(expected.copy(), expected, 1) is None
    for position, value in ((0, -np.inf), (1, 3e38), (2, 0.0), (3, np.inf)):
        got = expected.copy()
        got[position] = value
        mismatch = compare_output(got, expected, 1)
        assert mismatch is not None and mismatch.index == (position,)


def test_integers_must_be_equal() -> None:
    expected = np.arange(10, dtype=np.int64)
    got = expected.copy()
    assert compare_output(got, expected, 1000) is None
    got[7] += 1
    mismatch = compare_output(got, expected, 1000)
    assert mismatch is not None and (mismatch.got, mismatch.expected) == (8, 7)


def test_bool_that_is_neither_zero_nor_one_is_wrong() -> None:
    expected = np.array([True, False])
    got = np.array([2, 0], dtype=np.uint8).view(np.bool_)
    assert compare_output(expected.copy(), expected, 1) is None
    assert compare_output(got, expected, 1) is not None


def test_scalar_output_is_compared() -> None:
    expected = np.array(2.0, dtype=np.float32)
    assert compare_output(np.array(2.0, dtype=np.float32), expected, 1) is None
    mismatch = compare_output(np.array(2.5, dtype=np.float32), expected, 1)
    assert mismatch is not None and mismatch.index == ()


def test_numerics_decide_how_far_an_output_may_be_off() -> None:
    expected = random_floats(50).astype(np.float64)
    stored = Numerics("stored", frozenset(Algorithm), storage=DType.F32)
    assert compare_output(expected * (1 + 1e-6), expected, 1) is not None
    assert compare_output(expected * (1 + 1e-6), expected, 1, stored) is None
    assert compare_output(expected * (1 + 1e-4), expected, 1, stored) is not None


def test_rms_of_huge_values_does_not_overflow() -> None:
    expected = np.full(4, 3e38, dtype=np.float32)
    assert np.isfinite(tolerance(expected, 1, DEFAULT_NUMERICS)[1])
