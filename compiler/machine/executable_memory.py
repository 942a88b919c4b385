"""Whether this process may make code and run it.

Services with MemoryDenyWriteExecute (systemd; `prctl(PR_SET_MDWE)` or a filter of system calls) and
SELinux without execmem refuse memory that was written to and is to be executed. LLVM ends the
process then, so it is tried before: with one page, in a few microseconds.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from functools import cache

HINT = (
    "set MemoryDenyWriteExecute=no for the service, or allow execmem in SELinux; "
    "a C library (tune build --emit c-header+shared-library) needs neither"
)


def refusal() -> str:
    """What the system says to a page of code; "" if it may be run."""
    if os.name != "posix":
        return ""
    with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        first = ctypes.c_char.from_buffer(page)
        failed = _protect()(ctypes.addressof(first), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC)
        error = ctypes.get_errno() if failed else 0
        del first
    return os.strerror(error) if error else ""


@cache
def _protect() -> Callable[[int, int, int], int]:
    prototype = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, use_errno=True
    )
    return prototype(("mprotect", ctypes.CDLL(None)))
