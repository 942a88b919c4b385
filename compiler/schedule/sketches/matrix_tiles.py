"""Sketch: sums of narrow products in matrix tiles (AMX, or vectors of I8MM and BF16 on Arm).

for outer.. (parallel): for row, columns, blocks in an order that is open:
    tiles = 0                                          [columns / rows of a tile][blocks]
    for reduce..: for k.o: load a tile for each of columns and of blocks; multiply all pairs
    sums = tiles
    for columns: for blocks: output = epilogue(sums)

The tiles of the left factor hold neighbours along `column`, those of the right one a block of
channels; both hold as many steps of the sum as fit, of 4 bytes each. Blocks of channels that do not
fill a tile are copied side by side, in groups. Serves matrix multiplication and convolution of
blocked data with constant weights.

- `matrix_tiles`: data as it is, or padded.
- `matrix_tiles_grouped`: with blocks of channels side by side in a copy.
- `matrix_tiles_im2col`: with what windows read gathered, so that the plane is one axis of rows.
- `matrix_tiles_unpacked`: with weights of a few bits unpacked for a block of columns at a time,
  before all rows are multiplied with them.

Of AMX tiles the candidate of the fewest cycles is the default (see `MatrixTileLoops`), and the
sketch that has it comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Load, index
from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.kernels.accumulate import narrow_factors
from tunefarm.compiler.kernels.im2col import SUFFIX, im2col
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.roles import with_roles
from tunefarm.compiler.kernels.unpack_weights import SUMMED, UNPACKED
from tunefarm.compiler.kernels.weight_words import WORD, word_product
from tunefarm.compiler.loops.verify_tiles import TERM_BYTES
from tunefarm.compiler.machine.amx_set_up import VECTOR_PALETTE, TilePalette
from tunefarm.compiler.schedule.nest_shape import Loop, NestShape
from tunefarm.compiler.schedule.sketches.matrix_tile_loops import (
    BLOCK_BY_BLOCK,
    EVERY_ORDER,
    FAR_SHARE,
    ORDERS,
    PANELS,
    PREFETCHED,
    STACKED,
    MatrixTileLoops,
    TileSizes,
)
from tunefarm.compiler.schedule.sketches.operand_copies import attached_axis, copying_steps
from tunefarm.compiler.schedule.sketches.parallel_choices import (
    CHUNKS,
    parallel_steps,
)
from tunefarm.compiler.schedule.sketches.roles import roles_of
from tunefarm.compiler.schedule.sketches.tile_context import TileContext
from tunefarm.compiler.schedule.sketches.tile_dots import DotAxis, dot_axis
from tunefarm.compiler.schedule.sketches.tile_forms import TileForm, prepared, tile_forms
from tunefarm.compiler.schedule.sketches.tile_operands import packed_along
from tunefarm.compiler.schedule.sketches.tiled_reduction import PARALLEL_WORK, may_unpack
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch
from tunefarm.compiler.schedule.steps.kernel_forms import Im2col, UnpackWeights
from tunefarm.compiler.schedule.steps.loop_kinds import Prefetch, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.matrix_tiles import MatrixTiles
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite, CopyOperand
from tunefarm.compiler.schedule.steps.packing import PackLayout, PackStage
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES, ComputeAt
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Partition, Reorder, Tile
from tunefarm.compiler.schedule.vectors import vector_lanes
from tunefarm.compiler.target import Target

BLOCKS = ((2, 2), (1, 3), (3, 1), (1, 2), (2, 1), (1, 1))
"""Tiles of sums along columns and channels; with those of the factors there are at most 8."""
VECTOR_BLOCKS = ((4, 2), (2, 4), (3, 2), (2, 3), (2, 2), (1, 4), (4, 1), (1, 2), (2, 1), (1, 1))
"""The same of tiles that are one or two vectors, of 32."""
FEWEST_ROWS = 4
COPY_PAYS = 4  # blocks of channels that are made of each element, so that a copy costs less
WORDS_TOGETHER = 4  # of a column, whose weights are unpacked with one load of their scale
WORDS_AHEAD = 1024  # of packed weights, that are asked for while others are unpacked
TILES_AHEAD = 8  # of the constant factor, that are asked for: 8 steps of 64 cycles each
FULL_ENOUGH = 0.25  # of a tile's steps: with fewer vectors are as fast


def matrix_tile_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch of the first form that matrix tiles can hold; none on a target without tiles."""
    palette = target.product_tiles
    if palette is None:
        return []
    lanes = vector_lanes(kernel, target)
    forms = tile_forms(kernel, lanes)
    if target.matrix_tiles is not None:
        forms += unpacked_for_tiles(forms, target, lanes)
    for form in forms:
        shape = _shape_of(form, target, palette)
        if shape is None:
            continue
        if palette == VECTOR_PALETTE:
            return _vector_sketches(form, shape, target, threads)
        name = "matrix_tiles_unpacked" if form.unpacked else "matrix_tiles"
        made = [(name, (form, shape)), ("matrix_tiles_grouped", _grouped(form, shape))]
        gathered = _gathered(form, target, palette)
        if gathered is not None:
            made.append(("matrix_tiles_im2col", _grouped(*gathered) or gathered))
        costed = [
            _fastest(name, TileContext(found[0], target, threads), found[1])
            for name, found in made
            if found is not None
        ]
        return [sketch for _, sketch in sorted(costed, key=lambda pair: pair[0])]
    return []


