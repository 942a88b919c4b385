"""Matrix tiles as AMX instructions, in the form in which tiles are named by their number.

LLVM's other form, where tiles are values, sets them up and releases them in every function, and the
two do not mix. Who calls a kernel has set tiles up in their full size, for all kernels of a run; a
kernel that needs smaller ones sets those up when it begins, and the full ones when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Expr, Load
from tunefarm.compiler.llvm.addresses import Addresses
from tunefarm.compiler.llvm.registers import Registers
from tunefarm.compiler.llvm.writer import FunctionWriter
from tunefarm.compiler.loops.ir import Memory, TileDot, TileLoad, TileStmt, TileStore, TileZero
from tunefarm.compiler.loops.verify_tiles import tile_count
from tunefarm.compiler.machine.amx_set_up import (
    SET_UP,
    TilePalette,
    configuration_ir,
    tile_shape_text,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

SECOND_CACHE = 2
"""The locality of a prefetch that goes no nearer."""
_DOTS = {
    (DType.U8, DType.I8): "tdpbusd",
    (DType.I8, DType.U8): "tdpbsud",
    (DType.I8, DType.I8): "tdpbssd",
    (DType.U8, DType.U8): "tdpbuud",
    (DType.BF16, DType.BF16): "tdpbf16ps",
    (DType.F16, DType.F16): "tdpfp16ps",
}


@frozen
class _Tiles:
    """A buffer of tiles, and the number of the first."""

    memory: Memory
    first: int


class TileEmitter:
    """Emits the statements about tiles of one function."""

    def __init__(
        self,
        writer: FunctionWriter,
        addresses: Addresses,
        registers: Registers,
        palette: TilePalette | None,
        prefetches: Mapping[str, int] | None = None,
    ) -> None:
        self._writer, self._addresses, self._registers = writer, addresses, registers
        self._palette, self._prefetches = palette, prefetches or {}  # elements ahead, by buffer
        self._live: dict[str, _Tiles] = {}
        self._shapes: dict[int, tuple[int, int]] = {}
        self._boundaries: list[list[object]] = []

    def allocate(self, memory: Memory) -> None:
        """Give the buffer tiles that are free; `LoweringError` where there are none like them."""
        if self._palette is None:
            raise LoweringError("the target has no matrix tiles")
        first = sum(tile_count(tiles.memory) for tiles in self._live.values())
        rows, row_bytes = memory.shape[-2], memory.shape[-1] * memory.dtype.bytes
        count, most = tile_count(memory), self._palette
        if first + count > most.tiles or rows > most.rows or row_bytes > most.row_bytes:
            raise LoweringError(f"the target has no tiles for {memory.name}")
        for number in range(first, first + count):
            if self._shapes.setdefault(number, (rows, row_bytes)) != (rows, row_bytes):
                raise LoweringError(f"a tile of {memory.name} has another shape elsewhere")
        self._live[memory.name] = _Tiles(memory, first)

    def free(self, memory: Memory) -> None:
        """The buffer, which was the last to get tiles, goes out of scope."""
        del self._live[memory.name]

    def emit(self, statement: TileStmt) -> None:
        """One instruction."""
        match statement:
            case TileZero():
                self._writer.call("llvm.x86.tilezero", [self._number(statement)])
            case TileDot(left=left, right=right):
                sides = [self._at(side.buffer, side.indices) for side in (left, right)]
                numbers = [self._number(statement), *sides]
                self._writer.call(f"llvm.x86.{_dot(left.dtype, right.dtype)}", numbers)
            case TileLoad(source=source, stride=stride):
                pointer = self._rows(source)  # in this form of loading the 2x2 loop was fastest
                self._move("tileloaddt164", self._number(statement), pointer, stride, source.dtype)
                if source.buffer in self._prefetches:
                    rows = self._live[statement.buffer].memory.shape[-2]
                    self._prefetch(source, pointer, stride, rows)
            case TileStore(source=source, stride=stride):
                pointer = self._rows(statement)
                number = self._at(source.buffer, source.indices)
                self._move("tilestored64", number, pointer, stride, source.dtype)
                self._addresses.written(statement.buffer)

    def repeat_set_up(self) -> None:
        """Other code may have set up tiles here: what this function needs is set up again."""
        self._boundaries.append(self._writer.placeholder())

    def finish(self, symbol: str) -> None:
        """End the function of this name: what it set up for itself is undone again."""
        if self._palette is None or not self._shapes:
            return
        full = (self._palette.rows, self._palette.row_bytes)
        if all(shape == full for shape in self._shapes.values()):
            return
        own, usual = f"{symbol}.own_tiles", f"{symbol}.all_tiles"
        self._writer.declarations |= {
            f"declare void @{SET_UP}(ptr)",
            configuration_ir(own, tile_shape_text(self._shapes)),
            configuration_ir(usual, self._palette.configuration()),
        }
        for place in (self._writer.entry, *self._boundaries):
            place.append(f"call void @{SET_UP}(ptr @{own})")
        self._writer.line(f"call void @{SET_UP}(ptr @{usual})")

    def _number(self, statement: TileZero | TileLoad | TileDot) -> str:
        return self._at(statement.buffer, statement.indices)

    def _at(self, buffer: str, indices: tuple[Expr, ...]) -> str:
        """The number of a tile, as an operand."""
        tiles, position = self._live[buffer], 0
        for item, extent in zip(indices, tiles.memory.shape, strict=False):
            form = affine(item, self._addresses.ranges)
            if form.terms:
                raise LoweringError(f"which tile of {buffer} is meant is not known")
            position = position * extent + form.constant
        return f"i8 {tiles.first + position}"

    def _rows(self, access: Load | TileStore) -> str:
        """Where in memory the first row begins; what is kept in registers is brought there."""
        self._registers.release(access.buffer)
        return self._addresses.pointer(access.buffer, self._addresses.of(access))

    def _prefetch(self, source: Load, pointer: str, stride: int, rows: int) -> None:
        """Bring the rows that lie ahead of a tile's into the second cache: each is a line."""
        for row in range(rows):
            ahead = (self._prefetches[source.buffer] + row * stride) * source.dtype.bytes
            # Not "inbounds": what lies ahead of the last tile is nobody's.
            target = self._writer.emit(f"getelementptr i8, ptr {pointer}, i64 {ahead}")
            operands = [f"ptr {target}", "i32 0", f"i32 {SECOND_CACHE}", "i32 1"]
            self._writer.call("llvm.prefetch.p0", operands)

    def _move(self, name: str, number: str, pointer: str, stride: int, dtype: DType) -> None:
        operands = [number, f"ptr {pointer}", f"i64 {stride * dtype.bytes}"]
        self._writer.call(f"llvm.x86.{name}", operands)


def _dot(left: DType, right: DType) -> str:
    """The instruction that multiplies tiles of these types."""
    name = _DOTS.get((left, right))
    if name is None:
        raise LoweringError(f"no instruction multiplies tiles of {left} and {right}")
    return name
