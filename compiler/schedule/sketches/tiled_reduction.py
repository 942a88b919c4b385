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
from dataclasses import replace

import numpy as np

from tunefarm.compiler.expr.affine import affine, affine_range
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.roles import with_roles
from tunefarm.compiler.kernels.unpack_weights import UNPACKED
from tunefarm.compiler.kernels.weight_words import WORD, word_product
from tunefarm.compiler.schedule.cycles import cycles
from tunefarm.compiler.schedule.nest_shape import NestShape
from tunefarm.compiler.schedule.sketches.borders import borders, flips
from tunefarm.compiler.schedule.sketches.even_shares import cheapest, evenly_shared
from tunefarm.compiler.schedule.sketches.operand_copies import copying_steps
from tunefarm.compiler.schedule.sketches.parallel_choices import (
    CHUNKS,
    parallel_steps,
    pays_to_share,
)
from tunefarm.compiler.schedule.sketches.ragged_sums import apart
from tunefarm.compiler.schedule.sketches.roles import roles_of
from tunefarm.compiler.schedule.sketches.tile_context import LoopOrder, TileContext
from tunefarm.compiler.schedule.sketches.tile_domains import (
    best_tile,
    form_cycles,
    leaves_rest,
    loop_orders,
    reduce_orders,
    tiles_of,
    unrolls,
)
from tunefarm.compiler.schedule.sketches.tile_dots import float_products
from tunefarm.compiler.schedule.sketches.tile_forms import TileForm, prepared, tile_forms
from tunefarm.compiler.schedule.sketches.tile_loops import TileLoops, Tiles
from tunefarm.compiler.schedule.sketches.tile_operands import (
    can_inline,
    is_padded_with_terms,
    packed_along,
    unpacks,
)
from tunefarm.compiler.schedule.sketches.tile_shape import tile_shape
from tunefarm.compiler.schedule.sketches.wide_forms import wide_forms
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch
from tunefarm.compiler.schedule.steps.kernel_forms import MergeAxes, UnpackWeights
from tunefarm.compiler.schedule.steps.loop_kinds import DotProduct, Prefetch, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite
from tunefarm.compiler.schedule.steps.packing import PackLayout, PackStage
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES, ComputeAt, Inline
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Partition, Reorder, Tile
from tunefarm.compiler.schedule.vectors import vector_lanes
from tunefarm.compiler.target import Target

# --- Forms of products with packed weights that unpack a tile's weights before its sums ----------
#
# The tile's floats stay in the caches while all rows are multiplied with them; in registers they
# would be unpacked again for every few rows.


FEWEST_ROWS = 4  # that use each float: below, unpacking in registers is never slower


def unpacked_forms(forms: Sequence[TileForm], lanes: int) -> list[TileForm]:
    """Those of the forms whose weights can be unpacked before they are multiplied."""
    made = [_unpacked(form, lanes) for form in forms if may_unpack(form, lanes)]
    return [form for form in made if form is not None]


def may_unpack(form: TileForm, lanes: int) -> bool:
    """Vectors along whole columns, many rows, and nothing computed before the product."""
    kernel = form.kernel
    if form.name != "tiled" or form.copies or form.held is not None:
        return False
    product = word_product(kernel)
    if product is None or kernel.stages[0] is not product.stage:
        return False
    if not all(isinstance(step, MergeAxes) for step in form.steps):
        return False
    *rows, column = product.stage.axes
    return (
        form.roles.vector == column.name
        and column.extent >= lanes
        and rows[-1].extent >= FEWEST_ROWS
        and product.inner * lanes * 4 <= STACK_BYTES
    )


def _unpacked(form: TileForm, lanes: int) -> TileForm | None:
    made = (UnpackWeights(), PackStage(UNPACKED, ((2, lanes),), (2, 0, 1, 3)))
    kernel = with_roles(prepared(form.kernel, made), lanes)
    roles = roles_of(kernel)
    if roles is None:
        return None
    steps = (*form.steps, *made)
    return TileForm("tiled_unpacked", kernel, steps, roles, (UNPACKED,), unpacked=UNPACKED)


