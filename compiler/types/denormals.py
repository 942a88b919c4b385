"""Denormal numbers of arrays, made zeros.

f16 and narrower floats are never flushed: all of them are normal numbers of f32, which is computed
in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array

_CHUNK = 1 << 16
"""Elements looked at together: they stay in the cache."""

_BITS: dict[DType, tuple[Any, int, int]] = {
    DType.BF16: (np.uint16, 0x7F80, 0x8000),
    DType.F32: (np.uint32, 0x7F800000, 0x80000000),
    DType.F64: (np.uint64, 0x7FF << 52, 1 << 63),
}
"""An integer of the float's width, and in it the bits of the exponent and of the sign."""


def has_denormals(array: Array) -> bool:
    """Whether there are denormal numbers."""
    return any(tiny.any() for _, tiny in _denormals(array))


def flushed(array: Array) -> Array:
    """The array with denormal numbers made zeros; the same one where it has none."""
    if not has_denormals(array):
        return array
    result = np.array(array, order="C")
    flush_in_place(result)
    return result


def flush_in_place(array: Array) -> None:
    """Make denormal numbers zeros in a C-contiguous array that is written to."""
    for bits, tiny in _denormals(array):
        if tiny.any():
            sign = _BITS[DType.from_numpy(array.dtype)][2]
            bits[tiny] &= bits.dtype.type(sign)


def _denormals(array: Array) -> Iterator[tuple[Any, Any]]:
    """The array's bits, part by part, and where in each part denormal numbers are."""
    dtype = DType.from_numpy(array.dtype)
    if dtype not in _BITS:
        return
    integer, exponent, sign = _BITS[dtype]
    bits = np.ascontiguousarray(array).reshape(-1).view(integer)
    for start in range(0, bits.size, _CHUNK):
        chunk = bits[start : start + _CHUNK]
        magnitude = chunk & integer(sign - 1)
        # 0 becomes the largest integer, all that is normal is above the mantissa's bits
        yield chunk, (magnitude - integer(1)) < integer((exponent & -exponent) - 1)