def unpacked_for_tiles(forms: Sequence[TileForm], target: Target, lanes: int) -> list[TileForm]:
    """The forms whose weights are unpacked, in the narrow type of their data, for AMX tiles."""
    return [_unpacked(form, lanes) for form in forms if _unpacks_for_tiles(form, target, lanes)]


def _unpacks_for_tiles(form: TileForm, target: Target, lanes: int) -> bool:
    product = word_product(form.kernel) if may_unpack(form, lanes) else None
    return product is not None and target.multiplies_tiles(product.data.dtype)


def _unpacked(form: TileForm, lanes: int) -> TileForm:
    """Tiles have as many lanes as vectors of the sums; a step has 4 bytes of either factor."""
    product = word_product(form.kernel)
    assert product is not None
    terms = TERM_BYTES // product.data.dtype.bytes
    made = (UnpackWeights(lanes, terms),)
    return TileForm(
        "tiled_unpacked",
        prepared(form.kernel, made),
        (*form.steps, *made),
        replace(form.roles, reduce=(SUMMED,), window=()),
        (UNPACKED,),
        dot=DotAxis(SUMMED, terms),
        unpacked=UNPACKED,
    )


def _vector_sketches(
    form: TileForm, shape: TileSizes, target: Target, threads: int
) -> list[Sketch]:
    """Those of tiles that are vectors, the preferred first."""
    context = TileContext(form, target, threads)
    sketches = [_sketch("matrix_tiles", context, shape)] * _fills(shape)
    grouped = _grouped(form, shape)
    if grouped is not None and _fills(grouped[1]):
        made = _sketch("matrix_tiles_grouped", TileContext(grouped[0], target, threads), grouped[1])
        if context.prologue or context.vectors >= COPY_PAYS:
            sketches.insert(0, made)
        elif sketches:
            sketches.append(made)
    return sketches


def _fills(sizes: TileSizes) -> bool:
    """Vectors are multiplied whole; of other tiles a part may be used."""
    return sizes.steps * sizes.groups == sizes.most_steps