def unpacking_steps(form: TileForm, columns: int, loop: str, prefetch: int) -> list[Step]:
    """The steps that unpack a tile's weights in vectors, in the output's loop over tiles.

    Constants hold so many `columns`, those of a tile, side by side. Words are asked for so many
    elements ahead, if `prefetch` is not 0.
    """
    kernel, name = form.kernel, form.unpacked
    blocks, words, places, lane = (axis.name for axis in kernel.stage(name).axes)
    read = loads(kernel.stage(name).body)
    (packed,) = {load.buffer for load in read if load.dtype is WORD}
    constants = sorted({load.buffer for load in read})
    cuts = borders(kernel.stage(name).body, kernel.stage(name).axes[0])  # behind the last column
    return [
        *(PackLayout(buffer, ((1, columns),), (1, 0, 2)) for buffer in constants),
        *([Prefetch(packed, prefetch)] if prefetch else []),
        Reorder(name, (words, blocks, places, lane)),
        *([Partition(name, blocks, 0, 0, cuts)] if cuts else []),
        Unroll(name, places),
        Vectorize(name, lane),
        ComputeAt(name, kernel.output.name, loop),
    ]


PARALLEL_WORK = 1 << 17  # multiply-adds: a few times a fork and join (tests/benchmarks/threads.py)
IN_ORDER = ("tiled_merged", "tiled_phases")  # forms of blocked data: the first is the best
WIDE_WINDOW = 5
PREFETCH_DISTANCES = (0, 1024)  # elements
TILES_AHEAD = (0, 1)  # of constants that are asked for while those of a tile are multiplied


def tiled_reduction_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """A sketch for each form of the kernel that has vectors, the fastest by rule first."""
    lanes = vector_lanes(kernel, target)
    forms = tile_forms(kernel, lanes)
    forms += unpacked_forms(forms, lanes)
    contexts = [TileContext(form, target, threads) for form in forms]
    contexts = [context for context in contexts if tiles_of(context)]
    if len(contexts) > 1 and contexts[0].form.name not in IN_ORDER:
        contexts.sort(key=form_cycles)
    wide = [TileContext(form, target, threads) for form in wide_forms(forms, target)]
    wide = [context for context in wide if tiles_of(context)]
    return [tiled_sketch(context) for context in (*wide, *contexts)]


def tiled_sketch(context: TileContext) -> Sketch:
    """The sketch of one form, which has tiles."""
    anchor, roles, prologue = context.anchor, context.roles, context.prologue
    work = math.prod(axis.extent for axis in (*anchor.axes, *anchor.reduce_axes))
    streamed = sum(buffer.type.bytes for buffer in context.kernel.inputs if buffer.constant)
    if work < PARALLEL_WORK and not pays_to_share(streamed, context.target):
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
    if context.streamed or context.form.unpacked:
        # What is unpacked is read slowly enough for that to be worth an instruction.
        is_worth = context.form.unpacked or unpacks(context.kernel)
        is_worth = is_worth or bool(context.target.machine.memory.ahead)
        distance = PREFETCH_DISTANCES[-1] if is_worth else 0
        choices.append((Choice("prefetch", PREFETCH_DISTANCES), distance))
    if context.form.dot is not None and not context.form.turned:
        choices.append((Choice("ahead", TILES_AHEAD), int(_rereads(context, tiles))))
    if prologue and not context.form.copies:
        apart = context.form.held or context.form.converts
        apart = apart or not can_inline(context.kernel, prologue, roles.vector)
        if context.form.dot is not None and is_padded_with_terms(context.kernel, prologue):
            apart = True
        paddings = ("copy",) if apart else ("inline", "copy")
        choices.append((Choice("padding", paddings), _padding(context, paddings)))
    if context.threads > 1:
        choices.append((Choice("chunks", CHUNKS), 4))
    sketch = Sketch.planned(context.form.name, choices, lambda values: TilePlan(context, values))
    if context.threads == 1:
        streaming = {"loops": _long_streams(context, loops)}
        return cheapest(sketch, streaming, lambda shape: cycles(shape, context.target))
    return evenly_shared(sketch, context.threads, {"tile": tiles, "loops": _shared(context, loops)})


