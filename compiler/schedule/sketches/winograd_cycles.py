"""Cycles of Winograd's form of a convolution against the direct one, by a rough count."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from tunefarm.compiler.kernels.stage import Axis
from tunefarm.compiler.kernels.winograd import BlockedConv
from tunefarm.compiler.schedule.nest_shape import PAGE
from tunefarm.compiler.schedule.sketches.tile_dots import float_products
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

TRANSFORM_OPERATIONS = 10  # per element of a transformed tile, with loads and stores
MOST_VECTORS = 4  # of output channels in a register tile
BLOCK_ROWS, BLOCK_COLUMNS = 2, 8  # of the default block of tiles, where rows are cut too
DYNAMIC_COLUMNS = 10  # where rows end at run time: 8 of 64 channels lie a page apart
DYNAMIC_TILES = 25  # of which there are more rows where they are short: filters are read once


Block: TypeAlias = tuple[int, int]
"""Rows and columns of tiles that are transformed and multiplied at a time."""


def cycles(
    conv: BlockedConv, m: int, lanes: int, target: Target, block: Block | None = None
) -> float:
    """Cycles of a core of the target; m = 1 is the direct form.

    Products and filters overlap: filters come from memory, as other kernels of a model have driven
    them out of the caches; beyond the second-level cache anew for each `block` of tiles, the
    default one if None. The transforms load, compute and store without much reuse.
    """
    inputs, outputs, machine = conv.icb.extent, conv.ocb.extent, target.machine
    window = (m + 2) ** 2
    rows, columns = tiles_of(conv, m)
    tiles = conv.n.extent * rows * columns
    vectors = conv.inputs * outputs * window
    filters = vectors * lanes * DType.F32.bytes
    products = tiles * vectors / machine.vectors.fma
    if m == 1:
        return products / narrow_terms(conv, target)
    block = default_block(conv, m, lanes) if block is None else block
    if block is None:
        return math.inf
    products *= (machine.l1.crowded or 1.0) if _stalls(conv, block) else 1.0
    high, wide = block
    passes = max(1, conv.n.extent * rows // high) * -(-columns // wide)
    streamed = filters / machine.memory.of_tiles
    if filters > target.l2_bytes:
        again = machine.l3 if 4 * filters <= target.l3_bytes else machine.memory
        streamed += (passes - 1) * filters / again.read
    transforms = tiles * (inputs + outputs) * window * TRANSFORM_OPERATIONS / machine.vectors.fma
    return max(products, streamed) + transforms


def direct_gain(conv: BlockedConv, m: int, target: Target, plane: tuple[int, int]) -> float:
    """Cycles that the direct form takes less than F(m x m, 3 x 3) for a plane of one image.

    By the count, for a kernel whose planes have these height and width at run time, in the blocks
    of tiles that it is built with.
    """
    lanes = conv.oci.extent
    vectors = conv.inputs * conv.ocb.extent * 9
    filters = vectors * lanes * DType.F32.bytes
    read = filters / target.machine.memory.of_tiles
    height, width = plane
    small = replace(conv, n=Axis("n", 1), oh=Axis("oh", height), ow=Axis("ow", width))
    direct = max(cycles(small, 1, lanes, target), read)
    return cycles(small, m, lanes, target, dynamic_block(conv, m, lanes)) - direct


def direct_below(conv: BlockedConv, m: int, target: Target) -> int:
    """Up to so many pixels of a square plane the direct form is the faster one; at least 0."""
    found = 0
    for side in range(1, min(conv.oh.extent, conv.ow.extent) + 1):
        if direct_gain(conv, m, target, (side, side)) < 0:
            break
        found = side * side
    return found


def stalls(conv: BlockedConv, m: int, lanes: int) -> bool:
    """Are the positions of a tile stored so many bytes apart that they share the sets of a cache?

    That is part of the count where the machine's table has what it costs.
    """
    block = default_block(conv, m, lanes)
    return block is None or _stalls(conv, block)


def _stalls(conv: BlockedConv, block: Block) -> bool:
    stride = math.prod(block) * conv.icb.extent * conv.block * DType.F32.bytes
    return stride % PAGE == 0


def narrow_terms(conv: BlockedConv, target: Target) -> int:
    """Products that an instruction adds in each lane, in the direct form."""
    is_summed = conv.data.dtype is DType.BF16 and float_products(target)[0] == "dot"
    return 2 if is_summed else 1


def tiles_of(conv: BlockedConv, m: int) -> Block:
    """Rows and columns of tiles of a plane."""
    return -(-conv.oh.extent // m), -(-conv.ow.extent // m)


def row_blocks(conv: BlockedConv, m: int, lanes: int, columns: int) -> tuple[int, ...]:
    """Numbers of tile rows whose data fits the stack, and that divide the rows evenly."""
    rows, _ = tiles_of(conv, m)
    channels = conv.icb.extent * conv.block
    result = []
    for block in range(1, rows + 1):
        transformed = (m + 2) ** 2 * channels * block * columns
        padded = channels * (block * m + 2) * (columns * m + 2)
        products = (m + 2) ** 2 * MOST_VECTORS * lanes * block * columns
        fits = (transformed + padded + products) * DType.F32.bytes <= STACK_BYTES
        even = rows % block == 0
        if fits and even:
            result.append(block)
    return tuple(result)


def default_rows(conv: BlockedConv, m: int, rows: tuple[int, ...]) -> int:
    """Enough tiles to fill the register tile a few times, few enough to stay in the L2 cache."""
    enough = [block for block in rows if block * -(-conv.ow.extent // m) >= 12]
    return enough[0] if enough else rows[-1]


def dynamic_block(conv: BlockedConv, m: int, lanes: int) -> Block | None:
    """The default block of tiles where rows end at run time; None if no block fits.

    Rows are cut into columns, and of the blocks the first that does not stall is chosen.
    """
    blocks = list(_cut_blocks(conv, m, lanes, DYNAMIC_COLUMNS, DYNAMIC_TILES))
    return next((block for block in blocks if not _stalls(conv, block)), next(iter(blocks), None))


def default_block(conv: BlockedConv, m: int, lanes: int) -> Block | None:
    """The default block of tiles: whole rows, unless not even one fits; None if no block does."""
    _, width = tiles_of(conv, m)
    rows = row_blocks(conv, m, lanes, width)
    if rows:
        return default_rows(conv, m, rows), width
    return next(_cut_blocks(conv, m, lanes, BLOCK_COLUMNS), None)


def _cut_blocks(
    conv: BlockedConv, m: int, lanes: int, most: int, tiles: int = 0
) -> Iterator[Block]:
    """The blocks that fit, of so many columns at most, the widest first.

    They have a few rows, or as many as so many `tiles` have.
    """
    _, width = tiles_of(conv, m)
    for columns in range(min(width, most), 0, -1):
        high = max(BLOCK_ROWS, tiles // columns)
        rows = [r for r in row_blocks(conv, m, lanes, columns) if r <= high]
        if rows:
            yield rows[-1], columns
