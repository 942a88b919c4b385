"""Whether a limit of this process leaves libraries the memory that they end it without."""

from __future__ import annotations

import errno
import mmap
import sys

from tunefarm.configs.errors import SettingsError
from tunefarm.configs.resource_limits import ADDRESS_SPACE, DATA, MIB, ResourceLimit

_LIBRARIES = {"numpy": 130 * MIB, "llvmlite.binding": 200 * MIB}
"""Address space that each takes when it is imported and used once (NumPy 2.4, llvmlite 0.48)."""


def require_memory(nbytes: int, what: str) -> None:
    """Raise SettingsError if a limit leaves no room for `nbytes`, which `what` needs now.

    For libraries that end the process where they get no memory. A third of it is written to, and
    counts for the limit of data. Without a limit nothing is tried.
    """
    if nbytes:
        _require(ADDRESS_SPACE, nbytes, mmap.PROT_READ, what)
        _require(DATA, nbytes // 3, mmap.PROT_READ | mmap.PROT_WRITE, what)


def require_libraries() -> None:
    """Raise SettingsError if a limit leaves no room for the libraries that are not loaded yet."""
    missing = [size for name, size in _LIBRARIES.items() if name not in sys.modules]
    require_memory(sum(missing), "NumPy and LLVM")


def _require(limit: ResourceLimit, nbytes: int, protection: int, what: str) -> None:
    if (value := limit.value) is None:
        return
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        mmap.mmap(-1, nbytes, flags, protection).close()
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise SettingsError(
            f"there is too little memory for {what}, {nbytes // MIB} MiB more: {limit.text(value)}"
        ) from error
