"""LoopNest -> LLVM IR text: one statement at a time, one to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.expr.affine import decide
from tunefarm.compiler.expr.instructions import type_of
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.llvm.addresses import Addresses, Storage
from tunefarm.compiler.llvm.byte_tables import ByteTables
from tunefarm.compiler.llvm.dot_products import DotEmitter
from tunefarm.compiler.llvm.expressions import ExpressionEmitter
from tunefarm.compiler.llvm.loads import Lane
from tunefarm.compiler.llvm.parallel_loops import (
    Leave,
    RangeLoop,
    ask_for,
    call_outlined,
    outline,
    read_by_all,
)
from tunefarm.compiler.llvm.registers import Registers
from tunefarm.compiler.llvm.results import ResultEmitter
from tunefarm.compiler.llvm.tiles import TileEmitter
from tunefarm.compiler.llvm.updates import Copy, UpdateEmitter, copy_of, emit_copy
from tunefarm.compiler.llvm.vector_tiles import VectorTileEmitter
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.loops.ir import (
    Allocate,
    Carry,
    Dot,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Memory,
    Scope,
    Stmt,
    Store,
    TileDot,
    TileLoad,
    TileStore,
    TileZero,
    Update,
    uses_tiles,
    walk,
    written,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

ALIGNMENT = 64


def emit_kernel(
    nest: LoopNest, target: Target, symbol: str, fixed_rounding: bool = False
) -> tuple[str, int]:
    """The module's text and the bytes of workspace that the kernel needs.

    With `fixed_rounding` the bits of a result follow from the nest alone: a sum rounds once for
    each product, whatever guards it, and a zero's sign is as IEEE 754 says.

    The kernel is `void symbol(ptr buffers, ptr workspace, ptr runtime)`; `buffers` holds the inputs
    in order, then the output. A parallel loop is a function of its own that all threads run.
    """
    emitter = _KernelEmitter(nest, target, symbol, fixed_rounding)
    return emitter.run(), emitter.workspace_bytes


class _KernelEmitter:
    def __init__(self, nest: LoopNest, target: Target, symbol: str, fixed_rounding: bool) -> None:
        self.nest = nest
        self.fixed_rounding = fixed_rounding
        self.target = target
        self.symbol = symbol
        self.declarations: set[str] = set()
        self.functions: list[str] = []
        self.workspace_bytes = 0
        self.workspace: dict[str, tuple[Memory, int]] = {}
        self.parallel_bodies = 0
        loops = (item for item in walk(nest.body) if isinstance(item, For))
        self.reads_back = not all(loop.is_whole for loop in loops)

    def run(self) -> str:
        body = _FunctionEmitter(self, self.new_writer(), "%buffers", "%workspace")
        body.statements(self.nest.body)
        body.tiles.finish(self.symbol)
        body.writer.line("ret void")
        self.functions.append(
            f"define void @{self.symbol}(ptr %buffers, ptr %workspace, ptr %runtime) "
            f"nounwind {{\nentry:\n{body.writer.text()}\n}}"
        )
        return "\n".join([*sorted(self.declarations), *self.functions])

    def new_writer(self) -> FunctionWriter:
        target = self.target
        return FunctionWriter(
            self.declarations,
            target.has_fma,
            target.has_avx512,
            target.converted,
            self.fixed_rounding,
            target.has_gather,
        )


class _FunctionEmitter:
    """Emits statements into one function."""

    def __init__(
        self, kernel: _KernelEmitter, writer: FunctionWriter, buffers: str, workspace: str
    ) -> None:
        self.kernel = kernel
        self.writer = writer
        self.workspace = workspace
        self.addresses = Addresses(writer, lambda atom: self.expressions.value(atom))
        self.registers = Registers(lambda *store: self.results.to_memory(*store))
        self.expressions = ExpressionEmitter(
            writer,
            self.addresses,
            self.registers,
            dict(kernel.nest.prefetches),
            kernel.target.has_gather,
            ByteTables(writer, kernel.target),
            _rounding_widths(kernel.target),
            kernel.target.has_half_floats,
        )
        self.results = ResultEmitter(writer, self.addresses, self.registers, self.expressions)
        self.tiles = self._tile_emitter(kernel.target)
        dots = DotEmitter(writer, self.addresses, self.registers, self.expressions, kernel.target)
        self.updates = UpdateEmitter(writer, self.expressions, self.results, dots, kernel.target)
        self.lane: Lane | None = None
        self._reduce_only: dict[int, bool] = {}
        self._stores: dict[int, tuple[str, ...]] = {}
        self._verdict_axes: dict[int, frozenset[str]] = {}
        self._verdicts: dict[tuple[int, tuple[tuple[int, int], ...]], bool | None] = {}
        for position, memory in enumerate((*kernel.nest.inputs, kernel.nest.output)):
            slot = writer.emit_entry(f"getelementptr inbounds ptr, ptr {buffers}, i64 {position}")
            pointer = writer.emit_entry(f"load ptr, ptr {slot}, align 8")
            read_back = kernel.reads_back and memory is kernel.nest.output
            self.addresses.storages[memory.name] = Storage(memory, pointer, read_back)
        for memory, offset in kernel.workspace.values():
            self._place_in_workspace(memory, offset)
        self._rules: dict[type[Stmt], Callable[[Any], None]] = {
            For: self._for,
            Let: self._let,
            If: self._if,
            Store: self._store,
            **dict.fromkeys((Update, Dot, Carry), self._update),
            Allocate: self._allocate,
            **dict.fromkeys((TileZero, TileLoad, TileDot, TileStore), self.tiles.emit),
        }

    def _tile_emitter(self, target: Target) -> TileEmitter | VectorTileEmitter:
        palette = target.matrix_tiles
        if palette is None and target.product_tiles is not None:
            return VectorTileEmitter(self.writer, self.addresses, self.registers)
        prefetches = dict(self.kernel.nest.prefetches)
        return TileEmitter(self.writer, self.addresses, self.registers, palette, prefetches)

    def statements(self, body: Iterable[Stmt]) -> None:
        for statement in body:
            self._rules[type(statement)](statement)

    # Loops ---------------------------------------------------------------------------------------

    def _for(self, loop: For) -> None:
        if loop.kind is LoopKind.PARALLEL:
            self._parallel(loop)
        elif loop.kind is LoopKind.VECTORISED:
            self._vectorised(loop)
        elif loop.kind is LoopKind.UNROLLED:
            self._unrolled(loop)
        elif (copy := self._copy_of(loop)) is not None:
            emit_copy(self.writer, self.addresses, copy)
        elif not loop.is_whole:
            self._limited(loop)
        else:
            self._serial(loop, str(loop.start), str(loop.stop))

    def _copy_of(self, loop: For) -> Copy | None:
        """What the loop copies between memory; what is in registers is not there."""
        copy = copy_of(loop, self.addresses)
        if copy is None or self.registers.holds(copy.source) or self.registers.holds(copy.target):
            return None
        return copy

    def _serial(self, loop: For, start: str, stop: str) -> None:
        """A loop that runs at least once, tested at the end."""
        writer, variable = self.writer, loop.variable
        before = writer.block
        head, done = writer.label("loop"), writer.label("done")
        counter, following = writer.fresh("i"), writer.fresh("n")
        self.registers.join()
        writer.line(f"br label %{head}")
        writer.begin_block(head)
        # The latch is not known yet: its label is filled in when the body has been emitted.
        phi = writer.placeholder()
        self.addresses.names[variable] = counter
        # What the body stores is stale from its second round on, and after the loop.
        stored = self._stored(loop)
        for buffer in stored:
            self.addresses.written(buffer)
        outer = self.addresses.enter(variable, loop.start, loop.stop - 1)
        with writer.body(variable):
            self.statements(loop.body)
            self.registers.join()
        self.addresses.leave(variable, outer)
        for buffer in stored:
            self.addresses.written(buffer)
        phi.append(f"{counter} = phi i64 [ {start}, %{before} ], [ {following}, %{writer.block} ]")
        writer.line(f"{following} = add nsw i64 {counter}, 1")
        finished = writer.emit(f"icmp slt i64 {following}, {stop}")
        writer.line(f"br i1 {finished}, label %{head}, label %{done}")
        writer.begin_block(done)

    def _limited(self, loop: For) -> None:
        """A serial loop from where it begins up to its limit, if it has any round."""
        writer = self.writer
        start, stop = self._start(loop), self._stop(loop)
        some, over = writer.label("some"), writer.label("over")
        self.registers.join()
        any_round = writer.emit(f"icmp slt i64 {start}, {stop}")
        writer.line(f"br i1 {any_round}, label %{some}, label %{over}")
        writer.begin_block(some)
        with writer.body():
            self._serial(loop, start, stop)
        writer.line(f"br label %{over}")
        writer.begin_block(over)

    def _start(self, loop: For) -> str:
        """The first round of the loop."""
        if loop.begins is None:
            return str(loop.start)
        self.expressions.begin_statement(None)
        begins = self.expressions.value(loop.begins).text
        late = self.writer.emit(f"icmp sgt i64 {begins}, {loop.start}")
        return self.writer.emit(f"select i1 {late}, i64 {begins}, i64 {loop.start}")

    def _stop(self, loop: For) -> str:
        """Where the loop ends: at its limit, if that comes first."""
        if loop.limit is None:
            return str(loop.stop)
        self.expressions.begin_statement(None)
        limit = self.expressions.value(loop.limit).text
        writer = self.writer
        early = writer.emit(f"icmp slt i64 {limit}, {loop.stop}")
        return writer.emit(f"select i1 {early}, i64 {limit}, i64 {loop.stop}")

    def _stored(self, loop: For) -> tuple[str, ...]:
        """The buffers in scope here that the loop's body stores to."""
        known = self._stores.get(id(loop))
        if known is None:
            names = {write.buffer for s in walk(loop.body) for write in written(s)}
            known = self._stores[id(loop)] = tuple(sorted(names))
        return tuple(name for name in known if name in self.addresses.storages)

    def _unrolled(self, loop: For) -> None:
        addresses, variable = self.addresses, loop.variable
        forget = self._is_reduce_only(loop)
        outer = addresses.enter(variable, loop.start, loop.stop - 1, unrolled=True)
        for value in range(loop.start, loop.stop):
            addresses.ranges[variable] = (value, value)
            if forget:
                # Loads of one reduction step are not kept for the next: registers are scarce.
                addresses.forget_values()
                self.writer.line('call void asm sideeffect "", "~{memory}"()')
            self.statements(loop.body)
        addresses.leave(variable, outer)

    def _is_reduce_only(self, loop: For) -> bool:
        known = self._reduce_only.get(id(loop))
        if known is None:
            targets = _store_axes(loop.body)
            known = self._reduce_only[id(loop)] = loop.variable not in targets
        return known

    def _vectorised(self, loop: For) -> None:
        width = loop.stop - loop.start
        if self.lane is not None:
            raise LoweringError("a vectorised loop cannot surround another")
        self.lane = Lane(loop.variable, width)
        # The lane's variable stays symbolic in addresses: it is the contiguous axis.
        outer = self.addresses.enter(loop.variable, loop.start, loop.stop - 1)
        self.addresses.lanes.add(loop.variable)
        self.statements(loop.body)
        self.addresses.lanes.remove(loop.variable)
        self.addresses.leave(loop.variable, outer)
        self.lane = None

    def _parallel(self, loop: For) -> None:
        """Outline the loop; threads draw chunk numbers from a shared counter until none is left."""
        kernel, writer = self.kernel, self.writer
        ranges = dict(self.addresses.ranges)
        outside = [name for name, (low, high) in ranges.items() if low != high]
        name = f"{kernel.symbol}.parallel{kernel.parallel_bodies}"
        kernel.parallel_bodies += 1

        def serial_loop(
            inner: FunctionWriter, buffers: str, workspace: str, values: list[str]
        ) -> tuple[RangeLoop, Leave]:
            emitter = _FunctionEmitter(kernel, inner, buffers, workspace)
            emitter.addresses.ranges.update(ranges)
            emitter.addresses.names.update(zip(outside, values, strict=True))
            shared = (*kernel.nest.inputs, *(memory for memory, _ in kernel.workspace.values()))
            for memory in read_by_all(loop, shared):
                ask_for(inner, emitter.addresses.storages[memory.name].pointer, memory.type.bytes)
            return (
                lambda start, stop: emitter._serial(loop, start, stop),
                lambda: emitter.tiles.finish(name),
            )

        function = outline(loop, name, kernel.new_writer(), serial_loop, len(outside))
        kernel.functions.append(function)
        tiled = uses_tiles(loop.body)
        values = [self.addresses.names[name] for name in outside]
        sets_up = tiled and kernel.target.matrix_tiles is not None
        stop = None if loop.limit is None else self._stop(loop)
        worth = None
        if loop.worth is not None:
            self.expressions.begin_statement(None)
            worth = self.expressions.value(loop.worth).text
        call_outlined(writer, loop, name, values, sets_up, stop, worth)
        if outside:
            for buffer in self._stored(loop):
                self.addresses.written(buffer)
        if tiled:
            self.tiles.repeat_set_up()

    # Other statements ----------------------------------------------------------------------------

    def _let(self, let: Let) -> None:
        self.expressions.begin_statement(None)
        value = self.expressions.value(let.value)
        bound = self.addresses.bound(let.variable, let.value, value.text)
        with bound, self.writer.body(let.variable):
            self.statements(let.body)

    def _if(self, statement: If) -> None:
        verdict = self._decide(statement)
        if verdict is False and not statement.elsewhere:
            return
        if verdict is True:
            self.statements(statement.body)
            return
        self.expressions.begin_statement(self.lane)
        condition = self.expressions.value(statement.condition)
        if condition.width:
            self._masked(statement, condition)
            return
        writer, holds = self.writer, condition.text
        if statement.elsewhere:
            apart = self._is_elsewhere(statement.elsewhere)
            holds = writer.emit(f"or i1 {holds}, {apart}")
        then, done = writer.label("then"), writer.label("done")
        self.registers.flush()
        writer.line(f"br i1 {holds}, label %{then}, label %{done}")
        writer.begin_block(then)
        with writer.body():
            self.statements(statement.body)
            self.registers.join()
        writer.line(f"br label %{done}")
        writer.begin_block(done)

    def _is_elsewhere(self, source: str) -> str:
        """Whether an input is not in the memory of the result."""
        names = (source, self.kernel.nest.output.name)
        one, other = (self.addresses.storages[name].pointer for name in names)
        return self.writer.emit_entry(f"icmp ne ptr {one}, {other}")

    def _masked(self, statement: If, condition: Value) -> None:
        """Lanes differ: loads and stores of the body leave out those of which it is false."""
        assert self.lane is not None
        variable = self.lane.variable
        start = self.addresses.ranges[variable][0]
        first = {**self.addresses.ranges, variable: (start, start)}
        if self.expressions.active is not None or decide(statement.condition, first) is not True:
            raise LoweringError("a vectorised loop's condition has to hold in its first lane")
        second = {**self.addresses.ranges, variable: (start + 1, start + 1)}
        self.results.one_active = decide(statement.condition, second) is False
        self.expressions.active = condition
        self.statements(statement.body)
        self.expressions.active, self.results.one_active = None, False

    def _decide(self, statement: If) -> bool | None:
        axes = self._verdict_axes.get(id(statement))
        if axes is None:
            axes = self._verdict_axes[id(statement)] = frozenset(axes_of(statement.condition))
        ranges = self.addresses.ranges
        key = (id(statement), tuple(ranges[axis] for axis in sorted(axes)))
        if key not in self._verdicts:
            self._verdicts[key] = decide(statement.condition, ranges)
        return self._verdicts[key]

    def _allocate(self, statement: Allocate) -> None:
        memory = statement.memory
        if statement.scope is Scope.TILE:
            self.tiles.allocate(memory)
            self.statements(statement.body)
            self.tiles.free(memory)
            return
        if statement.scope is Scope.WORKSPACE:
            offset = self.kernel.workspace_bytes
            self.kernel.workspace_bytes += -(-memory.type.bytes // ALIGNMENT) * ALIGNMENT
            self.kernel.workspace[memory.name] = (memory, offset)
            self._place_in_workspace(memory, offset)
        else:
            element = "i8" if memory.dtype is DType.BOOL else type_of(memory.dtype, 0)
            pointer = self.writer.emit_entry(
                f"alloca [{memory.type.size} x {element}], align {ALIGNMENT}"
            )
            self.addresses.storages[memory.name] = Storage(memory, pointer)
            if memory.dtype is not DType.BOOL:
                self.registers.add(memory.name, statement.scope is Scope.REGISTER)
        if statement.ahead is not None:
            self.expressions.copies[memory.name] = statement.ahead
        self.statements(statement.body)
        self.expressions.copies.pop(memory.name, None)
        self.registers.remove(memory.name)

    def _place_in_workspace(self, memory: Memory, offset: int) -> None:
        pointer = self.writer.emit_entry(
            f"getelementptr inbounds i8, ptr {self.workspace}, i64 {offset}"
        )
        self.addresses.storages[memory.name] = Storage(memory, pointer)

    def _store(self, statement: Store) -> None:
        self.expressions.begin_statement(self.lane)
        self.results.write(statement, self.expressions.vector(statement.value))

    def _update(self, statement: Update | Dot | Carry) -> None:
        self.expressions.begin_statement(self.lane)
        self.updates.emit(statement)


def _rounding_widths(target: Target) -> frozenset[int]:
    """Of vectors of f32 that one instruction rounds and converts to integers."""
    if not target.triple.startswith("x86_64"):
        return frozenset()
    widest = target.vector_bytes // DType.F32.bytes
    known = {16: "avx512f", 8: "avx", 4: "sse2"}
    has = set(target.features) | {"sse2"}
    return frozenset(w for w, feature in known.items() if w <= widest and feature in has)


def _store_axes(body: tuple[Stmt, ...]) -> set[str]:
    """The variables that the stores of a body are indexed with."""
    result: set[str] = set()
    for statement in body:
        for write in written(statement):
            for item in write.indices:
                result |= axes_of(item)
        if isinstance(statement, For | Let | If | Allocate):
            result |= _store_axes(statement.body)
    return result
