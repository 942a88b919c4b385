"""The shape of a tiled reduction's candidates as arrays: loops, bodies, and an estimate of time."""

from __future__ import annotations

import math

import numpy as np

from tunefarm.compiler.schedule.nest_shape import (
    Counts,
    Level,
    Loop,
    Mask,
    Nest,
    NestShape,
    Numbers,
)
from tunefarm.compiler.schedule.sketches.parallel_choices import pieces_and_grains
from tunefarm.compiler.schedule.sketches.tile_domains import COPY_CYCLES, WAYS, row_cycles
from tunefarm.compiler.schedule.sketches.tile_loops import TileLoops, Tiles


def tile_shape(loops: TileLoops) -> NestShape:
    """The loops of all candidates, their bodies, and what they cost."""
    context, roles, values = loops.context, loops.context.roles, loops.values
    columns, vectors = (size.astype(np.float64) for size in (loops.columns, loops.vectors))
    which = values.positions["loops"]
    extents, lanes = context.extents, context.lanes
    nest = Nest(list(extents), values.count)
    straight = _reduction_loops(loops, nest)
    for level in range(max(len(tiles.loops) for tiles in loops.tiles)):
        none = Loop("", roles.vector, 1)
        at_level = [(*reversed(tiles.loops), none, none)[level] for tiles in loops.tiles]
        nest.loop(*at_level, which=which)
    for loop in reversed(loops.outer):
        nest.loop(loop)
    extent, blocks = context.extent(roles.column), context.vectors / vectors
    whole = np.floor(extent / columns)
    tiles = Level(tuple(item.column for item in loops.tiles), which)
    points = tiles.of(_points(loops, columns), values.count)
    shifted = tiles.of([loop.whole for loop in tiles.loops], values.count) > 0
    shifted = shifted & (whole * columns < extent)
    parallel = [item.parallel for item in loops.tiles]
    pieces, grains = pieces_and_grains(values, parallel, which, context.threads)
    computed = tiles.of([_vectors(loops, item) for item in loops.tiles], values.count)
    others = math.prod(extents[axis] for axis in (*roles.outer, *roles.phases))
    others *= context.reduction
    operations = points * computed * others
    repeated = operations / (context.extent(roles.row) * extent * context.vectors * others)
    aliased = context.aliased(columns, vectors)
    row = row_cycles(context, columns, vectors, shifted & (whole * columns < extent), loops.inline)
    row = row * np.maximum(1.0, aliased / WAYS) ** 2
    width = context.lanes * context.element_bytes
    copied = np.where(loops.inline, 0.0, context.copied) / width * COPY_CYCLES
    tiled = tiles.of([_block_tiles(loops, item) for item in loops.tiles], values.count)
    rows = tiles.of([np.float64(_rows(loops, item)) for item in loops.tiles], values.count)
    cycles = tiled * rows * others * row + copied
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
        flops=2.0 * context.terms * context.products * repeated,
        full=whole * columns / extent * np.floor(blocks) / blocks,
        lanes=np.full(values.count, useful),
        aliased=aliased,
        temporary=2.0 * copied,
        pieces=pieces,
        grains=grains,
        ahead=values.integers("prefetch"),
    )


def _vectors(loops: TileLoops, tiles: Tiles) -> Numbers:
    """Vectors that are computed in this order of the loops, repeated ones included."""
    context = loops.context
    whole: Numbers = _block_tiles(loops, tiles) * loops.vectors
    if not context.ragged:
        return whole
    fits = loops.vectors * context.lanes <= context.extents[context.roles.vector]
    return np.asarray(np.where(fits & tiles.order.even, whole, context.vectors), np.float64)


def _block_tiles(loops: TileLoops, tiles: Tiles) -> Numbers:
    """How many tiles of vectors there are, the last ones, which may be shifted, included."""
    vectors = loops.context.vectors
    if not tiles.order.blocks:
        return np.ceil(vectors / loops.vectors)
    within = min(tiles.order.blocks, vectors)
    return math.ceil(vectors / within) * np.ceil(within / loops.vectors)


def _points(loops: TileLoops, columns: Numbers) -> list[Numbers]:
    """Rows x columns that are computed by order of the loops, repeated ones included."""
    context, roles = loops.context, loops.context.roles
    extent = context.extent(roles.column)
    known: dict[tuple[int, int], Numbers] = {}  # by block of columns and how tiles end
    points = []
    for tiles in loops.tiles:
        width, whole = tiles.order.columns or extent, tiles.column.whole
        key = (width, id(whole))
        if key not in known:
            blocks, rest = divmod(extent, width)
            known[key] = blocks * _computed(width, columns, whole)
            if rest:
                last = width if context.threads > 1 else rest
                known[key] = known[key] + _computed(last, columns, whole)
        points.append(known[key] * _rows(loops, tiles))
    return points


def _rows(loops: TileLoops, tiles: Tiles) -> int:
    """Rows that are computed in this order: some twice where the last tile of rows is shifted."""
    rows = loops.context.extent(loops.context.roles.row)
    return rows if not tiles.order.rows else -(-rows // tiles.order.rows) * tiles.order.rows


def _reduction_loops(loops: TileLoops, nest: Nest) -> Counts:
    """Add the body and the loops of the reduction; the unrolled steps, as straight code."""
    context, roles, which = loops.context, loops.context.roles, loops.values.positions["reduce"]
    extents = context.extents
    if roles.block:
        nest.inside[nest.numbers[roles.block]] = loops.vectors
        points = context.channels if context.form.turned else extents[roles.vector]
        nest.inside[nest.numbers[roles.vector]] = min(context.lanes, points)
    else:
        lanes = loops.vectors * context.lanes
        within = np.minimum(lanes, context.extents[roles.vector])
        masked = loops.values.are("tail", "mask")
        nest.inside[nest.numbers[roles.vector]] = np.where(masked, lanes, within)
    if roles.column:
        nest.inside[nest.numbers[roles.column]] = loops.columns
    last, candidates = loops.lengths[-1], np.arange(loops.values.count)
    unrolled = np.ones_like(loops.lengths)
    # One turn and one step that is left over are straight code; more of them are a loop.
    straight = (loops.unrolled > 1) & (last == loops.unrolled + 1)
    unrolled[-1] = np.where(straight, last, loops.unrolled)
    if len(unrolled) > 1:
        unrolled[-2] = np.where(loops.unrolls_next, loops.lengths[-2], 1)
    axes = np.array([[nest.numbers[axis] for axis in order] for order in loops.orders])[which].T
    for level in reversed(range(len(unrolled))):
        nest.inside[axes[level], candidates] = unrolled[level]
        own = [
            Loop(order[level], order[level], context.extents[order[level]], unrolled[level])
            for order in loops.orders
        ]
        nest.loop(*own, which=which)
    return np.asarray(unrolled.prod(axis=0), np.int64)


def _computed(width: int, columns: Numbers, whole: Mask | bool) -> Numbers:
    """Points of an axis of this width that tiles compute; the last one is shifted where `whole`."""
    shifted = np.logical_and(whole, columns < width)
    return np.where(shifted, np.ceil(width / columns) * columns, width)
