"""Domains of the tiled reduction: tiles, orders and unrollings worth a try, and a default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tunefarm.compiler.loops.row_tiles import tiles_of_rest
from tunefarm.compiler.schedule.nest_shape import (
    LOOP_CYCLES,
    Mask,
    Numbers,
)
from tunefarm.compiler.schedule.sketches.even_shares import even_part
from tunefarm.compiler.schedule.sketches.tile_context import LOAD_COST, LoopOrder, TileContext
from tunefarm.compiler.schedule.sketches.tile_forms import HeldRows
from tunefarm.compiler.schedule.sketches.tile_operands import unpacks
from tunefarm.compiler.schedule.space import ChoiceValue
from tunefarm.compiler.schedule.vectors import loads_a_cycle

COLUMN_BLOCKS = (24, 48, 96)  # whole tiles of 2, 3, 4, 6, 8 or 12 columns
ROW_TILES = (4, 8)
SHORT_STEPS = 4  # of a long sum: more of them are more code, and no faster
BORDER_COST = 0.5  # of a tile at the border of its row, over one inside, if padding is inline
STREAM_COST = 0.05  # of one more vector along a tile, each from another place in memory
TURN_CYCLES = 6.0  # a vector that is turned and stored
WAYS = 8.0  # lines of equal address modulo a page that a step reads without evicting one (fitted)
STREWN_COST = 1.5  # of a product whose operand falls out of the second-level cache between uses
COPY_CYCLES = 3.0  # a vector of an operand that is copied
SPILL_COST = 1.2  # of a tile whose sums, operands and products do not fit the registers
MAX_TIME_RATIO = 0.98  # of the time of the tile that is chosen else
MOST_WIDTHS = 64  # of a dynamic row, over which the cost of a tile is averaged
LATE_CYCLES = 0.5  # that a sum waits beyond its latency, where all others are done: 8 sums of AVX2
# took 4.75 cycles (Emerald Rapids)
UNPACKED_SHARE = 0.6  # of the second-level cache, at most, for the weights of a tile as floats
UNPACK_CYCLES = 2.2  # a vector of weights of a few bits: mask, shift, subtract, scale


def tiles_of(context: TileContext) -> tuple[ChoiceValue, ...]:
    """(columns, vectors) pairs whose accumulators and operands fit the registers."""
    columns = context.extent(context.roles.column)
    if context.form.turned:
        columns = min(columns, context.lanes)
    budget = context.target.vector_registers - 1
    pairs: list[tuple[int, int]] = []
    for vectors in (1, 2, 3, 4, 6, 8, 12):
        if vectors > context.vectors or (vectors > 1 and _overflows(context, vectors)):
            break
        if context.form.turned and not context.ragged and context.vectors % vectors:
            continue  # a tile of the output begins with a vector
        most = min((budget - vectors) // vectors, columns)
        if context.form.held is not None:
            most = min(_columns_of_held_rows(context.form.held, context, budget // vectors), most)
        if vectors > 1 and most < 1:
            break
        least = max(1, most // 3) if most < columns else 1
        for count in range(least, most + 1):
            wasteful = count < columns and vectors * count < 4
            if not wasteful or most <= 2:
                pairs.append((count, vectors))
    return tuple(pairs)


def _overflows(context: TileContext, vectors: int) -> bool:
    """Whether the weights that are unpacked for a tile of so many vectors leave the caches."""
    size = context.reduction * vectors * context.lanes * context.element_bytes
    return bool(context.form.unpacked) and size > context.target.l2_bytes * UNPACKED_SHARE


def _columns_of_held_rows(held: HeldRows, context: TileContext, registers: int) -> int:
    """So many columns have registers for their sums, and for the rows of their windows."""
    reach = (context.extents[held.across] - 1) * held.dilation + 1
    return (registers - 1 - reach + held.stride) // (1 + held.stride)


def best_tile(context: TileContext, tiles: Sequence[ChoiceValue]) -> ChoiceValue:
    """The tile that needs the fewest cycles a reduction step over all columns and vectors.

    Of equals the largest, but where nothing is broadcast the one of the fewest streams of data:
    every vector is one where they are blocks of channels, else every column. So it is one block
    where columns end at run time: several share nothing, and the tiles for what is left of a row
    are as many times as large. That the last tile of vectors is a smaller one counts where another
    tile is clearly faster so.
    """
    if context.roles.block and context.has_dynamic_columns and not context.broadcasts:
        tiles = [tile for tile in tiles if isinstance(tile, tuple) and tile[1] == 1]
    sizes = np.array([tile for tile in tiles if isinstance(tile, tuple)], np.float64)
    columns, vectors = sizes.T
    none, inline = np.zeros(len(tiles), np.bool_), np.full(len(tiles), bool(context.prologue))
    whole, rest = np.divmod(float(context.vectors), vectors)

    def of_row(vectors: Numbers) -> Numbers:
        if context.has_dynamic_columns:
            return dynamic_row_cycles(context, columns, vectors, inline)
        return row_cycles(context, columns, vectors, none, inline)

    full, last = of_row(vectors), of_row(np.maximum(rest, 1.0))
    weight = np.maximum(1.0, context.aliased(columns, vectors) / WAYS) ** 2
    registers = columns * vectors + vectors + 1 + context.product_registers
    weight = weight * np.where(registers > context.target.vector_registers, SPILL_COST, 1.0)
    if not context.broadcasts:
        streams = vectors if context.roles.block else columns
        weight = weight * (1.0 + STREAM_COST * (streams - 1.0))

    def fastest(total: Numbers) -> int:
        return int(np.lexsort((-columns * vectors, np.round(total, 6)))[0])

    chosen = fastest(full * np.ceil(context.vectors / vectors) * weight)
    if context.ragged and not context.form.turned:
        total = (full * whole + np.where(rest > 0, last, 0.0)) * weight
        other = fastest(total)
        chosen = other if total[other] < MAX_TIME_RATIO * total[chosen] else chosen
    return tiles[chosen]


def row_cycles(
    context: TileContext,
    columns: Numbers,
    vectors: Numbers,
    shifted: Mask,
    inline: Mask,
) -> Numbers:
    """Cycles of a reduction step for all columns in tiles of so many columns and vectors.

    What is left over by whole tiles is a smaller tile of its own, or a whole one if it is shifted
    back. Where padding is decided `inline`, the first and the last tile do it element by element;
    that shows where each element is used once.
    """
    extent = context.extent(context.roles.column)
    whole, rest = np.divmod(float(extent), columns)
    full = step_cycles(context, columns, vectors)
    last = np.where(shifted, full, step_cycles(context, np.maximum(rest, 1.0), vectors))
    total = whole * full + np.where(rest > 0, last, 0.0)
    if not context.broadcasts:
        total = total + np.where(inline, 2.0 * BORDER_COST * full, 0.0)
    return np.asarray(total, np.float64)


def dynamic_row_cycles(
    context: TileContext, columns: Numbers, vectors: Numbers, inline: Mask
) -> Numbers:
    """As `row_cycles`, for columns that end at run time: at the bound, if as much longer than the
    products alone as rows of all lengths are on average.

    What whole tiles leave over is computed in smaller ones, in part in vain.
    """
    extent, most = context.extent(context.roles.column), int(columns.max())
    sizes = np.arange(1.0, most + 1)[:, None]
    steps = step_cycles(context, sizes + np.zeros_like(vectors), sizes * 0.0 + vectors)
    waits = context.target.machine.vectors.fma_latency + LATE_CYCLES
    steps = np.maximum(steps, waits + LOOP_CYCLES)
    cost = np.concatenate([np.zeros((1, len(vectors))), steps])  # by rows of a tile, and tile
    rests = np.zeros((most, most + 1, most + 1))  # tiles of so many rows, by tile and rest
    for tile in set(columns.astype(np.int64).tolist()):
        for rest in range(tile):
            for size in tiles_of_rest(tile, rest):
                rests[tile - 1, rest, size] += 1.0
    widths = np.unique(np.linspace(1, extent, min(extent, MOST_WIDTHS)).astype(np.int64))
    tiles, numbers = columns.astype(np.int64), np.arange(len(columns))
    whole, left = np.divmod(widths[:, None], tiles)
    over = np.einsum("trs,st->tr", rests[tiles - 1], cost)
    total = whole * cost[tiles, numbers] + over[numbers, left]
    total = (total / widths[:, None]).mean(axis=0) * extent
    if not context.broadcasts:
        total = total + np.where(inline, 2.0 * BORDER_COST * cost[tiles, numbers], 0.0)
    return np.asarray(total, np.float64)


def step_cycles(context: TileContext, columns: Numbers, vectors: Numbers) -> Numbers:
    """Cycles of a reduction step of tiles of so many columns and vectors; arrays of one shape.

    A core that starts two multiply-adds and two loads a cycle, and whose multiply-add takes four,
    spends max(c v / 2, loads / 2, 4) cycles on a step of c columns and v vectors; the loop's own
    are added. With an operand that is broadcast there are c + v loads, else more. Vectors of all
    steps that exceed the first-level cache come anew from the second for each tile of columns.
    Sums down a column of long rows read each vector once: wide tiles jump from row to row as rarely
    as they can.
    """
    steps, machine = context.reduction, context.target.machine
    width = context.element_bytes * context.lanes
    far = steps * vectors * width > context.target.l1_bytes
    far = far & (not context.jumps)
    streamed = np.where(far, vectors * width / machine.l2.of_tiles, 0.0)
    loaded = context.loads_of_step(columns, vectors)
    if (held := context.form.held) is not None:
        taps = context.extents[held.across]
        rows = (columns - 1) * held.stride + (taps - 1) * held.dilation + 1
        loaded = rows * vectors * LOAD_COST / taps + 1
    products = columns * vectors / machine.vectors.fma
    busy = np.maximum(products, loaded / loads_a_cycle(context.target))
    waits = machine.vectors.fma_latency
    return np.asarray(np.maximum(np.maximum(busy, streamed), waits) + LOOP_CYCLES, np.float64)


def form_cycles(context: TileContext) -> float:
    """Cycles of the best tile over the whole kernel, with what its form moves besides.

    A copy loads, arranges and stores; a tile that is turned takes four shuffles a vector more, and
    words of values that lie apart are joined in each step, two shuffles a cycle.
    """
    tiles = tiles_of(context)
    best: Any = best_tile(context, tiles)
    columns, vectors = map(float, best)
    tile, none = (np.array([columns]), np.array([vectors])), np.zeros(1, np.bool_)
    if context.has_dynamic_columns:
        row = dynamic_row_cycles(context, *tile, none).item()
    else:
        row = row_cycles(context, *tile, none, none).item()
    across = math.ceil(context.extent(context.roles.column) / columns)
    row += across * context.interleaves(columns, vectors) / 2
    if unpacks(context.kernel):
        row += across * vectors * UNPACK_CYCLES
    outer = math.prod(context.extents[axis] for axis in context.roles.outer)
    blocks = math.ceil(context.vectors / vectors)
    total = row * blocks * outer * context.extent(context.roles.row) * context.reduction
    width = context.lanes * context.element_bytes
    if context.strewn:
        total *= STREWN_COST
    if context.form.turned:
        total += math.prod(context.kernel.output.shape) / context.lanes * TURN_CYCLES
    return total + context.copied / width * COPY_CYCLES


def reduce_orders(context: TileContext) -> tuple[tuple[str, ...], ...]:
    """Orders of the reduce axes, outermost first: channels inside or outside of the window.

    The first, the default, reads weights in the order in which they are stored: packed ones with
    channels innermost, others window by window, whose taps along a row read the same lines.
    """
    if (held := context.form.held) is not None:
        return ((held.along, held.across),)
    axes = list(context.roles.reduce)
    # Steps along an axis of one point cannot be unrolled: it is never the innermost.
    ones = [axis for axis in axes if context.extent(axis) == 1]
    window = [*ones, *(axis for axis in context.roles.window if axis not in ones)]
    channels = [axis for axis in axes if axis not in window]
    if not window or not channels:
        return ((*ones, *(axis for axis in axes if axis not in ones)),)
    packed = not context.form.turned and (context.roles.block or context.form.dot is not None)
    if window != ones and len(channels) == 1 and not packed:
        return ((*channels, *window), (*window, *channels))
    if len(channels) == 1:
        return ((*window, *channels), (*channels, *window))
    return (
        (*window, *channels),
        (channels[0], *window, *channels[1:]),
        (channels[0], window[0], *channels[1:], *window[1:]),
    )


def unrolls(context: TileContext, orders: Sequence[tuple[str, ...]]) -> tuple[tuple[int, ...], ...]:
    """(steps of the innermost reduce axis, steps of the one outside of it)."""
    if (held := context.form.held) is not None:
        taps = context.extents[held.across]  # all of them: the rows are held for each
        return ((taps, 3), (taps, 1))
    inner = {order[-1] for order in orders}
    extents = sorted({context.extent(axis) for axis in inner})
    largest = extents[-1]
    steps = sorted({step for step in (1, 2, 4, 8, 16, largest) if step <= min(largest, 16)})
    pairs = [(step, 1) for step in steps]
    if any(len(order) > 1 for order in orders):
        pairs += [(step, 3) for step in steps if step * 3 <= 24]
    ordered = sorted(pairs, key=lambda pair: pair[0] * pair[1])
    plain = context.form.turned or not context.roles.block
    paired = context.product_registers and not context.anchor.dtype.is_float
    short = SHORT_STEPS // 2 if paired else SHORT_STEPS
    most = short if plain and largest > 8 else 8
    preferred = max(
        (pair for pair in ordered if pair[1] == 1 and pair[0] <= most), key=lambda pair: pair[0]
    )
    return (*(pair for pair in ordered if pair != preferred), preferred)


def loop_orders(context: TileContext) -> tuple[LoopOrder, ...]:
    """Orders of the loops over tiles; the first is the default.

    What the loops inside of a tile of rows, or of a block of columns, read and write should stay in
    the second-level cache.
    """
    if not context.roles.column:
        return (LoopOrder(("block",)),)
    # A loop over blocks with a tail is not shared by threads, nor is what is inside of it.
    alone = context.threads > 1 and context.ragged
    if context.form.unpacked:  # a tile's weights once for all rows
        return (LoopOrder(("block", *(["row"] if context.roles.row else []), "column")),)
    if context.roles.row:
        first = ("block", "row", "column")
        orders = [first, ("row", "block", "column"), ("row", "column", "block")]
        even = []
        if alone:
            orders = [*orders[1:], first]
            even = _even_orders(context, orders)
        elif _streams_rows(context):
            orders = [orders[1], first, orders[2]]
        tiles = [rows for rows in ROW_TILES if 2 * rows <= context.extent(context.roles.row)]
        tiled = [LoopOrder(first, rows=rows) for rows in tiles]
        return (*map(LoopOrder, orders), *even, *tiled)
    by_block = ("block", "column")
    if context.extent(context.roles.column) == 1:
        return (LoopOrder(by_block),)
    plain = [LoopOrder(by_block), LoopOrder(("column", "block"))]
    if alone:
        plain.reverse()
        plain += _even_orders(context, [by_block])
    if context.threads > 1 and not (context.ragged or context.prologue or context.roles.phases):
        plain.append(LoopOrder(by_block, shared=True))
    blocks = [LoopOrder(by_block, columns=columns) for columns in _column_blocks(context)]
    if blocks and context.threads == 1:
        return (blocks[-1], *plain, *blocks[:-1])
    return (*plain, *blocks)


def _streams_rows(context: TileContext) -> bool:
    """Whether rows of a dynamic plane take a cache each, and all of them more than that.

    Where sizes are static, columns of all rows are one axis, and are cut into blocks instead.
    """
    window = [context.extents[axis] for axis in context.roles.window]
    if not context.kernel.limits or max(window, default=1) > 1 or context.prologue:
        return False
    row, cache = (
        context.bytes_of_columns(context.extent(context.roles.column)),
        context.target.l2_bytes,
    )
    return row <= cache < row * context.extent(context.roles.row)


def _even_orders(context: TileContext, orders: Sequence[tuple[str, ...]]) -> list[LoopOrder]:
    """Orders in which threads share blocks with a tail, too."""
    return [] if context.form.turned else [LoopOrder(order, even=True) for order in orders]


def _column_blocks(context: TileContext) -> list[int]:
    """Columns whose data takes at most half of the second-level cache, if all of them take more.

    Every block of vectors walks over the data again. Threads share blocks of equal size.
    """
    columns, cache = context.extent(context.roles.column), context.target.l2_bytes
    if context.prologue or context.bytes_of_columns(columns) <= cache:
        return []
    blocks = [
        n for n in COLUMN_BLOCKS if 2 * n <= columns and 2 * context.bytes_of_columns(n) <= cache
    ]
    if context.threads > 1:
        blocks = [even_part(columns, n) for n in blocks]
    return blocks


def leaves_rest(context: TileContext, tiles: Sequence[ChoiceValue]) -> bool:
    """Some tile does not divide the columns: the last one is peeled or shifted back."""
    columns = context.extent(context.roles.column)
    return any(isinstance(tile, tuple) and columns % int(tile[0]) for tile in tiles)
