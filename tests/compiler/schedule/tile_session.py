"""What a model's entry sets up for kernels with matrix tiles, for kernels that tests call alone."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from tunefarm.compiler.machine.amx_set_up import TilePalette, set_up_ir
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import Target

_TILES = """
define void @begin_tiles() { call void @session.begin() ret void }
define void @end_tiles() { call void @session.end() ret void }
"""


@contextmanager
def tile_session(target: Target) -> Iterator[None]:
    """Within it kernels that this thread calls find the target's matrix tiles, if it has any."""
    if target.matrix_tiles is None:
        yield
        return
    code = _session(target.matrix_tiles)
    ctypes.CFUNCTYPE(None)(code.address("begin_tiles"))()
    try:
        yield
    finally:
        ctypes.CFUNCTYPE(None)(code.address("end_tiles"))()


@cache
def _session(tiles: TilePalette) -> LoadedCode:
    return LoadedCode((), ["begin_tiles", "end_tiles"], set_up_ir(tiles, "session") + _TILES)
