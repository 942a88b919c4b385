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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

from compiler.kernels.kernel import FusedKernel
from compiler.schedule.nest_shape import (
    Counts,
    Level,
    Loop,
    Mask,
    Nest,
    NestShape,
    Numbers,
)
from compiler.schedule.sketches.even_shares import evenly_shared
from compiler.schedule.sketches.operand_copies import attached_axis, copying_steps
from compiler.schedule.sketches.phases import phase_cuts
from compiler.schedule.sketches.shared_loops import CHUNKS, parallel_steps, pieces_and_grains
from compiler.schedule.sketches.tile_domains import (
    COPY_CYCLES,
    MAX_UNROLLED,
    WAYS,
    LoopOrder,
    TileContext,
    best_tile,
    form_cycles,
    leaves_rest,
    loop_orders,
    reduce_orders,
    row_cycles,
    tiles_of,
    unrolls,
)
from compiler.schedule.sketches.tile_dots import float_products
from compiler.schedule.sketches.tile_forms import tile_forms
from compiler.schedule.sketches.tile_operands import (
    can_inline,
    is_padded_with_terms,
    packed_along,
    unpacks,
)
from compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from compiler.schedule.steps.cache_write import CacheWrite
from compiler.schedule.steps.compute_at import ComputeAt
from compiler.schedule.steps.dot_product import DotProduct
from compiler.schedule.steps.inline import Inline
from compiler.schedule.steps.partition import Partition
from compiler.schedule.steps.prefetch import Prefetch
from compiler.schedule.steps.reorder import Reorder
from compiler.schedule.steps.step import Step
from compiler.schedule.steps.tile import Tile
from compiler.schedule.steps.unroll import Unroll
from compiler.schedule.steps.vectorize import Vectorize
from compiler.schedule.vectors import vector_lanes
from compiler.target import Target

# What takes a few times a fork and join's 1 to 2 us (tests/benchmarks/threads.py): multiply-adds,
# and bytes of constants, which come from beyond the second-level cache unless a loop reads them.
PARALLEL_WORK = 1 << 17
PARALLEL_BYTES = 1 << 18
IN_ORDER = ("tiled_merged", "tiled_phases")  # forms of blocked data: the first is the best
WIDE_WINDOW = 5
PREFETCH_DISTANCES = (0, 1024)  # elements
LONG_REDUCTION = 32  # steps, that are worth code of their own for each phase


def tiled_reduction_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """A sketch for each form of the kernel that has vectors, the fastest by rule first."""
    contexts = [
        TileContext(form, target, threads)
        for form in tile_forms(kernel, vector_lanes(kernel, target))
    ]
    contexts = [context for context in contexts if tiles_of(context)]
    if len(contexts) > 1 and contexts[0].form.name not in IN_ORDER:
        contexts.sort(key=form_cycles)
    return [_sketch(context) for context in contexts]


