"""The rules of matrix tiles: how many are live, what they hold, what they are multiplied with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from tunefarm.compiler.expr.affine import Affine, Ranges, affine, affine_range
from tunefarm.compiler.expr.nodes import Expr, Load
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.loops.ir import Memory, TileDot, TileLoad, TileStmt, TileStore
from tunefarm.compiler.machine.amx_set_up import FULL_PALETTE, VECTOR_PALETTE
from tunefarm.compiler.types.dtypes import DType

TERM_BYTES = 4  # of the narrow products that are added to one number of a tile
_TOTALS = (DType.F32, DType.I32)


def tile_count(memory: Memory) -> int:
    """How many matrix tiles a buffer of tiles takes."""
    return prod(memory.shape[:-2])


def tile_memory_problem(memory: Memory, live: Collection[Memory]) -> str:
    """Why there can be no such tiles next to those that are `live`; "" if there can."""
    name, most = memory.name, FULL_PALETTE
    if len(memory.shape) < 2:
        return f"the tiles {name} have no rows and columns"
    if all(_fits_vectors(each) for each in (*live, memory)):
        most = VECTOR_PALETTE
    rows, row_bytes = memory.shape[-2], memory.shape[-1] * memory.dtype.bytes
    if not 1 <= rows <= most.rows or not 1 <= row_bytes <= most.row_bytes or row_bytes % 4:
        return (
            f"tiles of {rows} rows of {row_bytes} bytes: {name} may have {most.rows} rows of "
            f"{most.row_bytes} bytes, whole numbers of 4"
        )
    count = sum(map(tile_count, (*live, memory)))
    return f"{count} tiles are live at once, {most.tiles} exist" if count > most.tiles else ""


def _fits_vectors(memory: Memory) -> bool:
    """Vectors can hold the tiles, and then there are more of them."""
    rows, columns = memory.shape[-2:]
    most = VECTOR_PALETTE
    return rows <= most.rows and columns * memory.dtype.bytes <= most.row_bytes


def tile_problem(
    statement: TileStmt, tiles: Mapping[str, Memory], unrolled: Collection[str], ranges: Ranges
) -> str:
    """What is wrong with a statement's tiles; memory is looked at by `rows_problem`."""
    used = [(statement.buffer, statement.indices)]
    if isinstance(statement, TileStore):
        used = [(statement.source.buffer, statement.source.indices)]
    elif isinstance(statement, TileDot):
        used += [(side.buffer, side.indices) for side in (statement.left, statement.right)]
    for name, indices in used:
        problem = _place_problem(name, indices, tiles, unrolled, ranges)
        if problem:
            return problem
    return _product_problem(statement, tiles) if isinstance(statement, TileDot) else ""


def _place_problem(
    name: str,
    indices: tuple[Expr, ...],
    tiles: Mapping[str, Memory],
    unrolled: Collection[str],
    ranges: Ranges,
) -> str:
    memory = tiles.get(name)
    if memory is None:
        return f"{name} is no buffer of tiles"
    shape = memory.shape[:-2]
    if len(indices) != len(shape):
        return f"a tile of {name} has {len(shape)} indices, not {len(indices)}"
    for extent, item in zip(shape, indices, strict=True):
        if not axes_of(item) <= set(unrolled):
            return f"which tile of {name} is meant is not known before the loops run"
        low, high = affine_range(affine(item, ranges), ranges)
        if low < 0 or high >= extent:
            return f"tiles of {name}: an index runs over {low}..{high}, extent {extent}"
    return ""


def _product_problem(statement: TileDot, tiles: Mapping[str, Memory]) -> str:
    total, left, right = (
        tiles[name] for name in (statement.buffer, statement.left.buffer, statement.right.buffer)
    )
    if total.dtype not in _TOTALS or {left.dtype.is_float, right.dtype.is_float} != {
        total.dtype.is_float
    }:
        return f"a tile of {total.dtype} sums up products of {left.dtype} and {right.dtype}"
    if left.dtype.bytes != right.dtype.bytes or left.dtype.bytes >= TERM_BYTES:
        return f"tiles of {left.dtype} and {right.dtype} are no narrow factors of one size"
    terms = TERM_BYTES // left.dtype.bytes
    (rows, lanes), steps = total.shape[-2:], right.shape[-2]
    if left.shape[-2:] != (rows, steps * terms) or right.shape[-1] != lanes * terms:
        shapes = ", ".join(str(list(memory.shape[-2:])) for memory in (total, left, right))
        return f"tiles of the shapes {shapes} are no sum and factors of {terms} terms"
    return ""


def rows_problem(
    statement: TileLoad | TileStore,
    memories: Mapping[str, Memory],
    tiles: Mapping[str, Memory],
    ranges: Ranges,
) -> str:
    """Why the rows in memory do not fit the tile; "" if they do.

    That they lie inside of the buffer is to be known even under a guard.
    """
    held, place = statement.source, Load(DType.I32, statement.buffer, statement.indices)
    name, first = (held.buffer, place) if isinstance(statement, TileStore) else (place.buffer, held)
    memory, tile = memories[first.buffer], tiles[name]
    if memory.dtype is not tile.dtype:
        return f"tiles of {tile.dtype} and rows of {memory.dtype}"
    rows, columns = tile.shape[-2:]
    begin, step = Affine(0, ()), 1
    for item, extent in zip(reversed(first.indices), reversed(memory.shape), strict=True):
        begin = begin.plus(affine(item, ranges), step)
        step *= extent
    low, high = affine_range(begin, ranges)
    least = columns if isinstance(statement, TileStore) else 1  # rows that are read may overlap
    if statement.stride < least or low < 0 or high + (rows - 1) * statement.stride + columns > step:
        return (
            f"{rows} rows of {columns} elements, {statement.stride} apart, from {low}..{high} on "
            f"are not in {memory.name} of {step}"
        )
    return ""
