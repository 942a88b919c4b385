"""Threads: how kernels call the pool that runs parallel loops.

They call only a function with the signature of `GOMP_parallel(fn, data, threads, flags)`.
"""

from __future__ import annotations

import ctypes
import warnings
from functools import cache

from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.machine.thread_pool import thread_pool


class Runtime(ctypes.Structure):
    """What a kernel knows about threads; the same layout as the code generator's struct."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


@cache
def _warn_serial() -> None:
    """Say once per process that parallel loops run serially."""
    warnings.warn(
        "this system has no futexes for the pool of threads: models run on one thread",
        RuntimeWarning,
        stacklevel=3,
    )


def make_runtime(threads: int, code: LoadedCode | None = None) -> tuple[Runtime, str]:
    """The kernels' view of `threads` threads, and who provides them ("" for one thread).

    `code` is a model's that has the pool's functions, if it has them.

    One thread, with a warning, where there is no pool. Raises `ValueError` for
    less than one thread.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    if threads == 1:
        return Runtime(None, 1, 0), ""
    pool = thread_pool(threads, code)
    if pool is None:
        _warn_serial()
        return Runtime(None, 1, 0), ""
    return Runtime(pool.parallel, threads, 0), "pool"