def _sketch(context: TileContext) -> Sketch:
    anchor, roles, prologue = context.anchor, context.roles, context.prologue
    work = math.prod(axis.extent for axis in (*anchor.axes, *anchor.reduce_axes))
    streamed = sum(buffer.type.bytes for buffer in context.kernel.inputs if buffer.constant)
    if work < PARALLEL_WORK and streamed <= PARALLEL_BYTES:
        context = replace(context, threads=1)
    tiles = tiles_of(context)
    orders = reduce_orders(context)
    steps = unrolls(context, orders)
    loops = tuple(map(str, loop_orders(context)))
    choices: list[tuple[Choice, ChoiceValue]] = [
        (Choice("tile", tiles), best_tile(context, tiles)),
        (Choice("loops", loops), loops[0]),
        (Choice("reduce", orders), orders[0]),
        # Where in a word a number lies is known in straight code: shifts are by literals there.
        (Choice("unroll", steps), max(steps) if unpacks(context.kernel) else steps[-1]),
    ]
    if context.ragged and not context.form.turned:
        choices.append((Choice("tail", ("peel", "mask")), "peel"))
    if roles.column and leaves_rest(context, tiles):
        choices.append((Choice("rest", ("peel", "shift")), "peel"))
    if context.form.dot is not None and anchor.dtype.is_float:
        products = float_products(context.target)
        choices.append((Choice("factors", products), products[0]))
    if context.streamed:
        # What is unpacked is read slowly enough for that to be worth an instruction.
        distance = PREFETCH_DISTANCES[-1] if unpacks(context.kernel) else 0
        choices.append((Choice("prefetch", PREFETCH_DISTANCES), distance))
    if prologue and not context.form.copies:
        apart = context.form.held or not can_inline(context.kernel, prologue, roles.vector)
        if context.form.dot is not None and is_padded_with_terms(context.kernel, prologue):
            apart = True
        paddings = ("copy",) if apart else ("inline", "copy")
        choices.append((Choice("padding", paddings), _padding(context, paddings)))
    if context.threads > 1:
        choices.append((Choice("chunks", CHUNKS), 4))
    sketch = Sketch.planned(context.form.name, choices, lambda values: _Plan(context, values))
    # Where padding is inline, a loop over columns alone leaves its ends to one thread.
    plain = () if roles.row or prologue else [loop for loop in loops if "columns" not in loop]
    return evenly_shared(sketch, context.threads, {"tile": tiles, "loops": plain})


