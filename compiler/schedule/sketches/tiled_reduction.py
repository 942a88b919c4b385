"""Sketch: a register tile of accumulators that lives over the whole reduction.

for outer.. (parallel): for row, block.o, column.o in an order that is open:
    registers = 0                                  [column.i][block.i][vector]
    for reduce.. (order open): for step (unrolled):
        for column.i, block.i (unrolled): registers += vector(weights) * value(data)
    for column.i, block.i (unrolled): output = epilogue(registers)

Serves convolution (direct, depthwise, 1x1), matrix multiplication and pooling.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from compiler.errors import ScheduleError
from compiler.expr.affine import affine
from compiler.expr.nodes import Select
from compiler.expr.walk import axes_of, loads, postorder
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.merge_axes import merge_axes
from compiler.kernels.stage import Stage
from compiler.schedule.schedule import Schedule
from compiler.schedule.sketches.roles import roles_of
from compiler.schedule.sketches.tile_domains import (
    COLUMNS,
    MAX_UNROLLED,
    ROWS,
    TileContext,
    best_tile,
    leaves_rest,
    loop_orders,
    reduce_orders,
    tiles_of,
    unrolls,
)
from compiler.schedule.sketches.tile_shape import tile_shape
from compiler.schedule.space import Choice, ChoiceValue, Sketch
from compiler.schedule.steps.cache_write import CacheWrite
from compiler.schedule.steps.compute_at import ComputeAt
from compiler.schedule.steps.fuse import Fuse
from compiler.schedule.steps.inline import Inline
from compiler.schedule.steps.merge_axes import MergeAxes
from compiler.schedule.steps.pack_layout import PackLayout
from compiler.schedule.steps.parallelize import Parallelize
from compiler.schedule.steps.partition import Partition
from compiler.schedule.steps.prefetch import Prefetch
from compiler.schedule.steps.reorder import Reorder
from compiler.schedule.steps.step import Step
from compiler.schedule.steps.tile import Tile
from compiler.schedule.steps.unroll import Unroll
from compiler.schedule.steps.vectorize import Vectorize
from compiler.target import Target

# Multiply-adds that take a few times a fork and join's 1 to 2 us (tests/benchmarks/threads.py).
PARALLEL_WORK = 1 << 17
PREFETCH_DISTANCES = (0, 1024)  # elements
Assignment = Mapping[str, ChoiceValue]


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
    anchor = kernel.stage(kernel.anchor)
    if math.prod(axis.extent for axis in (*anchor.axes, *anchor.reduce_axes)) < PARALLEL_WORK:
        threads = 1
    context = TileContext(kernel, merges, roles, target, threads, prologue)
    tiles = tiles_of(context)
    orders = reduce_orders(context)
    steps = unrolls(context, orders)
    loops = loop_orders(context)
    choices = [
        Choice("tile", tiles),
        Choice("loops", loops),
        Choice("reduce", orders),
        Choice("unroll", steps),
    ]
    default: list[ChoiceValue] = [best_tile(context, tiles), loops[0], orders[0], steps[-1]]
    if context.ragged:
        choices.append(Choice("tail", ("peel", "mask")))
        default.append("peel")
    if context.roles.column and leaves_rest(context, tiles):
        choices.append(Choice("rest", ("peel", "shift")))
        default.append("peel")
    if context.streamed:
        choices.append(Choice("prefetch", PREFETCH_DISTANCES))
        default.append(0)
    if prologue:
        inline = _can_inline(context)
        choices.append(Choice("padding", ("inline", "copy") if inline else ("copy",)))
        default.append("inline" if inline else "copy")
    if threads > 1:
        choices.append(Choice("chunks", (1, 2, 4, 8)))
        default.append(4)

    def build(assignment: Assignment) -> Schedule:
        return Schedule(tuple(_steps(context, assignment)))

    def parallel(loops: str) -> list[str]:
        names = [*context.roles.outer, *loops.split()]
        apart = ("block" if context.ragged else "", "row" if loops.startswith(ROWS) else "")
        return _parallel_loops(context, names, apart)

    shape = tile_shape(context, choices, parallel)
    return Sketch(name, tuple(choices), build, tuple(default), shape)


def _can_inline(context: TileContext) -> bool:
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


# Steps -------------------------------------------------------------------------------------------


def _steps(context: TileContext, choice: Assignment) -> list[Step]:
    kernel, roles = context.kernel, context.roles
    output, anchor = kernel.output.name, kernel.anchor
    steps: list[Step] = list(context.merges)
    if choice.get("padding") == "inline":
        steps += [Inline(stage) for stage in reversed(context.prologue)]
    packed = _pack_constants(context)
    steps += packed
    if distance := int(str(choice.get("prefetch", 0))):
        streamed = context.streamed
        steps += [Prefetch(pack.buffer, distance) for pack in packed if pack.buffer in streamed]
    if output == anchor:
        anchor = f"{output}.sum"
        steps.append(CacheWrite(output, anchor))
    tile = choice["tile"]
    assert isinstance(tile, tuple)
    columns, vectors = int(tile[0]), int(tile[1])
    mask = choice.get("tail") == "mask"
    block_outer, tile_axes, make = _tile_vector(context, output, vectors, mask)
    steps += make
    column_outer = f"{roles.column}.o" if roles.column else ""
    by_name = {"row": roles.row, "block": block_outer, "column": column_outer}
    order = str(choice["loops"]).split()
    if order[0].startswith(ROWS):
        steps.append(Tile(output, roles.row, int(order[0].removeprefix(ROWS)), "shift"))
        by_name |= {order[0]: f"{roles.row}.o", "row": f"{roles.row}.i"}
    inside = roles.column
    if order[0].startswith(COLUMNS):
        # A loop with a tail cannot be fused with others.
        tail = "peel" if context.threads == 1 else "shift"
        steps.append(Tile(output, roles.column, int(order[0].removeprefix(COLUMNS)), tail))
        inside = f"{roles.column}.i"
        by_name |= {order[0]: f"{roles.column}.o", "column": f"{inside}.o"}
    loops = [*roles.outer, *(by_name[name] for name in order if by_name[name])]
    fused = _parallel_loops(
        context, loops, (block_outer if context.ragged else "", f"{roles.row}.i")
    )
    if roles.column:
        tail = "shift" if column_outer in fused else str(choice.get("rest", "peel"))
        steps.append(Tile(output, inside, columns, tail))
    inner = [f"{inside}.i"] if roles.column else []
    steps.append(Reorder(output, (*loops, *inner, *tile_axes)))
    steps += [Unroll(output, axis) for axis in (*inner, *tile_axes[:-1])]
    steps.append(Vectorize(output, tile_axes[-1]))
    if choice.get("padding") == "inline" and column_outer:
        steps.append(Partition(output, column_outer))
    innermost = loops[-1]
    if context.threads > 1:
        steps += _parallel_steps(output, fused, int(str(choice["chunks"])))
    steps.append(ComputeAt(anchor, output, innermost, "register"))
    steps += _reduction_steps(context, anchor, choice, columns * vectors)
    return steps


def _tile_vector(
    context: TileContext, output: str, vectors: int, mask: bool
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
    tail = "mask" if mask else "peel"
    steps = [Tile(output, axis, lanes * vectors), Tile(output, f"{axis}.i", lanes, tail)]
    return f"{axis}.o", (f"{axis}.i.o", f"{axis}.i.i"), steps


def _parallel_loops(context: TileContext, loops: Sequence[str], apart: Sequence[str]) -> list[str]:
    """The loops that are fused and run in parallel: all but the innermost, if there are several.

    Those that stand `apart` cannot be fused: a loop with a tail, the rows of a tile of rows. Alone,
    a loop with a tail runs in parallel up to there.
    """
    if context.threads == 1:
        return []
    result: list[str] = []
    for axis in loops[:-1] if len(loops) > 1 else loops:
        if axis in apart:
            break
        result.append(axis)
    return result or list(loops[:1])


def _parallel_steps(output: str, fused: Sequence[str], chunks: int) -> list[Step]:
    if len(fused) == 1:
        return [Parallelize(output, fused[0], chunks)]
    return [Fuse(output, tuple(fused), "parallel"), Parallelize(output, "parallel", chunks)]


def _reduction_steps(
    context: TileContext, anchor: str, choice: Assignment, tile: int
) -> list[Step]:
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


def _pack_constants(context: TileContext) -> list[PackLayout]:
    """Constants that the vector axis runs through: whole vectors, in the order they are read."""
    steps: list[PackLayout] = []
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
