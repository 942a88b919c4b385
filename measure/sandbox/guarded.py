"""Memory with guard pages on both sides: an access outside a buffer crashes or leaves a trace.

    | guard page | canary ........ | buffer | canary < 64 bytes | guard page |

The buffer ends as close to the second guard page as the 64-byte alignment of the kernel ABI
permits; what is left on either side is filled with a canary that `damage` verifies. Each buffer has
another canary, so that copying one buffer's margin over another's shows.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array

_PAGE = mmap.PAGESIZE
_HUGE_PAGE = 2 * 1024 * 1024
_PROT_NONE = 0  # the mmap module does not name it

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value


class GuardedPages:
    """At least `nbytes` of zeroed memory, whole pages, between guards. Views die with `close`."""

    def __init__(self, nbytes: int, *, huge: bool = False) -> None:
        """Map the memory; raises MemoryError when there is not enough.

        `huge`: begin where a huge page may, and ask for those.
        """
        self.nbytes = -(-max(nbytes, 1) // _PAGE) * _PAGE
        unit = _HUGE_PAGE if huge else _PAGE
        self._size = self.nbytes + unit + _PAGE
        base = _libc.mmap(
            None, self._size, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
        )
        if base is None or base == _MAP_FAILED:
            raise MemoryError(f"cannot map {self._size} bytes: {os.strerror(ctypes.get_errno())}")
        self._base: int | None = int(base)
        self.address = -(-(self._base + _PAGE) // unit) * unit
        if _libc.mprotect(self.address, self.nbytes, mmap.PROT_READ | mmap.PROT_WRITE):
            reason = os.strerror(ctypes.get_errno())
            self.close()
            raise MemoryError(f"cannot map {self._size} bytes: {reason}")
        if huge:  # without them it is as good, but for speed
            _libc.madvise(self.address, self.nbytes, mmap.MADV_HUGEPAGE)

    def touch(self) -> None:
        """Have every page there, with what it holds: none is found or cleared at a later access."""
        view(self.address, self.nbytes)[::_PAGE] |= 0

    def close(self) -> None:
        """Unmap the memory. Idempotent."""
        if self._base is not None:
            _libc.munmap(self._base, self._size)
            self._base = None


def view(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """The bytes at an address, without a copy; whoever looks keeps them mapped."""
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.ctypeslib.as_array(memory)


ALIGNMENT = 64
_canaries = itertools.count(1)


class GuardedBuffer:
    """`nbytes` of memory between two guard pages. Views of it die with `close`."""

    def __init__(self, nbytes: int) -> None:
        """Map the memory; raises MemoryError when there is not enough."""
        self.nbytes = nbytes
        padded = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
        self._pages = GuardedPages(padded)
        first = self._pages.address
        self.address = first + self._pages.nbytes - padded
        self._before = view(first, self.address - first)
        self._after = view(self.address + nbytes, padded - nbytes)
        self._canary = next_canary()
        self._whole = bytes([self._canary]) * max(len(self._before), len(self._after))
        self._before[:] = self._canary
        self._after[:] = self._canary
        self.bytes = view(self.address, nbytes)

    def array(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        """The memory as an array, without a copy."""
        return self.bytes.view(dtype.numpy).reshape(shape)

    def fill(self, array: Array) -> None:
        """Copy the array's bytes in."""
        self.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def poison(self, byte: int) -> None:
        """Fill with `byte`; 0xFF makes every float a NaN."""
        ctypes.memset(self.address, byte, self.nbytes)

    def equals(self, array: Array) -> bool:
        """Whether the memory holds exactly the array's bytes (a C-contiguous array)."""
        if array.nbytes != self.nbytes:
            raise ValueError("the array to compare with has another size")
        return holds(self.address, array)

    def damage(self) -> str:
        """Where the canary was overwritten, in words; empty when it is whole."""
        before, after = len(self._before), len(self._after)
        if not (
            _libc.memcmp(self.address - before, self._whole, before)
            or _libc.memcmp(self.address + self.nbytes, self._whole, after)
        ):
            return ""
        return self._described()

    def _described(self) -> str:
        after = np.flatnonzero(self._after != self._canary)
        if len(after):
            return f"wrote {int(after[0]) + 1} byte(s) after the end"
        before = np.flatnonzero(self._before != self._canary)
        if len(before):
            return f"wrote {len(self._before) - int(before[-1])} byte(s) before the start"
        return ""

    def close(self) -> None:
        """Unmap the memory. Idempotent."""
        self._pages.close()

    def __enter__(self) -> GuardedBuffer:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def next_canary() -> int:
    """A byte that the memory mapped before does not have, and that begins no small number."""
    return 0x80 | (37 * next(_canaries)) & 0xFF


def holds(address: int, array: Array) -> bool:
    """Whether exactly the bytes of an array (C-contiguous) are at the address."""
    if not array.flags.c_contiguous:
        raise ValueError("the array to compare with is not contiguous")
    return not _libc.memcmp(address, array.ctypes.data, array.nbytes)