def _gathered(
    form: TileForm, target: Target, palette: TilePalette
) -> tuple[TileForm, TileSizes] | None:
    """The form with the rows of a plane as one axis, and what windows read gathered; or None.

    Tiles then have rows of the plane's whole extent, whatever its width, windows and strides.
    """
    roles, lanes = form.roles, vector_lanes(form.kernel, target)
    if not roles.row or not roles.block or form.steps or form.kernel.limits:
        return None
    try:
        plane = with_roles(im2col(form.kernel, roles.row, roles.column), lanes)
    except ScheduleError:
        return None
    found = roles_of(plane)
    if found is None:
        return None
    dot = dot_axis(plane, found.vector, lanes)
    step = Im2col(roles.row, roles.column)
    gathered = TileForm("tiled_im2col", plane, (step,), found, dot=dot)
    shape = _shape_of(gathered, target, palette)
    return None if shape is None else (gathered, shape)


def _fastest(name: str, context: TileContext, sizes: TileSizes) -> tuple[float, Sketch]:
    """The sketch with the candidate of the fewest cycles as its default, and these."""
    sketch = _sketch(name, context, sizes)
    tried = [
        (value,) if choice.name == "chunks" else choice.values
        for choice, value in zip(sketch.choices, sketch.default, strict=True)
    ]
    shape, numbers = sketch.shape_of(tried)
    chosen = int(np.argmin(shape.cycles))
    default = (values[at] for values, at in zip(tried, numbers[:, chosen], strict=True))
    cycles = float(shape.cycles[chosen])
    # Sums of unpacked floats, or of digits, take no fewer cycles than their multiply-adds.
    terms = context.products * context.terms / context.lanes
    leads = not context.form.unpacked or cycles < terms / context.target.machine.vectors.fma
    return cycles, replace(sketch, default=tuple(default), leads=leads)