def _long_streams(context: TileContext, loops: Sequence[str]) -> Sequence[str]:
    """The orders of loops in which data comes in long streams, which hardware follows.

    Blocks of channels lie a plane apart: each of them in turn is a stream of the lines of a tile.
    """
    return [loop for loop in loops if not context.roles.block or not loop.endswith("block")]


def _shared(context: TileContext, loops: Sequence[str]) -> Sequence[str]:
    """Orders that may be the default's, where threads share the work better so."""
    if context.ragged and not context.form.turned:
        # The tail of a loop over blocks that is outermost is left to one thread. Tiles that are
        # moved back read packed constants across two blocks, element by element.
        packed = packed_along(context.kernel, context.roles.vector, context.lanes)
        fair = ("row ", "column ") if packed else ("even", "row ", "column ")
        return [loop for loop in loops if loop.startswith(fair)]
    # Where padding is inline, a loop over columns alone leaves its ends to one thread.
    if context.roles.row or context.prologue:
        return ()
    return [loop for loop in loops if "columns" not in loop]


def _rereads(context: TileContext, tiles: Sequence[ChoiceValue]) -> bool:
    """Whether several tiles of the output multiply the same constants.

    Narrow ones, which are multiplied fast, come from beyond the caches too slowly. Meanwhile there
    is time to bring the next ones; what is read once comes in order, and is best left alone.
    """
    best = best_tile(context, tiles)
    assert isinstance(best, tuple)
    roles = context.roles
    outer = math.prod(context.extents[axis] for axis in roles.outer)
    return outer * context.extent(roles.row) * context.extent(roles.column) > int(best[0])


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


