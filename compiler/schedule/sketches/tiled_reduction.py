"""Sketch: a register tile of accumulators that lives over the whole reduction.

for outer.. (parallel): for row, block.o, column.o in an order that is open:
    registers = 0                                  [column.i][block.i][vector]
    for reduce.. (order open): for step (unrolled):
        for column.i, block.i (unrolled): registers += vector(weights) * value(data)
    for column.i, block.i (unrolled): output = epilogue(registers)

Serves convolution (direct, depthwise, 1x1), matrix multiplication and pooling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.errors import ScheduleError
from compiler.kernels.expr import Select, Stage
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.rewrite import loads, postorder
from compiler.loops.affine import affine
from compiler.loops.merge_axes import merge_axes
from compiler.loops.rewrite import axes_of
from compiler.schedule.sketches.roles import Roles, roles_of
from compiler.schedule.space import Choice, ChoiceValue, Sketch
from compiler.schedule.steps import (
    CacheWrite,
    ComputeAt,
    Fuse,
    Inline,
    MergeAxes,
    PackLayout,
    Parallelize,
    Partition,
    Reorder,
    Schedule,
    Step,
    Tile,
    Unroll,
    Vectorize,
)
from compiler.target import Target

MAX_UNROLLED = 640  # multiply-adds in the innermost body: code that still fits the caches
Assignment = Mapping[str, ChoiceValue]


@dataclass(frozen=True, slots=True)
class _Context:
    """What the sketch's builder needs besides the choices."""

    kernel: FusedKernel  # after merging axes
    merges: tuple[MergeAxes, ...]
    roles: Roles
    lanes: int
    threads: int
    prologue: tuple[str, ...]

    @property
    def anchor(self) -> Stage:
        return self.kernel.stage(self.kernel.anchor)

    def extent(self, axis: str) -> int:
        stage = self.anchor
        return next(a.extent for a in (*stage.axes, *stage.reduce_axes) if a.name == axis)

    @property
    def vectors(self) -> int:
        """How many vectors lie along block, or along the vector axis where that is split."""
        if self.roles.block:
            return self.extent(self.roles.block)
        return -(-self.extent(self.roles.vector) // self.lanes)


def tiled_reduction_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch for this kernel: as it is, and with merged axes where that is possible."""
    sketches = []
    merged = _merge_spatial(kernel, target)
    if merged is not None:
        sketches.append(_sketch("tiled_merged", *merged, target, threads))
    sketches.append(_sketch("tiled", kernel, (), target, threads))
    return [sketch for sketch in sketches if sketch is not None]


def _merge_spatial(
    kernel: FusedKernel, target: Target
) -> tuple[FusedKernel, tuple[MergeAxes, ...]] | None:
    """Row and column as one axis, where the kernel never tells them apart (1x1 convolution)."""
    roles = roles_of(kernel, target)
    if roles is None or not roles.row or not roles.block or len(kernel.stages) > 2:
        return None
    try:
        merged = merge_axes(kernel, roles.row, roles.column)
    except ScheduleError:
        return None
    return merged, (MergeAxes(roles.row, roles.column),)


def _sketch(
    name: str,
    kernel: FusedKernel,
    merges: tuple[MergeAxes, ...],
    target: Target,
    threads: int,
) -> Sketch | None:
    roles = roles_of(kernel, target)
    if roles is None:
        return None
    prologue = tuple(stage.name for stage in kernel.stages[:-1] if stage.name != kernel.anchor)
    context = _Context(kernel, merges, roles, target.lanes, threads, prologue)
    tiles = _tiles(context, target)
    orders = _reduce_orders(context)
    unrolls = _unrolls(context, orders)
    loops = _loop_orders(context)
    choices = [
        Choice("tile", tiles),
        Choice("loops", loops),
        Choice("reduce", orders),
        Choice("unroll", unrolls),
    ]
    default: list[ChoiceValue] = [_best_tile(context, tiles), loops[0], orders[0], unrolls[-1]]
    if prologue:
        inline = _can_inline(context)
        choices.append(Choice("padding", ("inline", "copy") if inline else ("copy",)))
        default.append("inline" if inline else "copy")
    if threads > 1:
        choices.append(Choice("chunks", (1, 2, 4, 8)))
        default.append(4)

    def build(assignment: Assignment) -> Schedule:
        return Schedule(tuple(_steps(context, assignment)))

    return Sketch(name, tuple(choices), build, tuple(default))


def _can_inline(context: _Context) -> bool:
    """Padding can be decided per element unless it differs between the lanes of a vector."""
    vector = context.roles.vector
    for load in loads(context.anchor.body):
        if load.buffer in context.prologue:
            stage = context.kernel.stage(load.buffer)
            if stage.reduce_axes:
                return False
            varying = {
                axis.name
                for axis, item in zip(stage.axes, load.indices, strict=True)
                if vector in axes_of(item)
            }
            guarded = _guarded_axes(stage)
            if varying & guarded:
                return False
    return True


def _guarded_axes(stage: Stage) -> set[str]:
    result: set[str] = set()
    for node in postorder(stage.body):
        if isinstance(node, Select):
            result |= axes_of(node.condition)
    return result


# Domains -----------------------------------------------------------------------------------------


def _tiles(context: _Context, target: Target) -> tuple[ChoiceValue, ...]:
    """(columns, vectors) pairs whose accumulators and operands fit the registers."""
    columns = context.extent(context.roles.column) if context.roles.column else 1
    budget = target.vector_registers - 1
    pairs: list[tuple[int, int]] = []
    for vectors in (1, 2, 3, 4, 6, 8, 12):
        if vectors > context.vectors:
            break
        most = min((budget - vectors) // vectors, columns)
        if vectors > 1 and most < 1:
            break
        least = max(1, most // 3) if most < columns else 1
        for count in range(least, most + 1):
            wasteful = count < columns and vectors * count < 4
            if not wasteful or most <= 2:
                pairs.append((count, vectors))
    return tuple(pairs)


def _best_tile(context: _Context, tiles: Sequence[ChoiceValue]) -> ChoiceValue:
    """The tile that needs the fewest cycles a reduction step over all columns and vectors.

    A core that starts two multiply-adds and two loads a cycle, and whose multiply-add takes four,
    spends max(c v / 2, (c + v) / 2, 4) cycles on a step of c columns and v vectors; a little is
    added for the loop. What is left over by whole tiles is a smaller tile of its own.
    """
    columns = context.extent(context.roles.column) if context.roles.column else 1

    def step(count: int, vectors: int) -> float:
        return max(count * vectors / 2, (count + vectors) / 2, 4.0) + 0.3

    def cycles(tile: ChoiceValue) -> tuple[float, int]:
        assert isinstance(tile, tuple)
        count, vectors = int(tile[0]), int(tile[1])
        whole, rest = divmod(columns, count)
        if rest and context.threads > 1:
            whole, rest = whole + 1, 0  # the last tile is shifted
        total = whole * step(count, vectors) + (step(rest, vectors) if rest else 0.0)
        return total * -(-context.vectors // vectors), -count * vectors

    return min(tiles, key=cycles)


def _reduce_orders(context: _Context) -> tuple[tuple[str, ...], ...]:
    """Orders of the reduce axes, outermost first: channels outside or inside of the window."""
    axes = list(context.roles.reduce)
    window = [axis for axis in axes if axis.startswith("k") and len(axis) > 1]
    channels = [axis for axis in axes if axis not in window]
    if not window or not channels:
        return (tuple(axes),)
    if len(channels) == 1:
        return ((*window, *channels), (*channels, *window))
    return (
        (channels[0], *window, *channels[1:]),
        (*window, *channels),
        (channels[0], window[0], *channels[1:], *window[1:]),
    )


def _unrolls(context: _Context, orders: Sequence[tuple[str, ...]]) -> tuple[tuple[int, ...], ...]:
    """(steps of the innermost reduce axis, steps of the one outside of it)."""
    inner = {order[-1] for order in orders}
    extents = sorted({context.extent(axis) for axis in inner})
    largest = extents[-1]
    steps = sorted({step for step in (1, 2, 4, 8, 16, largest) if step <= min(largest, 16)})
    pairs = [(step, 1) for step in steps]
    if any(len(order) > 1 for order in orders):
        pairs += [(step, 3) for step in steps if step * 3 <= 24]
    ordered = sorted(pairs, key=lambda pair: pair[0] * pair[1])
    preferred = max(
        (pair for pair in ordered if pair[1] == 1 and pair[0] <= 8), key=lambda pair: pair[0]
    )
    return (*(pair for pair in ordered if pair != preferred), preferred)


def _loop_orders(context: _Context) -> tuple[str, ...]:
    """Which of row, block and column loops is outermost."""
    if not context.roles.column:
        return ("block",)
    if context.roles.row:
        return ("block row column", "row block column", "row column block")
    if context.extent(context.roles.column) == 1:
        return ("block column",)
    return ("block column", "column block")


# Steps -------------------------------------------------------------------------------------------


def _steps(context: _Context, choice: Assignment) -> list[Step]:
    kernel, roles = context.kernel, context.roles
    output, anchor = kernel.output.name, kernel.anchor
    steps: list[Step] = list(context.merges)
    if choice.get("padding") == "inline":
        steps += [Inline(stage) for stage in reversed(context.prologue)]
    steps += _pack_constants(context)
    if output == anchor:
        anchor = f"{output}.sum"
        steps.append(CacheWrite(output, anchor))
    tile = choice["tile"]
    assert isinstance(tile, tuple)
    columns, vectors = int(tile[0]), int(tile[1])
    block_outer, tile_axes, make = _tile_vector(context, output, vectors)
    steps += make
    column_outer = ""
    if roles.column:
        tail = "shift" if context.threads > 1 else "peel"
        steps.append(Tile(output, roles.column, columns, tail))
        column_outer = f"{roles.column}.o"
    by_name = {"row": roles.row, "block": block_outer, "column": column_outer}
    order = [by_name[name] for name in str(choice["loops"]).split() if by_name[name]]
    loops = [*roles.outer, *order]
    inner = [f"{roles.column}.i"] if roles.column else []
    steps.append(Reorder(output, (*loops, *inner, *tile_axes)))
    steps += [Unroll(output, axis) for axis in (*inner, *tile_axes[:-1])]
    steps.append(Vectorize(output, tile_axes[-1]))
    if choice.get("padding") == "inline" and column_outer:
        steps.append(Partition(output, column_outer))
    innermost = loops[-1]
    if context.threads > 1:
        steps += _parallel_steps(context, output, loops, int(str(choice["chunks"])))
    steps.append(ComputeAt(anchor, output, innermost, "register"))
    steps += _reduction_steps(context, anchor, choice, columns * vectors)
    return steps


def _tile_vector(
    context: _Context, output: str, vectors: int
) -> tuple[str, tuple[str, ...], list[Step]]:
    """The loop over tiles of vectors, the axes inside of the tile, and the steps that make them."""
    roles, lanes = context.roles, context.lanes
    if roles.block:
        steps: list[Step] = [Tile(output, roles.block, vectors, "shift")]
        return f"{roles.block}.o", (f"{roles.block}.i", roles.vector), steps
    axis = roles.vector
    if context.extent(axis) % lanes == 0:
        steps = [Tile(output, axis, lanes), Tile(output, f"{axis}.o", vectors, "shift")]
        return f"{axis}.o.o", (f"{axis}.o.i", f"{axis}.i"), steps
    steps = [Tile(output, axis, lanes * vectors), Tile(output, f"{axis}.i", lanes)]
    return f"{axis}.o", (f"{axis}.i.o", f"{axis}.i.i"), steps


def _parallel_loops(context: _Context, loops: Sequence[str]) -> list[str]:
    """The loops that are fused and run in parallel: all but the innermost, if there are several."""
    peeled = f"{context.roles.vector}.o" if not context.roles.block else ""
    if context.extent(context.roles.vector) % context.lanes == 0:
        peeled = ""
    result: list[str] = []
    for axis in loops[:-1] if len(loops) > 1 else loops:
        if axis == peeled:
            break
        result.append(axis)
    # A peeled loop cannot be fused, but alone it runs in parallel up to its tail.
    return result or list(loops[:1])


def _parallel_steps(
    context: _Context, output: str, loops: Sequence[str], chunks: int
) -> list[Step]:
    fused = _parallel_loops(context, loops)
    if not fused:
        return []
    if len(fused) == 1:
        return [Parallelize(output, fused[0], chunks)]
    return [Fuse(output, tuple(fused), "parallel"), Parallelize(output, "parallel", chunks)]


def _reduction_steps(context: _Context, anchor: str, choice: Assignment, tile: int) -> list[Step]:
    roles, lanes = context.roles, context.lanes
    order = choice["reduce"]
    unroll = choice["unroll"]
    assert isinstance(order, tuple) and isinstance(unroll, tuple)
    reduce = [str(axis) for axis in order]
    inner, outer = int(unroll[0]), int(unroll[1])
    inner = min(inner, context.extent(reduce[-1]))
    while inner > 1 and inner * tile > MAX_UNROLLED:
        inner //= 2
    steps: list[Step] = []
    loops = reduce[:-1]
    unrolled: list[str] = []
    second = context.extent(reduce[-2]) if len(reduce) > 1 else 1
    whole = inner == context.extent(reduce[-1])
    if outer > 1 and len(reduce) > 1 and whole and second * inner * tile <= MAX_UNROLLED:
        unrolled.append(loops.pop())
    steps.append(Tile(anchor, reduce[-1], inner))
    loops.append(f"{reduce[-1]}.o")
    unrolled.append(f"{reduce[-1]}.i")
    # The step loop has one iteration when all of it is unrolled, so its place does not matter.
    vector = [roles.vector]
    if not roles.block:
        steps.append(Tile(anchor, roles.vector, lanes))
        vector = [f"{roles.vector}.o", f"{roles.vector}.i"]
    else:
        vector = [roles.block, roles.vector]
    column = [roles.column] if roles.column else []
    rest = [axis for axis in (*roles.outer, roles.row) if axis]
    steps.append(Reorder(anchor, (*rest, *loops, *unrolled, *column, *vector)))
    steps += [Unroll(anchor, axis, False) for axis in unrolled]
    steps += [Unroll(anchor, axis) for axis in (*column, vector[0])]
    steps.append(Vectorize(anchor, vector[-1]))
    return steps


def _pack_constants(context: _Context) -> list[Step]:
    """Constants that the vector axis runs through: whole vectors, in the order they are read."""
    steps: list[Step] = []
    seen: set[str] = set()
    constants = {buffer.name: buffer for buffer in context.kernel.inputs if buffer.constant}
    for load in loads(context.anchor.body):
        buffer = constants.get(load.buffer)
        if buffer is None or buffer.name in seen:
            continue
        seen.add(buffer.name)
        holding = [
            dimension
            for dimension, item in enumerate(load.indices)
            if context.roles.vector in axes_of(item)
        ]
        if len(holding) != 1:
            continue
        dimension = holding[0]
        rank = len(buffer.shape)
        if affine(load.indices[dimension], {}).coefficient(context.roles.vector) != 1:
            continue
        # Dimensions after the split: `dimension` -> blocks, `dimension` + 1 -> lanes.
        others = [d if d < dimension else d + 1 for d in range(rank) if d != dimension]
        # Window positions outside, channels inside: [blocks][kh][kw][channel][lanes].
        others = [*others[1:], *others[:1]] if rank > 2 else others
        steps.append(
            PackLayout(
                buffer.name,
                ((dimension, context.lanes),),
                (dimension, *others, dimension + 1),
            )
        )
    return steps
