"""Matrix tiles on a CPU that has none: a handler of SIGILL computes what they would."""

from __future__ import annotations

import ctypes
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from tests.compiler.runtime.c_models import cc
from tunefarm.compiler.target import Target, host_target

_SOURCE = Path(__file__).with_name("amx_emulator.c")
_FEATURES = ("amx-bf16", "amx-int8", "amx-tile")


def tiled_host() -> Target:
    """This CPU as it would be with matrix tiles, and registers as wide as theirs."""
    host = host_target()
    features = tuple(sorted({*host.features, *_FEATURES}))
    return replace(host, features=features, vector_bytes=64, vector_registers=32)


def _problem() -> str:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "tiles are emulated on Linux on x86-64"
    if tiled_host().lacking_feature:
        return f"code with tiles runs next to wide vectors here: {tiled_host().lacking_feature}"
    return "" if shutil.which("cc") else "the emulator of tiles needs a C compiler"


tiles_emulated = pytest.mark.skipif(bool(_problem()), reason=_problem())


@dataclass(slots=True)
class Count:
    """How many products of tiles were computed; known at the end."""

    products: int = 0


@contextmanager
def emulated_tiles() -> Iterator[Count]:
    """Instructions about tiles do in this process meanwhile what they would do on a CPU with AMX.

    Where the CPU has them it computes them itself, and none is counted.
    """
    library, count = _library(), Count()
    assert library.emulator_begin() == 0
    try:
        yield count
    finally:
        count.products = library.emulator_end()


@cache
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        flags = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
        cc(Path(folder), *flags, "-o", "emulator.so", str(_SOURCE))
        return ctypes.CDLL(str(Path(folder, "emulator.so")))
