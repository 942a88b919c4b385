"""Matrix tiles for kernels that are called one by one, outside of a model's entry function."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import Target
from tunefarm.compiler.tile_set_up import TilePalette, set_up_ir

_SESSION = """
define void @begin_session() { call void @session.begin() ret void }
define void @end_session() { call void @session.end() ret void }
"""


@contextmanager
def tiles_set_up(target: Target) -> Iterator[None]:
    """Kernels that this thread calls meanwhile find the target's tiles set up, if it has any.

    A model's run in between releases them.
    """
    if target.matrix_tiles is None:
        yield
        return
    code = _session(target.matrix_tiles)
    procedure = ctypes.CFUNCTYPE(None)
    procedure(code.address("begin_session"))()
    try:
        yield
    finally:
        procedure(code.address("end_session"))()


@cache
def _session(tiles: TilePalette) -> LoadedCode:
    ir = set_up_ir(tiles, "session") + _SESSION
    return LoadedCode((), ("begin_session", "end_session"), ir)
