"""Pages between pages that nobody may touch."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 * 1024 * 1024
_PROT_NONE = 0  # the mmap module does not name it

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value


class GuardedPages:
    """At least `nbytes` of zeroed memory, whole pages, between guards. Views die with `close`."""

    def __init__(self, nbytes: int, *, huge: bool = False) -> None:
        """Map the memory; raises MemoryError when there is not enough.

        `huge`: begin where a huge page may, and ask for those.
        """
        self.nbytes = -(-max(nbytes, 1) // PAGE) * PAGE
        unit = HUGE_PAGE if huge else PAGE
        self._size = self.nbytes + unit + PAGE
        base = _libc.mmap(
            None, self._size, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
        )
        if base is None or base == _MAP_FAILED:
            raise MemoryError(f"cannot map {self._size} bytes: {os.strerror(ctypes.get_errno())}")
        self._base: int | None = int(base)
        self.address = -(-(self._base + PAGE) // unit) * unit
        if _libc.mprotect(self.address, self.nbytes, mmap.PROT_READ | mmap.PROT_WRITE):
            reason = os.strerror(ctypes.get_errno())
            self.close()
            raise MemoryError(f"cannot map {self._size} bytes: {reason}")
        if huge:  # without them it is as good, but for speed
            _libc.madvise(self.address, self.nbytes, mmap.MADV_HUGEPAGE)

    def close(self) -> None:
        """Unmap the memory. Idempotent."""
        if self._base is not None:
            _libc.munmap(self._base, self._size)
            self._base = None


def view(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    """The bytes at an address, without a copy; whoever looks keeps them mapped."""
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.ctypeslib.as_array(memory)
