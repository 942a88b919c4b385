"""Aligned memory: arrays that start at a cache line, and where arrays are."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from compiler.graph.ir import Array
from compiler.runtime.executable_spec import ALIGNMENT

_byte_at = ctypes.c_char.from_buffer
_address = ctypes.addressof


def allocate(shape: tuple[int, ...], dtype: np.dtype[np.generic], count: int) -> tuple[Array, int]:
    """An uninitialised C-contiguous array of `count` bytes, aligned to `ALIGNMENT`, and where."""
    memory: npt.NDArray[np.uint8] = np.empty(count + ALIGNMENT, np.uint8)
    start = _address(_byte_at(memory.data))
    skip = -start % ALIGNMENT
    return np.ndarray(shape, dtype, memory, skip), start + skip


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[np.generic], count: int) -> Array:
    """An uninitialised C-contiguous array of `count` bytes, aligned to `ALIGNMENT`."""
    return allocate(shape, dtype, count)[0]


def address_of(array: Array) -> int:
    """Address of the array's first element."""
    flags = array.flags
    if flags.writeable and flags.c_contiguous and array.size:
        return _address(_byte_at(array.data))  # a third of the time of the interface below
    address: int = array.__array_interface__["data"][0]
    return address
