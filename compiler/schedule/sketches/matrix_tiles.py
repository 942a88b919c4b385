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
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Load, index
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.kernels.accumulate import narrow_factors
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.machine.amx_set_up import VECTOR_PALETTE, TilePalette
from tunefarm.compiler.schedule.nest_shape import Loop, NestShape
from tunefarm.compiler.schedule.sketches.matrix_tile_shape import ORDERS, MatrixTileLoops, TileSizes
from tunefarm.compiler.schedule.sketches.operand_copies import attached_axis, copying_steps
from tunefarm.compiler.schedule.sketches.parallel_choices import CHUNKS, parallel_steps
from tunefarm.compiler.schedule.sketches.tile_context import TileContext
from tunefarm.compiler.schedule.sketches.tile_forms import TileForm, prepared, tile_forms
from tunefarm.compiler.schedule.sketches.tile_operands import packed_along
from tunefarm.compiler.schedule.sketches.tiled_reduction import PARALLEL_WORK
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch
from tunefarm.compiler.schedule.steps.cache_write import CacheWrite
from tunefarm.compiler.schedule.steps.compute_at import ComputeAt
from tunefarm.compiler.schedule.steps.copy_operand import CopyOperand
from tunefarm.compiler.schedule.steps.matrix_tiles import MatrixTiles
from tunefarm.compiler.schedule.steps.pack_stage import PackStage
from tunefarm.compiler.schedule.steps.reorder import Reorder
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tile import Tile
from tunefarm.compiler.schedule.steps.unroll import Unroll
from tunefarm.compiler.schedule.steps.vectorize import Vectorize
from tunefarm.compiler.schedule.vectors import vector_lanes
from tunefarm.compiler.target import Target

BLOCKS = ((2, 2), (1, 3), (3, 1), (1, 2), (2, 1), (1, 1))
"""Tiles of sums along columns and channels; with those of the factors there are at most 8."""
VECTOR_BLOCKS = ((4, 2), (2, 4), (3, 2), (2, 3), (2, 2), (1, 4), (4, 1), (1, 2), (2, 1), (1, 1))
"""The same of tiles that are one or two vectors, of 32."""
FEWEST_ROWS = 4
COPY_PAYS = 4  # blocks of channels that are made of each element, so that a copy costs less
FULL_ENOUGH = 0.25  # of a tile's steps: with fewer vectors are as fast


def matrix_tile_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch of the first form that matrix tiles can hold; none on a target without tiles."""
    palette = target.product_tiles
    if palette is None:
        return []
    for form in tile_forms(kernel, vector_lanes(kernel, target)):
        shape = _shape_of(form, target, palette)
        if shape is None:
            continue
        context = TileContext(form, target, threads)
        sketches = [_sketch("matrix_tiles", context, shape)] * _fills(palette, shape)
        grouped = _grouped(form, shape)
        if grouped is not None and not _fills(palette, grouped[1]):
            grouped = None
        if grouped is not None:
            form, shape = grouped
            made = _sketch("matrix_tiles_grouped", TileContext(form, target, threads), shape)
            if context.prologue or context.vectors >= COPY_PAYS:
                sketches.insert(0, made)
            elif sketches:
                sketches.append(made)
        return sketches
    return []


def _fills(palette: TilePalette, sizes: TileSizes) -> bool:
    """Vectors are multiplied whole; of other tiles a part may be used."""
    return palette != VECTOR_PALETTE or sizes.steps * sizes.groups == sizes.most_steps


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
    return TileSizes(dot.axis, dot.terms, steps, lanes, palette.rows, most, left)


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
    constants = {buffer.name for buffer in kernel.inputs if buffer.constant}
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
    fitting = tuple(
        (high, wide)
        for high, wide in (VECTOR_BLOCKS if sizes.most_rows == VECTOR_PALETTE.rows else BLOCKS)
        if wide <= vectors and columns // high >= _fewest_rows(sizes.most_rows)
    )
    best = min(fitting, key=lambda tile: (_cycles(sizes, tile, columns, vectors), -math.prod(tile)))
    left, right = columns * context.reduction, vectors * sizes.lanes * context.reduction
    choices: list[tuple[Choice, ChoiceValue]] = [
        (Choice("tile", fitting), best),
        # What is larger is read once, and what it is multiplied with stays in a near cache.
        (Choice("loops", ORDERS), ORDERS[int(right > left)]),
    ]
    products = math.prod(
        axis.extent for axis in (*context.anchor.axes, *context.anchor.reduce_axes)
    )
    if context.threads > 1 and products >= PARALLEL_WORK:
        choices.append((Choice("chunks", CHUNKS), 4))
    sketch = Sketch.planned(name, choices, lambda values: _Candidates(context, sizes, values))
    return replace(sketch, leads=True)


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
        loops, parallel = self.loops[self.which.item()], self.parallel[self.which.item()]
        yield from context.form.steps
        yield from packed_along(kernel, roles.vector, self.sizes.lanes, dot=context.form.dot)
        if output == anchor:
            anchor = f"{output}.sum"
            yield CacheWrite(output, anchor)
        yield from self._output_steps(output, loops)
        if parallel:
            yield from parallel_steps(output, parallel, self.values.integers("chunks").item())
        attached = attached_axis(context)
        for name in context.prologue:
            yield from copying_steps(kernel, kernel.stage(name), context.lanes)
            if attached:
                inside = "parallel" if len(parallel) > 1 else attached
                yield ComputeAt(name, output, inside)
        fused = len(parallel) == len(loops) > 1
        yield ComputeAt(anchor, output, "parallel" if fused else loops[-1].name, "stack")
        yield from self._anchor_steps(anchor)

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
        rows = (self.high * self.rows).item()
        yield Tile(output, roles.column, rows, "shift")
        column = f"{roles.column}.i"
        yield Reorder(output, (*(loop.name for loop in loops), column, *within))
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
        group = shape.group_axis
        others = [f"{axis}.o" if axis == group else axis for axis in roles.reduce if axis != summed]
        groups = (f"{group}.i",) if group else ()
        within = (f"{summed}.i.o", lanes, f"{summed}.i.i")
        rows, columns = f"{roles.column}.i", f"{roles.column}.o"
        loops = (*outside, *others, f"{summed}.o", columns, blocks, rows, *groups, *within)
        yield Reorder(anchor, loops)
        yield Unroll(anchor, columns)
        yield Unroll(anchor, blocks)
        yield MatrixTiles(anchor, rows, *within, *groups)