def _padding(context: TileContext, paddings: Sequence[str]) -> str:
    """By rule padding is decided inline, but copied where wide windows make long borders.

    A copy of much more than there was, or of more than the caches hold, costs more than it saves.
    """
    if not context.form.turned or not context.roles.window:
        return paddings[0]
    wide = context.extents[context.roles.window[-1]] >= WIDE_WINDOW
    read = sum(buffer.type.bytes for buffer in context.kernel.inputs if not buffer.constant)
    small = context.copied <= min(2 * read, context.target.l2_bytes)
    return paddings[-1] if wide and small else paddings[0]


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The loops over tiles in one order, outermost first, and which loops run in parallel."""

    order: LoopOrder
    loops: list[Loop]
    parallel: list[Loop]
    column: Loop


class _Plan:
    """What is decided for n candidates."""

    def __init__(self, context: TileContext, values: Values) -> None:
        self.context, self.values = context, values
        self.columns, self.vectors = values.pairs("tile")
        self.inline = values.are("padding", "inline")
        self.attached = attached_axis(context)
        roles, extents = context.roles, context.extents
        self.outer = [Loop(axis, axis, extents[axis]) for axis in roles.outer]
        self.blocks, self.row = (
            self._blocks(),
            Loop(roles.row, roles.row, context.extent(roles.row)),
        )
        self.column = self._column(roles.column, context.extent(roles.column))
        cuts: dict[str, tuple[int, ...]] = {}
        shared = context.threads > 1 and context.streamed
        if context.reduction >= LONG_REDUCTION and not shared:
            cuts = phase_cuts(context.kernel, roles.phases)
        self.phases = [
            Loop(axis, axis, extents[axis], cuts=cuts.get(axis, ())) for axis in roles.phases
        ]
        spellings = values.domains["loops"]
        self.tiles = [self._tiles(LoopOrder.parse(str(spelling))) for spelling in spellings]
        # The reduction's unrolled steps, halved until the body is small enough.
        orders: Any = values.domains["reduce"]
        self.orders: tuple[tuple[str, ...], ...] = orders
        lengths = np.array([[extents[axis] for axis in order] for order in self.orders])
        self.lengths = lengths[values.positions["reduce"]].T  # [reduce axes, n], outermost first
        inner, outer = values.pairs("unroll")
        inner, tile = np.minimum(inner, self.lengths[-1]), self.columns * self.vectors
        while (large := (inner > 1) & (inner * tile > MAX_UNROLLED)).any():
            inner = np.where(large, inner // 2, inner)
        self.unrolled = inner
        self.unrolls_next = np.zeros(values.count, np.bool_)
        if len(self.lengths) > 1:
            small = self.lengths[-2] * inner * tile <= MAX_UNROLLED
            self.unrolls_next = (outer > 1) & (inner == self.lengths[-1]) & small

    def _tiles(self, order: LoopOrder) -> _Tiles:
        context, roles = self.context, self.context.roles
        row, column = self.row, self.column
        loops: list[Loop] = []
        if order.rows:
            loops = [Loop(f"{roles.row}.o", roles.row, row.extent, order.rows, whole=True)]
            row = Loop(f"{roles.row}.i", roles.row, order.rows)
        if order.columns:
            # A loop with a tail cannot be fused with others.
            shared = context.threads > 1
            loops = [Loop(column.name, roles.column, column.extent, order.columns, whole=shared)]
            column = self._column(f"{roles.column}.i", order.columns)
        by_name = {"row": row, "block": self.blocks, "column": column}
        loops += [by_name[name] for name in order.names]
        if self.phases:
            # Weights that come from beyond the caches serve all rows before others are read.
            inside = loops.index(row if roles.row else column)
            inside += bool(roles.row and not context.streamed)
            loops[inside:inside] = self.phases
        parallel = self._parallel(order, [*self.outer, *loops])
        if self.column.name not in [loop.name for loop in parallel]:
            return _Tiles(order, loops, parallel, column)
        # Fused loops are not partitioned.
        even = replace(column, whole=True, apart=self.inline & (len(parallel) == 1))
        loops, parallel = (
            [even if loop is column else loop for loop in part] for part in (loops, parallel)
        )
        return _Tiles(order, loops, parallel, even)

    def _column(self, axis: str, extent: int) -> Loop:
        """The loop over tiles of columns; `axis` is the column's, or its inner part."""
        shifted = self.values.are("rest", "shift")
        return Loop(
            f"{axis}.o", self.context.roles.column, extent, self.columns, shifted, self.inline
        )

    def _blocks(self) -> Loop:
        """The loop over tiles of vectors."""
        roles, lanes, turned = self.context.roles, self.context.lanes, self.context.form.turned
        if turned:
            whole = not self.context.ragged
            channels, tile = self.context.channels, self.vectors * lanes
            return Loop(f"{turned}.o", roles.block, channels, tile, whole=whole)
        if roles.block:
            name, extent = f"{roles.block}.o", self.context.vectors
            return Loop(name, roles.block, extent, self.vectors, whole=True)
        extent = self.context.extents[roles.vector]
        if extent % lanes:
            return Loop(f"{roles.vector}.o", roles.vector, extent, self.vectors * lanes)
        return Loop(f"{roles.vector}.o.o", roles.vector, extent // lanes, self.vectors, whole=True)

    def _parallel(self, order: LoopOrder, loops: list[Loop]) -> list[Loop]:
        """The loops that are fused and run in parallel: all but the innermost of several.

        In an order in which they are `shared`, the innermost too.

        Those that stand apart cannot be fused: a loop with a tail, the rows of a tile of rows.
        Alone, a loop with a tail runs in parallel up to there.
        """
        roles = self.context.roles
        if self.context.threads == 1:
            return []
        if self.attached:
            return loops[: roles.outer.index(self.attached) + 1]
        if order.shared:
            return loops
        apart = {f"{roles.row}.i"} | ({self.blocks.name} if self.context.ragged else set())
        apart |= {loop.name for loop in self.phases if loop.cuts}
        fused = takewhile(lambda loop: loop.name not in apart, loops[:-1] or loops)
        return list(fused) or loops[:1]

    def steps(self) -> list[Step]:
        context, roles, values = self.context, self.context.roles, self.values
        (tiles,) = self.tiles
        output, anchor = context.kernel.output.name, context.kernel.anchor
        inline = self.inline.item()
        steps: list[Step] = list(context.form.steps)
        if inline:
            steps += [Inline(stage) for stage in reversed(context.prologue)]
        packed = (
            []
            if context.form.turned
            else packed_along(
                context.kernel, roles.vector, self._packed_lanes(), dot=context.form.dot
            )
        )
        steps += packed
        if distance := values.integers("prefetch").item():
            streamed = [pack.buffer for pack in packed if pack.buffer in context.streamed]
            steps += [Prefetch(buffer, distance) for buffer in streamed]
        if output == anchor:  # a turned form has seen to it
            anchor = f"{output}.sum"
            steps.append(CacheWrite(output, anchor))
        tile_axes, made = self._vector_steps(output)
        steps += made
        if tiles.order.rows:
            steps.append(Tile(output, roles.row, tiles.order.rows, "shift"))
        inside = roles.column
        if tiles.order.columns:
            tail = "peel" if context.threads == 1 else "shift"
            steps.append(Tile(output, roles.column, tiles.order.columns, tail))
            inside = f"{roles.column}.i"
        if roles.column:
            tail = "shift" if np.all(tiles.column.whole) else "peel"
            steps.append(Tile(output, inside, self.columns.item(), tail))
        loops = [loop.name for loop in (*self.outer, *tiles.loops)]
        inner = (f"{inside}.i",) if roles.column else ()
        body = (*tile_axes, *inner) if context.form.turned else (*inner, *tile_axes)
        steps.append(Reorder(output, (*loops, *body)))
        steps += [Unroll(output, axis) for axis in body[:-1]]
        steps.append(Vectorize(output, body[-1]))
        if inline and roles.column:
            steps.append(Partition(output, f"{roles.column}.o"))
        cuts = ((loop.name, tuple(map(int, loop.cuts))) for loop in self.phases)
        steps += [Partition(output, name, 0, 0, at) for name, at in cuts if at]
        steps += parallel_steps(output, tiles.parallel, values.integers("chunks").item())
        if not inline:
            steps += self._copies(tiles)
        fused = len(tiles.parallel) == len(loops) > 1
        steps.append(ComputeAt(anchor, output, "parallel" if fused else loops[-1], "register"))
        return steps + self._reduction_steps(anchor)

    def _packed_lanes(self) -> int:
        """Neighbours along the vectors that constants hold side by side: a vector's, or a tile's.

        Quantised weights are read in order, by all vectors of a tile at once: apart, they would be
        as many streams, which lie a multiple of 4 KiB from each other.
        """
        lanes, roles = self.context.lanes, self.context.roles
        tile = lanes * self.vectors.item()
        whole = not roles.block and self.context.extents[roles.vector] % tile == 0
        return tile if whole and unpacks(self.context.kernel) else lanes

    def _copies(self, tiles: _Tiles) -> list[Step]:
        """How operands are copied: as a whole, or each part where it is read."""
        kernel, lanes = self.context.kernel, self.context.lanes
        steps: list[Step] = []
        for name in self.context.prologue:
            steps += copying_steps(kernel, kernel.stage(name), lanes)
            if self.attached:
                loop = "parallel" if len(tiles.parallel) > 1 else self.attached
                steps.append(ComputeAt(name, kernel.output.name, loop))
        return steps

    def _vector_steps(self, output: str) -> tuple[tuple[str, ...], list[Step]]:
        """The axes inside of a tile of vectors, and the steps that make it."""
        roles, lanes, vectors = self.context.roles, self.context.lanes, self.vectors.item()
        axis = roles.vector
        if turned := self.context.form.turned:
            return (f"{turned}.i",), [Tile(output, turned, lanes * vectors)]
        if roles.block:
            return (f"{roles.block}.i", axis), [Tile(output, roles.block, vectors, "shift")]
        if self.context.extents[axis] % lanes == 0:
            blocks = f"{axis}.o"
            made = [Tile(output, axis, lanes), Tile(output, blocks, vectors, "shift")]
            return (f"{blocks}.i", f"{axis}.i"), [*made]
        tail = "mask" if self.values.are("tail", "mask").item() else "peel"
        inside = f"{axis}.i"
        made = [Tile(output, axis, lanes * vectors), Tile(output, inside, lanes, tail)]
        return (f"{inside}.o", f"{inside}.i"), [*made]

    def _reduction_steps(self, anchor: str) -> list[Step]:
        roles, lanes = self.context.roles, self.context.lanes
        *loops, last = self.orders[0]
        dot, size = self.context.form.dot, self.unrolled.item()
        names = {axis: axis for axis in loops} | {last: f"{last}.i"}
        if dot is not None and dot.axis == last:
            size *= dot.terms
        steps: list[Step] = [Tile(anchor, last, size)]
        if dot is not None:
            steps.append(Tile(anchor, names[dot.axis], dot.terms))
            summed, names[dot.axis] = f"{names[dot.axis]}.i", f"{names[dot.axis]}.o"
        unrolled = [names[loops.pop()]] if self.unrolls_next.item() else []
        # The step loop has one iteration when all of it is unrolled, so its place does not matter.
        loops = [*(names[axis] for axis in loops), f"{last}.o"]
        unrolled.append(names[last])
        vector = [roles.block, roles.vector]
        if not roles.block:
            steps.append(Tile(anchor, roles.vector, lanes))
            vector = [f"{roles.vector}.o", f"{roles.vector}.i"]
        column = [roles.column] if roles.column else []
        rest = [axis for axis in (*roles.outer, roles.row, *roles.phases) if axis]
        within = [] if dot is None else [summed]
        steps.append(Reorder(anchor, (*rest, *loops, *unrolled, *column, *vector, *within)))
        # Rows in registers have no address: each of their loops is unrolled in tails, too.
        everywhere = self.context.form.held is not None
        steps += [Unroll(anchor, axis, everywhere) for axis in unrolled]
        steps += [Unroll(anchor, axis) for axis in (*column, vector[0])]
        steps.append(Vectorize(anchor, vector[-1]))
        widened = self.values.are("factors", "widened").item()
        steps += [DotProduct(anchor, axis, widened) for axis in within]
        return [*steps, *self._held_rows(anchor)]

    def _held_rows(self, anchor: str) -> list[Step]:
        """The rows that windows above each other share, in registers."""
        held = self.context.form.held
        if held is None:
            return []
        *outer, last = (axis.name for axis in self.context.kernel.stage(held.stage).axes)
        return [
            Tile(held.stage, last, self.context.lanes),
            *(Unroll(held.stage, axis) for axis in (*outer, f"{last}.o")),
            Vectorize(held.stage, f"{last}.i"),
            ComputeAt(held.stage, anchor, held.along, "register"),
        ]

    def shape(self) -> NestShape:
        context, roles, values = self.context, self.context.roles, self.values
        columns, vectors = (size.astype(np.float64) for size in (self.columns, self.vectors))
        which = values.positions["loops"]
        extents, lanes = context.extents, context.lanes
        nest = Nest(list(extents), values.count)
        straight = self._reduction_loops(nest)
        for level in range(max(len(tiles.loops) for tiles in self.tiles)):
            none = Loop("", roles.vector, 1)
            loops = [(*reversed(tiles.loops), none, none)[level] for tiles in self.tiles]
            nest.loop(*loops, which=which)
        for loop in reversed(self.outer):
            nest.loop(loop)
        extent, blocks = context.extent(roles.column), context.vectors / vectors
        whole = np.floor(extent / columns)
        tiles = Level(tuple(item.column for item in self.tiles), which)
        points = tiles.of(self._points(columns), values.count)
        shifted = tiles.of([loop.whole for loop in tiles.loops], values.count) > 0
        shifted = shifted & (whole * columns < extent)
        parallel = [item.parallel for item in self.tiles]
        pieces, grains = pieces_and_grains(values, parallel, which, context.threads)
        computed = np.full(values.count, float(context.vectors))
        if not context.ragged:
            computed = np.ceil(blocks) * vectors
        others = math.prod(extents[axis] for axis in (*roles.outer, *roles.phases))
        others *= context.reduction
        operations = points * computed * others
        repeated = operations / (context.extent(roles.row) * extent * context.vectors * others)
        aliased = context.aliased(columns, vectors)
        row = row_cycles(
            context, columns, vectors, shifted & (whole * columns < extent), self.inline
        )
        row = row * np.maximum(1.0, aliased / WAYS) ** 2
        width = context.lanes * context.element_bytes
        copied = np.where(self.inline, 0.0, context.copied) / width * COPY_CYCLES
        cycles = np.ceil(blocks) * context.extent(roles.row) * others * row + copied
        useful = extents[roles.vector] / (-(-extents[roles.vector] // lanes) * lanes)
        step = columns * vectors
        return NestShape(
            operands=context.operands,
            nest=nest,
            operations=operations,
            body=step * straight,
            accumulators=step,
            registers=step + vectors + 1,
            loads=columns + vectors if context.broadcasts else step + vectors,
            step=step,
            cycles=cycles,
            flops=2.0 * context.terms * math.prod(extents.values()) * repeated,
            full=whole * columns / extent * np.floor(blocks) / blocks,
            lanes=np.full(values.count, useful),
            aliased=aliased,
            temporary=2.0 * copied,
            pieces=pieces,
            grains=grains,
        )

    def _points(self, columns: Numbers) -> list[Numbers]:
        """Rows x columns that are computed by order of the loops, repeated ones included."""
        context, roles = self.context, self.context.roles
        extent = context.extent(roles.column)
        known: dict[tuple[int, int], Numbers] = {}  # by block of columns and how tiles end
        points = []
        for tiles in self.tiles:
            width, whole = tiles.order.columns or extent, tiles.column.whole
            key = (width, id(whole))
            if key not in known:
                blocks, rest = divmod(extent, width)
                known[key] = blocks * _computed(width, columns, whole)
                if rest:
                    last = width if context.threads > 1 else rest
                    known[key] = known[key] + _computed(last, columns, whole)
            rows = context.extent(roles.row)
            if tiles.order.rows:
                rows = -(-rows // tiles.order.rows) * tiles.order.rows
            points.append(known[key] * rows)
        return points

    def _reduction_loops(self, nest: Nest) -> Counts:
        """Add the body and the loops of the reduction; the unrolled steps, as straight code."""
        context, roles, which = self.context, self.context.roles, self.values.positions["reduce"]
        extents = context.extents
        if roles.block:
            nest.inside[nest.numbers[roles.block]] = self.vectors
            points = context.channels if context.form.turned else extents[roles.vector]
            nest.inside[nest.numbers[roles.vector]] = min(context.lanes, points)
        else:
            lanes = self.vectors * context.lanes
            within = np.minimum(lanes, context.extents[roles.vector])
            masked = self.values.are("tail", "mask")
            nest.inside[nest.numbers[roles.vector]] = np.where(masked, lanes, within)
        if roles.column:
            nest.inside[nest.numbers[roles.column]] = self.columns
        last, candidates = self.lengths[-1], np.arange(self.values.count)
        unrolled = np.ones_like(self.lengths)
        # One turn and one step that is left over are straight code; more of them are a loop.
        straight = (self.unrolled > 1) & (last == self.unrolled + 1)
        unrolled[-1] = np.where(straight, last, self.unrolled)
        if len(unrolled) > 1:
            unrolled[-2] = np.where(self.unrolls_next, self.lengths[-2], 1)
        axes = np.array([[nest.numbers[axis] for axis in order] for order in self.orders])[which].T
        for level in reversed(range(len(unrolled))):
            nest.inside[axes[level], candidates] = unrolled[level]
            own = [
                Loop(order[level], order[level], context.extents[order[level]], unrolled[level])
                for order in self.orders
            ]
            nest.loop(*own, which=which)
        return np.asarray(unrolled.prod(axis=0), np.int64)


def _computed(width: int, columns: Numbers, whole: Mask | bool) -> Numbers:
    """Points of an axis of this width that tiles compute; the last one is shifted where `whole`."""
    shifted = np.logical_and(whole, columns < width)
    return np.where(shifted, np.ceil(width / columns) * columns, width)
