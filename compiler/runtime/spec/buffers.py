"""Aligned memory: arrays that start at a cache line, and where arrays are."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.runtime.spec.executable_spec import ALIGNMENT, aligned
from tunefarm.compiler.types.packing import NewArray
from tunefarm.compiler.types.tensor_type import Array

# Bytes from which on an output starts at a cache line; for less that costs more than it brings.
_WORTH_ALIGNING = 4096

_HUGE_PAGE = 2 << 20

Tables: TypeAlias = ctypes.Array[ctypes.c_void_p]

_byte_at: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
_address = ctypes.addressof


def allocate(shape: tuple[int, ...], dtype: np.dtype[np.generic], count: int) -> tuple[Array, int]:
    """An uninitialised C-contiguous array of `count` bytes, aligned to `ALIGNMENT`, and where."""
    memory: npt.NDArray[np.uint8] = np.empty(count + ALIGNMENT, np.uint8)
    start = _address(_byte_at(memory))
    skip = -start % ALIGNMENT
    return np.ndarray(shape, dtype, memory, skip), start + skip


def allocate_output(
    shape: tuple[int, ...], dtype: np.dtype[np.generic], count: int
) -> tuple[Array, int]:
    """As `allocate`, but a small array may start at any multiple of its elements' size."""
    if count >= _WORTH_ALIGNING:
        return allocate(shape, dtype, count)
    array: Array = np.empty(shape, dtype)
    return array, address_of(array)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """An uninitialised C-contiguous array, aligned to `ALIGNMENT`."""
    return allocate(shape, dtype, math.prod(shape) * dtype.itemsize)[0]


def aligned_pieces(
    sizes: Sequence[int], empty: Callable[[int], npt.NDArray[np.uint8]] | None = None
) -> list[NewArray]:
    """What makes an array of at most so many bytes, for each of the sizes, in one piece of memory,
    which `empty` makes.

    NumPy asks for huge pages for pieces of 4 MiB. Weights of a decoder are smaller one by one, and
    reading them from small pages takes up to twice as long where a hypervisor translates, too. The
    piece begins at a huge page and fills its last one: else those at its ends would be small.
    """
    starts = list(accumulate(map(aligned, sizes), initial=0))
    room, unit = starts[-1] + ALIGNMENT, ALIGNMENT
    if starts[-1] >= _HUGE_PAGE // 2:
        room, unit = (starts[-1] // _HUGE_PAGE + 2) * _HUGE_PAGE, _HUGE_PAGE
    memory = np.empty(room, np.uint8) if empty is None else empty(room)
    memory = memory[-address_of(memory) % unit :]

    def piece(start: int, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        return np.ndarray(shape, dtype, memory, start)

    return [partial(piece, start) for start in starts[:-1]]


def pointer_table(addresses: Sequence[int]) -> Tables:
    """Pointers one after the other; room for one at least."""
    return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)


def address_of(array: Array) -> int:
    """Address of the array's first element."""
    try:
        return _address(_byte_at(array))  # a fifth of the time of the interface below
    except (TypeError, ValueError):  # it is read-only, not contiguous, or empty
        address: int = array.__array_interface__["data"][0]
        return address
