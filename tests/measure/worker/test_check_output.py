"""What the comparison with the reference lets pass, and what not."""

from __future__ import annotations

import numpy as np
import pytest

from tunefarm.compiler.types.dtypes import DType
from tunefarm.measure.worker.reference import Rounding
from tunefarm.measure.worker.workload import compare_output, tolerance


def random_floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_equal_outputs_pass() -> None:
    expected = random_floats(7, 13)
    assert compare_output(expected.copy(), expected, Rounding(1)) is None


@pytest.mark.parametrize("length", [9, 576, 4608])
def test_rounding_of_a_long_sum_passes_and_a_forgotten_term_does_not(length: int) -> None:
    rng = np.random.default_rng(length)
    a = rng.uniform(-1, 1, (200, length)).astype(np.float32)
    b = rng.uniform(-1, 1, (length, 30)).astype(np.float32)
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    total = np.zeros((200, 30), np.float32)
    for k in range(length):
        total += a[:, k, None] * b[None, k]
    assert compare_output(total, expected, Rounding(length)) is None
    mismatch = compare_output(total - a[:, -1, None] * b[None, -1], expected, Rounding(length))
    assert mismatch is not None and mismatch.wrong > 1000


def test_worst_element_is_named() -> None:
    expected = random_floats(5, 6)
    got = expected.copy()
    got[1, 2] += 0.01
    got[3, 4] += 1.0
    mismatch = compare_output(got, expected, Rounding(1))
    assert mismatch is not None
    assert (mismatch.index, mismatch.wrong, mismatch.total) == ((3, 4), 2, 30)
    assert mismatch.got == got[3, 4] and mismatch.expected == expected[3, 4]
    assert str(mismatch).startswith("output[3, 4] is ")


def test_element_that_was_not_written_is_the_worst() -> None:
    expected = random_floats(100)
    got = expected.copy()
    got[3], got[98] = 1e30, np.nan
    mismatch = compare_output(got, expected, Rounding(1))
    assert mismatch is not None and mismatch.index == (98,)


def test_infinity_and_nan_equal_themselves_only() -> None:
    expected = np.array([np.inf, -np.inf, np.nan, 1.0], dtype=np.float32)
    assert compare_output(expected.copy(), expected, Rounding(1)) is None
    for position, value in ((0, -np.inf), (1, 3e38), (2, 0.0), (3, np.inf)):
        got = expected.copy()
        got[position] = value
        mismatch = compare_output(got, expected, Rounding(1))
        assert mismatch is not None and mismatch.index == (position,)


def test_integers_must_be_equal() -> None:
    expected = np.arange(10, dtype=np.int64)
    got = expected.copy()
    assert compare_output(got, expected, Rounding(1000)) is None
    got[7] += 1
    mismatch = compare_output(got, expected, Rounding(1000))
    assert mismatch is not None and (mismatch.got, mismatch.expected) == (8, 7)


def test_bool_that_is_neither_zero_nor_one_is_wrong() -> None:
    expected = np.array([True, False])
    got = np.array([2, 0], dtype=np.uint8).view(np.bool_)
    assert compare_output(expected.copy(), expected, Rounding(1)) is None
    assert compare_output(got, expected, Rounding(1)) is not None


def test_scalar_output_is_compared() -> None:
    expected = np.array(2.0, dtype=np.float32)
    assert compare_output(np.array(2.0, dtype=np.float32), expected, Rounding(1)) is None
    mismatch = compare_output(np.array(2.5, dtype=np.float32), expected, Rounding(1))
    assert mismatch is not None and mismatch.index == ()


def in_bf16(values: np.ndarray) -> np.ndarray:
    return values.astype(DType.BF16.numpy)


def test_narrow_result_may_be_the_neighbour_of_the_right_one_and_no_other() -> None:
    expected = in_bf16(random_floats(50, 20))
    bits = expected.view(np.int16)
    assert compare_output((bits + 1).view(expected.dtype), expected, Rounding(1)) is None
    mismatch = compare_output((bits + 2).view(expected.dtype), expected, Rounding(1))
    assert mismatch is not None and mismatch.wrong > 900


@pytest.mark.parametrize("length", [64, 576])
@pytest.mark.parametrize("stored", [DType.F32, DType.BF16])
def test_sum_in_a_narrow_type_is_refused_and_one_in_f32_is_not(length: int, stored: DType) -> None:
    rng = np.random.default_rng(length)
    a = in_bf16(rng.uniform(-1, 1, (100, length)).astype(np.float32)).astype(np.float32)
    b = in_bf16(rng.uniform(-1, 1, (length, 30)).astype(np.float32)).astype(np.float32)
    expected = (a.astype(np.float64) @ b.astype(np.float64)).astype(stored.numpy)
    wide, narrow = np.zeros((100, 30), np.float32), in_bf16(np.zeros((100, 30)))
    for k in range(length):
        term = a[:, k, None] * b[None, k]
        wide += term
        narrow = in_bf16(narrow.astype(np.float32) + term)
    rounding = Rounding(length)
    assert compare_output(wide.astype(stored.numpy), expected, rounding) is None
    forgotten = (wide - a[:, -1, None] * b[None, -1]).astype(stored.numpy)
    for wrong in (narrow.astype(stored.numpy), forgotten):
        mismatch = compare_output(wrong, expected, rounding)
        assert mismatch is not None and mismatch.wrong > 300


def test_values_rounded_on_the_way_may_differ_by_what_they_are_rounded_to() -> None:
    expected = random_floats(50)
    got = expected * np.float32(1 + DType.BF16.epsilon)
    assert compare_output(got, expected, Rounding(1)) is not None
    assert compare_output(got, expected, Rounding(1, DType.BF16.epsilon)) is None


def test_rms_of_huge_values_does_not_overflow() -> None:
    expected = np.full(4, 3e38, dtype=np.float32)
    assert np.isfinite(tolerance(expected, DType.F32, Rounding(1))[1])
