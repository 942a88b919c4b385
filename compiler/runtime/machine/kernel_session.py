"""What kernels find set up that are called one by one, outside of a model's entry function."""

from __future__ import annotations

import ctypes
from functools import cache
from types import TracebackType

from tunefarm.compiler.machine.amx_set_up import TilePalette, set_up_ir
from tunefarm.compiler.machine.float_state import float_state_ir
from tunefarm.compiler.runtime.machine.loaded_code import LoadedCode
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import FLUSH, Denormals

_FLOATS = """
define i64 @flush_floats() { %state = call i64 @session.flush() ret i64 %state }
define void @set_floats(i64 %state) { call void @session.set(i64 %state) ret void }
"""
_TILES = """
define void @begin_tiles() { call void @session.begin() ret void }
define void @end_tiles() { call void @session.end() ret void }
"""


class KernelSession:
    """A context in which kernels that this thread calls find what an entry sets up.

    That is the target's matrix tiles, if it has any, and floats whose denormal numbers are flushed
    where a model's are. A model's run meanwhile releases the tiles.
    """

    def __init__(self, target: Target, denormals: Denormals) -> None:
        self._flushes = denormals == FLUSH
        self._tiles = target.matrix_tiles is not None
        self._code = None
        if self._flushes or self._tiles:
            self._code = _session(target.triple, target.matrix_tiles)
        self._floats = 0

    def __enter__(self) -> KernelSession:
        if self._code is not None and self._tiles:
            ctypes.CFUNCTYPE(None)(self._code.address("begin_tiles"))()
        if self._code is not None and self._flushes:
            flush = ctypes.CFUNCTYPE(ctypes.c_int64)(self._code.address("flush_floats"))
            self._floats = flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._code is not None and self._flushes:
            set_floats = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._code.address("set_floats"))
            set_floats(self._floats)
        if self._code is not None and self._tiles:
            ctypes.CFUNCTYPE(None)(self._code.address("end_tiles"))()


@cache
def _session(triple: str, tiles: TilePalette | None) -> LoadedCode:
    ir, symbols = float_state_ir(triple, "session") + _FLOATS, ["flush_floats", "set_floats"]
    if tiles is not None:
        ir += set_up_ir(tiles, "session") + _TILES
        symbols += ["begin_tiles", "end_tiles"]
    return LoadedCode((), symbols, ir)