class TilePlan(TileLoops):
    """What is decided for n candidates, and the steps and the shape that follow from it."""

    def steps(self) -> list[Step]:
        """The steps of the one candidate that the choices are values of."""
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
        elif tiles_ahead := values.integers("ahead").item():
            distance = tiles_ahead * self._tile_of_constants()
            steps += [Prefetch(pack.buffer, distance) for pack in packed]
        if output == anchor:  # a turned form has seen to it
            anchor = f"{output}.sum"
            steps.append(CacheWrite(output, anchor))
        tile_axes, made = self._vector_steps(output, tiles.order)
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
            steps += self._partitions(tiles)
        cuts = ((loop.name, tuple(map(int, loop.cuts))) for loop in self.phases)
        steps += [Partition(output, name, 0, 0, at) for name, at in cuts if at]
        steps += parallel_steps(output, tiles.parallel, values.integers("chunks").item())
        if not inline:
            steps += self._copies(tiles)
        fused = len(tiles.parallel) == len(loops) > 1
        steps.append(ComputeAt(anchor, output, "parallel" if fused else loops[-1], "register"))
        return steps + self._reduction_steps(anchor)

    def _partitions(self, tiles: Tiles) -> list[Partition]:
        """Tiles of static columns at borders stand alone, and the last one always.

        Between them loops are cut where borders reach beyond one tile. Of dynamic columns each
        tile that stands alone has tiles for fewer of them besides: their rows test for borders.
        """
        context, column = self.context, self.context.roles.column
        whole = context.extent(column) // self.columns.item()
        cuts = {end for border in self._borders() for end in border if 1 < end < whole - 1}
        if tiles.order.columns or any(loop.name == tiles.column.name for loop in tiles.parallel):
            cuts = set()
        alone = int(not context.has_dynamic_columns)
        output, loop = context.kernel.output.name, f"{column}.o"
        made = Partition(output, loop, alone, alone, tuple(sorted(cuts)))
        return [made] if alone or cuts else []

    def _borders(self) -> list[tuple[int, int]]:
        """The tiles of columns that borders lie in: the first of each, and the one behind it."""
        kernel, column, tile = self.context.kernel, self.context.roles.column, self.columns.item()
        anchor = kernel.stage(kernel.anchor)
        axes = (*anchor.axes, *anchor.reduce_axes)
        first_column = {axis.name: (0, axis.extent - 1) for axis in axes} | {column: (0, 0)}
        borders: list[tuple[int, int]] = []
        for load in loads(anchor.body):
            if load.buffer not in self.context.prologue:
                continue
            stage = kernel.stage(load.buffer)
            for axis, item in zip(stage.axes, load.indices, strict=True):
                form = affine(item, {})
                stride = form.coefficient(column)
                if stride < 1:
                    continue
                low, high = affine_range(form, first_column)
                for position in flips(stage.body, axis.name):
                    # Terms of columns below the first are all before it, from the second on none.
                    below = (position - 1 - high) // stride + 1
                    above = -((low - position) // stride)
                    borders.append((below // tile, -(-above // tile)))
        return borders

    def _tile_of_constants(self) -> int:
        """Elements of a packed constant that a tile of the output is multiplied with."""
        dot = self.context.form.dot
        assert dot is not None
        return self.context.reduction * dot.terms * self.vectors.item() * self.context.lanes

    def _packed_lanes(self) -> int:
        """Neighbours along the vectors that constants hold side by side: a vector's, or a tile's.

        Quantised weights are read in order, by all vectors of a tile at once: apart, they would be
        as many streams, which lie a multiple of 4 KiB from each other.
        """
        lanes, roles = self.context.lanes, self.context.roles
        tile = lanes * self.vectors.item()
        whole = not roles.block and self.context.extents[roles.vector] % tile == 0
        return tile if whole and unpacks(self.context.kernel) else lanes

    def _copies(self, tiles: Tiles) -> list[Step]:
        """How operands are copied: as a whole, or each part where it is read."""
        kernel, lanes = self.context.kernel, self.context.lanes
        threads = 1 if self.attached else self.context.threads
        steps: list[Step] = []
        if self.context.form.unpacked:
            tile = lanes * self.vectors.item()
            whole = self.context.extents[self.context.roles.vector] % tile == 0
            columns, ahead = tile if whole else lanes, self.values.integers("prefetch").item()
            return unpacking_steps(self.context.form, columns, self.blocks.name, ahead)
        for name in self.context.prologue:
            steps += copying_steps(kernel, kernel.stage(name), lanes, threads)
            if self.attached:
                loop = "parallel" if len(tiles.parallel) > 1 else self.attached
                steps.append(ComputeAt(name, kernel.output.name, loop))
        return steps

    def _vector_steps(self, output: str, order: LoopOrder) -> tuple[tuple[str, ...], list[Step]]:
        """The axes inside of a tile of vectors, and the steps that make it."""
        roles, lanes, vectors = self.context.roles, self.context.lanes, self.vectors.item()
        axis = roles.vector
        if turned := self.context.form.turned:
            return (f"{turned}.i",), [Tile(output, turned, lanes * vectors)]
        if roles.block:
            block, made = roles.block, []
            if order.blocks:
                made, block = [Tile(output, block, order.blocks, "shift")], f"{block}.i"
            return (f"{block}.i", axis), [*made, Tile(output, block, vectors, "shift")]
        if self.context.extents[axis] % lanes == 0:
            blocks = f"{axis}.o"
            made = [Tile(output, axis, lanes), Tile(output, blocks, vectors, "shift")]
            return (f"{blocks}.i", f"{axis}.i"), [*made]
        tail = "mask" if self.values.are("tail", "mask").item() else "peel"
        inside = f"{axis}.i"
        last = "shift" if order.even else "peel"
        made = [Tile(output, axis, lanes * vectors, last), Tile(output, inside, lanes, tail)]
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
        steps += apart(self.context.anchor, anchor)
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
        """The loop shapes of all candidates, as arrays of n."""
        return tile_shape(self)
