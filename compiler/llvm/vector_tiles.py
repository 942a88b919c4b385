"""Matrix tiles in vector registers: products of 2x2 numbers by 64-bit Arm's I8MM and BF16.

A tile of sums has two rows of 4 lanes, in two vectors that hold two lanes of both rows: what SMMLA
and its like add to. Of the left factor it has two rows of 8 bytes, one vector. The right factor has
two steps of the sum of 4 bytes a lane, one under the other; the words of each lane come to lie side
by side when they are loaded: [lane][step] in two vectors.
"""

from __future__ import annotations

from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Expr, Load
from tunefarm.compiler.llvm.addresses import Addresses
from tunefarm.compiler.llvm.registers import Registers
from tunefarm.compiler.llvm.writer import FunctionWriter
from tunefarm.compiler.loops.ir import Memory, TileDot, TileLoad, TileStmt, TileStore, TileZero
from tunefarm.compiler.loops.verify_tiles import tile_count
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

_PRODUCTS = {
    (DType.I8, DType.I8): ("smmla.v4i32.v16i8", "<16 x i8>"),
    (DType.U8, DType.U8): ("ummla.v4i32.v16i8", "<16 x i8>"),
    (DType.U8, DType.I8): ("usmmla.v4i32.v16i8", "<16 x i8>"),
    (DType.BF16, DType.BF16): ("bfmmla", "<8 x bfloat>"),
}
_WORDS, _HALVES = "<4 x i32>", "<2 x i64>"
_LEFT_BYTES = 8  # of a row of the left factor
_LOW, _HIGH = "<4 x i32> <i32 0, i32 4, i32 1, i32 5>", "<4 x i32> <i32 2, i32 6, i32 3, i32 7>"


@frozen
class _Tiles:
    """A buffer of tiles, and the pair of vectors of each, which LLVM keeps in registers."""

    memory: Memory
    vectors: tuple[tuple[str, str], ...]

    @property
    def type(self) -> str:
        """Of the sums, or what holds factors."""
        return {DType.F32: "<4 x float>"}.get(self.memory.dtype, _WORDS)


class VectorTileEmitter:
    """Emits the statements about tiles of one function."""

    def __init__(self, writer: FunctionWriter, addresses: Addresses, registers: Registers) -> None:
        self._writer, self._addresses, self._registers = writer, addresses, registers
        self._live: dict[str, _Tiles] = {}

    def allocate(self, memory: Memory) -> None:
        """Give the buffer vectors; `LoweringError` for tiles that these cannot hold."""
        rows, row_bytes = memory.shape[-2], memory.shape[-1] * memory.dtype.bytes
        if rows != 2 or row_bytes not in (_LEFT_BYTES, 2 * _LEFT_BYTES):
            raise LoweringError(f"vectors hold no tile of {memory.name}")
        every = tuple((self._vector(), self._vector()) for _ in range(tile_count(memory)))
        self._live[memory.name] = _Tiles(memory, every)

    def free(self, memory: Memory) -> None:
        """The buffer goes out of scope."""
        del self._live[memory.name]

    def emit(self, statement: TileStmt) -> None:
        """A few instructions."""
        match statement:
            case TileZero():
                tiles, vectors = self._of(statement.buffer, statement.indices)
                for slot in vectors:
                    self._writer.line(f"store {tiles.type} zeroinitializer, ptr {slot}, align 16")
            case TileDot():
                self._dot(statement)
            case TileLoad():
                self._load(statement)
            case TileStore():
                self._store(statement)

    def repeat_set_up(self) -> None:
        """There is nothing to set up."""

    def finish(self, symbol: str) -> None:
        """Nor to undo."""

    def _vector(self) -> str:
        return self._writer.emit_entry(f"alloca {_WORDS}, align 16")

    def _of(self, buffer: str, indices: tuple[Expr, ...]) -> tuple[_Tiles, tuple[str, str]]:
        """The tiles of a buffer, and the vectors of one."""
        tiles, position = self._live[buffer], 0
        for item, extent in zip(indices, tiles.memory.shape, strict=False):
            form = affine(item, self._addresses.ranges)
            if form.terms:
                raise LoweringError(f"which tile of {buffer} is meant is not known")
            position = position * extent + form.constant
        return tiles, tiles.vectors[position]

    def _dot(self, statement: TileDot) -> None:
        tiles, sums = self._of(statement.buffer, statement.indices)
        left, (rows, _) = self._of(statement.left.buffer, statement.left.indices)
        right, lanes = self._of(statement.right.buffer, statement.right.indices)
        types = (left.memory.dtype, right.memory.dtype)
        if types not in _PRODUCTS:
            raise LoweringError(f"no instruction multiplies tiles of {types[0]} and {types[1]}")
        name, factors = _PRODUCTS[types]
        for total, lane in zip(sums, lanes, strict=True):
            operands = [f"{tiles.type} {self._loaded(tiles.type, total)}"]
            operands += [f"{factors} {self._loaded(factors, slot)}" for slot in (rows, lane)]
            made = self._writer.intrinsic(f"llvm.aarch64.neon.{name}", tiles.type, operands)
            self._writer.line(f"store {tiles.type} {made}, ptr {total}, align 16")

    def _load(self, statement: TileLoad) -> None:
        tiles, (one, other) = self._of(statement.buffer, statement.indices)
        first, second = self._rows(statement.source, statement.stride)
        align = tiles.memory.dtype.bytes
        if tiles.memory.shape[-1] * align == _LEFT_BYTES:
            low = self._writer.emit(f"load i64, ptr {first}, align {align}")
            high = self._writer.emit(f"load i64, ptr {second}, align {align}")
            half = self._writer.emit(f"insertelement {_HALVES} poison, i64 {low}, i64 0")
            whole = self._writer.emit(f"insertelement {_HALVES} {half}, i64 {high}, i64 1")
            self._writer.line(f"store {_HALVES} {whole}, ptr {one}, align 16")
            return
        steps = [
            f"{_WORDS} {self._writer.emit(f'load {_WORDS}, ptr {row}, align {align}')}"
            for row in (first, second)
        ]
        for slot, order in ((one, _LOW), (other, _HIGH)):
            made = self._writer.emit(f"shufflevector {steps[0]}, {steps[1]}, {order}")
            self._writer.line(f"store {_WORDS} {made}, ptr {slot}, align 16")

    def _store(self, statement: TileStore) -> None:
        tiles, vectors = self._of(statement.source.buffer, statement.source.indices)
        place = Load(statement.source.dtype, statement.buffer, statement.indices)
        rows = self._rows(place, statement.stride)
        pairs = [f"{_HALVES} {self._loaded(_HALVES, slot)}" for slot in vectors]
        for number, row in enumerate(rows):
            order = f"<2 x i32> <i32 {number}, i32 {number + 2}>"
            made = self._writer.emit(f"shufflevector {pairs[0]}, {pairs[1]}, {order}")
            align = tiles.memory.dtype.bytes
            self._writer.line(f"store {_HALVES} {made}, ptr {row}, align {align}")
        self._addresses.written(statement.buffer)

    def _loaded(self, type: str, slot: str) -> str:
        return self._writer.emit(f"load {type}, ptr {slot}, align 16")

    def _rows(self, first: Load, stride: int) -> tuple[str, str]:
        """Where in memory the two rows begin; what is kept in registers is brought there."""
        self._registers.release(first.buffer)
        pointer = self._addresses.pointer(first.buffer, self._addresses.of(first))
        bytes = stride * first.dtype.bytes
        second = self._writer.emit(f"getelementptr inbounds i8, ptr {pointer}, i64 {bytes}")
        return pointer, second
