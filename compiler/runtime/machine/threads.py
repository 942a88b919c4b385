"""Threads: what runs parallel loops, our own pool or the OpenMP runtime that this machine has.

Kernels call only a function with the signature of `GOMP_parallel(fn, data, threads, flags)`. On
Linux that is the pool of `thread_pool`; elsewhere GNU's libgomp, which defines it, or LLVM's libomp
(and Intel's libiomp5), which export it too.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.runtime.machine.thread_pool import thread_pool
from tunefarm.compiler.types.frozen import frozen

_SYSTEM_NAMES = ("libgomp.so.1", "libomp.so.5", "libomp.so", "libiomp5.so", "libomp.dylib")
_BUNDLED_PATTERNS = (
    "*.libs/libgomp*.so*",
    "*.libs/lib*omp*.so*",
    "*/lib/libgomp*.so*",
    "*/lib/lib*omp*.so*",
    "*/.dylibs/lib*omp*.dylib",
    "*/lib/lib*omp*.dylib",
)


class Runtime(ctypes.Structure):
    """What a kernel knows about threads; the same layout as the code generator's struct."""

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


@frozen
class OpenMP:
    """A loaded OpenMP runtime: where it came from, and the address of its `GOMP_parallel`."""

    path: str
    parallel: int


@cache
def find_openmp() -> OpenMP | None:
    """The first OpenMP runtime that loads: the system's, else one that a Python package bundles."""
    for path in _candidates():
        openmp = load_openmp(path)
        if openmp is not None:
            return openmp
    return None


def _candidates() -> Iterator[str]:
    yield from _SYSTEM_NAMES
    for name in _SYSTEM_NAMES:
        yield str(Path(sys.prefix) / "lib" / name)
    folders = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path)
    for folder in dict.fromkeys(entry for entry in folders if entry.endswith("-packages")):
        for pattern in _BUNDLED_PATTERNS:
            yield from map(str, sorted(Path(folder).glob(pattern)))


def load_openmp(path: str) -> OpenMP | None:
    """Load the library `path` (a name or a file); None if it does not load or lacks the call.

    The library stays loaded for the life of the process: its threads may outlive any caller.
    """
    try:
        library = ctypes.CDLL(path)
        function = library.GOMP_parallel
    except (OSError, AttributeError):
        return None
    address = ctypes.cast(function, ctypes.c_void_p).value
    return OpenMP(path, address) if address else None


@cache
def _warn_serial() -> None:
    """Say once per process that parallel loops run serially."""
    warnings.warn(
        "no OpenMP runtime found: models run on one thread (install libgomp or llvm-openmp)",
        RuntimeWarning,
        stacklevel=3,
    )


def make_runtime(threads: int, code: LoadedCode | None = None) -> tuple[Runtime, str]:
    """The kernels' view of `threads` threads, and who provides them ("" for one thread).

    `code` is a model's that has the pool's functions, if it has them.

    One thread, with a warning, where there is neither the pool nor OpenMP. Raises `ValueError` for
    less than one thread.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    if threads == 1:
        return Runtime(None, 1, 0), ""
    pool = thread_pool(threads, code)
    if pool is not None:
        return Runtime(pool.parallel, threads, 0), "pool"
    openmp = find_openmp()
    if openmp is None:
        _warn_serial()
        return Runtime(None, 1, 0), ""
    return Runtime(openmp.parallel, threads, 0), openmp.path