def _shape_of(form: TileForm, target: Target, palette: TilePalette) -> TileSizes | None:
    """The tiles for this form; None where they cannot hold it, or would hold little."""
    kernel, roles, dot = form.kernel, form.roles, form.dot
    if dot is None or form.turned or form.held is not None or roles.phases or not roles.column:
        return None
    anchor = kernel.stage(kernel.anchor)
    factors = narrow_factors(anchor.body)
    if factors is None:
        return None
    sides = _sides(kernel, factors, roles.column, roles.vector, dot.axis)
    if sides is None:
        return None
    left, right = sides
    known = target.dot_products(left.dtype, right.dtype, anchor.dtype)
    if not any(item.matrix and item.terms % dot.terms == 0 for item in known):
        return None
    extents = {axis.name: axis.extent for axis in (*anchor.axes, *anchor.reduce_axes)}
    lanes, extent = palette.row_bytes // anchor.dtype.bytes, extents[dot.axis]
    if extent % dot.terms or (roles.block and extents[roles.vector] != lanes):
        return None
    most = min(palette.rows, palette.row_bytes // (dot.terms * left.dtype.bytes))
    steps = max(n for n in range(1, most + 1) if extent // dot.terms % n == 0)
    if steps < FULL_ENOUGH * most or extents[roles.column] < _fewest_rows(palette.rows):
        return None
    packed = _packed_order(right, roles.reduce, dot.axis)
    load = target.machine.tiles.load
    return TileSizes(
        dot.axis, dot.terms, steps, lanes, palette.rows, most, left, right.buffer, packed, load
    )


def _packed_order(constant: Load, reduce: Sequence[str], summed: str) -> tuple[str, ...]:
    """The axes of a sum but `summed` as `packed_along` has them: windows outside of channels."""
    first, *others = constant.indices
    others = [*others[1:], *others[:1]] if len(others) > 1 else others
    moving = [axis for item in (*others, first) for axis in reduce if axis in axes_of(item)]
    return tuple(dict.fromkeys(axis for axis in (*moving, *reduce) if axis != summed))


def _grouped(form: TileForm, shape: TileSizes) -> tuple[TileForm, TileSizes] | None:
    """The form with blocks of channels side by side in a copy of the data; None if none fit."""
    kernel, load = form.kernel, shape.data
    anchor, rank = kernel.stage(kernel.anchor), len(load.indices)
    extents = {axis.name: axis.extent for axis in anchor.reduce_axes}
    places = [
        (axis, number)
        for axis in extents
        for number, item in enumerate(load.indices[:-1])
        if item == index(axis) and axis != shape.axis
    ]
    if not places or extents[shape.axis] != shape.steps * shape.terms or form.copies:
        return None
    axis, place = places[0]
    sizes = [n for n in range(2, shape.most_steps // shape.steps + 1) if extents[axis] % n == 0]
    if not sizes or load.indices[-1] != index(shape.axis):
        return None
    order = (*range(place + 1), *range(place + 2, rank), place + 1, rank)
    name, made = load.buffer, list[Step]()
    if any(buffer.name == name for buffer in kernel.inputs):
        name = f"{load.buffer}.copy"
        made.append(CopyOperand(anchor.name, load.buffer, name))
    made.append(PackStage(name, ((place, sizes[-1]),), order))
    copied = prepared(kernel, tuple(made))
    grouped = replace(form, kernel=copied, steps=(*form.steps, *made), copies=(name,))
    return grouped, replace(shape, group_axis=axis, groups=sizes[-1])


def _sides(
    kernel: FusedKernel, factors: Sequence[object], column: str, vector: str, summed: str
) -> tuple[Load, Load] | None:
    """The factor that has rows, contiguous along the sum, and the constant one that has lanes."""
    loads = [factor for factor in factors if isinstance(factor, Load)]
    if len(loads) < 2:
        return None
    constants = {buffer.name for buffer in kernel.inputs if buffer.constant} | {UNPACKED}
    rows = [load for load in loads if load.buffer not in constants]
    if len(rows) != 1:
        return None
    (left,), (right,) = rows, [load for load in loads if load is not rows[0]]
    read = [{name for item in load.indices for name in axes_of(item)} for load in (left, right)]
    if vector in read[0] or column in read[1] or column not in read[0] or vector not in read[1]:
        return None
    *others, last = left.indices
    if affine(last, {}).coefficient(summed) != 1 or any(summed in axes_of(i) for i in others):
        return None
    return left, right


def _sketch(name: str, context: TileContext, sizes: TileSizes) -> Sketch:
    columns, vectors = context.extent(context.roles.column), context.vectors
    most = vectors
    if context.form.unpacked:
        most = min(most, STACK_BYTES // int(sizes.tile_bytes * sizes.packed_steps(context)))
    fitting = tuple(
        (high, wide)
        for high, wide in (VECTOR_BLOCKS if sizes.most_rows == VECTOR_PALETTE.rows else BLOCKS)
        if wide <= most and columns // high >= _fewest_rows(sizes.most_rows)
    )
    best = min(fitting, key=lambda tile: (_cycles(sizes, tile, columns, vectors), -math.prod(tile)))
    left, right = columns * context.reduction, vectors * sizes.lanes * context.reduction
    # What is larger is read once, and what it is multiplied with stays in a near cache.
    orders, order = _orders(context, sizes, fitting), ORDERS[int(right > left)]
    choices: list[tuple[Choice, ChoiceValue]] = [
        (Choice("tile", fitting), best),
        (Choice("loops", orders), order if order in orders else orders[0]),
    ]
    products = math.prod(
        axis.extent for axis in (*context.anchor.axes, *context.anchor.reduce_axes)
    )
    if context.threads > 1 and products >= PARALLEL_WORK:
        choices.append((Choice("chunks", CHUNKS), 4))
    sketch = Sketch.planned(name, choices, lambda values: _Candidates(context, sizes, values))
    return replace(sketch, leads=True)


def _orders(
    context: TileContext, sizes: TileSizes, tiles: Sequence[tuple[int, int]]
) -> tuple[str, ...]:
    """Of the loops: a block's tiles may lie on neighbouring rows of the plane if it has so many.

    There are panels where the data alone does not fit the second-level cache, and prefetches where
    the constant factor does not.
    """
    row, column = context.extent(context.roles.row), context.extent(context.roles.column)
    deep = context.roles.row and row < max(high for high, _ in tiles)
    if sizes.most_rows == VECTOR_PALETTE.rows or deep:
        return ORDERS
    large = context.bytes_of_columns(column) >= FAR_SHARE * context.target.l2_bytes
    panels = (PANELS,) * (large and not context.roles.row)
    if context.form.unpacked:
        return (BLOCK_BY_BLOCK, *panels)
    prefetched = (PREFETCHED,) * (sizes.constant in context.streamed)
    return (*ORDERS, *STACKED, *panels, *prefetched)


def _fewest_rows(most: int) -> int:
    """Rows of a tile that has so many at most, so that it is worth its while."""
    return min(FEWEST_ROWS, most)


def _cycles(sizes: TileSizes, tile: tuple[int, int], columns: int, vectors: int) -> float:
    """Of a step of the sum for all columns and vectors, in tiles of so many of both."""
    high, wide = tile
    turns = math.ceil(columns / (sizes.rows(high, columns) * high)) * math.ceil(vectors / wide)
    each = sizes.cycles(np.array([float(high)]), np.array([float(wide)]), columns)
    return float(turns * each.item())


class _Candidates(MatrixTileLoops):
    """What is decided for n candidates, and the steps and the shape that follow from it."""

    def shape(self) -> NestShape:
        """The loops that those schedules lead to."""
        palette = self.context.target.product_tiles
        assert palette is not None
        return self.shape_in(palette)

    def steps(self) -> Iterable[Step]:
        """The schedule."""
        context, roles = self.context, self.context.roles
        kernel, output, anchor = context.kernel, context.kernel.output.name, context.kernel.anchor
        loops, parallel = (
            [loop for loop in found[self.which.item()] if loop.name]
            for found in (self.loops, self.parallel)
        )
        yield from context.form.steps
        yield from packed_along(kernel, roles.vector, self.sizes.lanes, dot=context.form.dot)
        if self.order == PREFETCHED:
            ahead = TILES_AHEAD * self.sizes.tile_bytes // self.sizes.data.dtype.bytes
            yield Prefetch(self.sizes.constant, ahead)
        if output == anchor:
            anchor = f"{output}.sum"
            yield CacheWrite(output, anchor)
        yield from self._output_steps(output, loops)
        if parallel:
            yield from parallel_steps(output, parallel, self.values.integers("chunks").item())
        attached = attached_axis(context)
        if context.form.unpacked:
            yield from self._unpacking_steps(output, loops, parallel)
        for name in context.prologue if not context.form.unpacked else ():
            shared = context.threads if name.endswith(SUFFIX) and not attached else 1
            yield from copying_steps(kernel, kernel.stage(name), context.lanes, shared)
            if attached:
                inside = "parallel" if len(parallel) > 1 else attached
                yield ComputeAt(name, output, inside)
        fused = len(parallel) == len(loops) > 1
        yield ComputeAt(anchor, output, "parallel" if fused else loops[-1].name, "stack")
        yield from self._anchor_steps(anchor)

    def _unpacking_steps(
        self, output: str, loops: list[Loop], parallel: list[Loop]
    ) -> Iterable[Step]:
        """The weights of a block of columns, a row of a tile at a time."""
        context = self.context
        stage = context.kernel.stage(context.form.unpacked)
        group, step, place = (axis.name for axis in stage.axes)
        read = loads(stage.body)
        (packed,) = {load.buffer for load in read if load.dtype is WORD}
        (scale,) = {load.buffer for load in read if load.dtype.is_float}
        words = context.kernel.buffer(packed).shape[0]
        for buffer in sorted({load.buffer for load in read}):
            yield PackLayout(buffer, ((1, self.sizes.lanes),), (1, 0, 2))
        yield Prefetch(packed, WORDS_AHEAD)
        whole, rest = divmod(context.extents[context.roles.vector], self.sizes.lanes)
        if rest:
            yield Partition(stage.name, group, 0, 0, (whole,))
        steps, blocks = stage.axes[1].extent, context.kernel.buffer(scale).shape[0]
        if blocks > 1:  # what a block has once is outside of its loop
            yield Tile(stage.name, step, steps // blocks)
            step = f"{step}.i"
        in_word, of_block = steps // words, words // blocks
        together = max(n for n in range(1, WORDS_TOGETHER + 1) if of_block % n == 0)
        yield Tile(stage.name, step, in_word * together)
        yield Unroll(stage.name, f"{step}.i")
        yield Vectorize(stage.name, place)
        where = "parallel" if len(parallel) > 1 else loops[self._block_position(loops)].name
        yield ComputeAt(stage.name, output, where)

    @property
    def order(self) -> str:
        """Of the only candidate's loops."""
        return EVERY_ORDER[self.which.item()]

    @property
    def stacked_rows(self) -> bool:
        """The tiles of the only candidate's blocks lie on neighbouring rows of the plane."""
        return bool(self.context.roles.row) and self.order not in ORDERS

    def _output_steps(self, output: str, loops: list[Loop]) -> Iterable[Step]:
        roles, lanes, wide = self.context.roles, self.sizes.lanes, self.wide.item()
        if roles.block:
            yield Tile(output, roles.block, wide, "shift")
            within = (f"{roles.block}.i", roles.vector)
        else:
            # Beyond the last lane packed constants are 0, and what comes of it is left out.
            ragged = self.context.extents[roles.vector] % lanes
            yield Tile(output, roles.vector, lanes, "pad" if ragged else "peel")
            yield Tile(output, f"{roles.vector}.o", wide, "shift")
            within = (f"{roles.vector}.o.i", f"{roles.vector}.i")
        own, column = (self.down * self.rows).item(), roles.column
        if self.order == PANELS:
            yield Tile(output, column, self.panel.item(), "shift")
            column = f"{column}.i"
        yield Tile(output, column, own, "shift")
        rows = [f"{column}.i"]
        if self.stacked_rows:
            yield Tile(output, roles.row, self.beside.item(), "shift")
            rows.insert(0, f"{roles.row}.i")
        names = [loop.name for loop in loops if loop.name]
        yield Reorder(output, (*names, *rows, *within))
        yield Unroll(output, within[0])
        yield Vectorize(output, within[1])

    def _anchor_steps(self, anchor: str) -> Iterable[Step]:
        """Loops over the tiles of one block, and the tiles."""
        shape, roles = self.sizes, self.context.roles
        summed, size = shape.axis, self.rows.item()
        yield Tile(anchor, roles.column, size)
        blocks, lanes = roles.block, roles.vector
        if not roles.block:
            yield Tile(anchor, roles.vector, shape.lanes)
            blocks, lanes = f"{roles.vector}.o", f"{roles.vector}.i"
        if shape.group_axis:
            yield Tile(anchor, shape.group_axis, shape.groups)
        yield Tile(anchor, summed, shape.steps * shape.terms)
        yield Tile(anchor, f"{summed}.i", shape.terms)
        outside = [axis for axis in (*roles.outer, roles.row) if axis]
        beside = (outside.pop(),) if self.stacked_rows else ()
        group, others = shape.group_axis, self.summed(self.order)
        others = [f"{axis}.o" if axis == group else axis for axis in others]
        groups = (f"{group}.i",) if group else ()
        within = (f"{summed}.i.o", lanes, f"{summed}.i.i")
        rows, columns = f"{roles.column}.i", f"{roles.column}.o"
        tiles = (*beside, columns, blocks)
        loops = (*outside, *others, f"{summed}.o", *tiles, rows, *groups, *within)
        yield Reorder(anchor, loops)
        for axis in tiles:
            yield Unroll(anchor, axis)
        yield MatrixTiles(anchor, rows, *within, *groups)
