"""Guard pages and canaries round a buffer."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.compiler.types.dtypes import DType
from tunefarm.measure.sandbox.guarded import ALIGNMENT, GuardedBuffer


@given(st.integers(0, 20_000))
def test_buffer_is_aligned_and_ends_near_the_guard_page(nbytes: int) -> None:
    with GuardedBuffer(nbytes) as buffer:
        assert buffer.address % ALIGNMENT == 0
        distance = -(buffer.address + nbytes) % 4096
        assert distance < ALIGNMENT or nbytes == 0
        assert buffer.damage() == ""


def test_written_margin_is_reported() -> None:
    with GuardedBuffer(100) as buffer:
        margin = ctypes.c_uint8.from_address(buffer.address + 100)
        margin.value ^= 1
        assert buffer.damage() == "wrote 1 byte(s) after the end"
        margin.value ^= 1
        ctypes.c_uint8.from_address(buffer.address - 2).value ^= 1
        assert buffer.damage() == "wrote 2 byte(s) before the start"


def test_margins_of_two_buffers_differ() -> None:
    with GuardedBuffer(100) as first, GuardedBuffer(100) as second:
        ctypes.memmove(second.address, first.address, 116)
        assert second.damage() != ""


def test_contents_are_compared_byte_by_byte() -> None:
    array = np.array([1.0, np.nan, -0.0], dtype=np.float32)
    with GuardedBuffer(array.nbytes) as buffer:
        buffer.fill(array)
        assert buffer.equals(array)
        assert not buffer.equals(np.array([1.0, np.nan, 0.0], dtype=np.float32))
        assert np.signbit(buffer.array(DType.F32, (3,))[2])


def test_poison_makes_floats_nan() -> None:
    with GuardedBuffer(64) as buffer:
        buffer.poison(0xFF)
        assert np.isnan(buffer.array(DType.F32, (4, 4))).all()
        assert np.isnan(buffer.array(DType.F64, (8,))).all()


def test_memory_that_cannot_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="cannot map"):
        GuardedBuffer(1 << 60)


def test_buffer_can_be_closed_twice() -> None:
    buffer = GuardedBuffer(10)
    buffer.close()
    buffer.close()
