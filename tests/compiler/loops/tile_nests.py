"""Loop nests over matrix tiles, put together by hand: products of tiles in a 2x2 form."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr, Load, add, index, integer, mul
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    For,
    LoopKind,
    LoopNest,
    Memory,
    Scope,
    Stmt,
    TileDot,
    TileLoad,
    TileStore,
    TileZero,
)
from tunefarm.compiler.types.dtypes import DType


def product_nest(
    rows: int,
    steps: int,
    lanes: int,
    tiles: tuple[int, int],
    loops: tuple[int, int, int],
    types: tuple[DType, DType, DType],
    kind: LoopKind = LoopKind.SERIAL,
) -> LoopNest:
    """`y = x w`: of `loops` blocks (rows, sum, lanes) of `tiles` tiles of `rows` by `lanes`.

    x is [M, K], w, packed, [K / n, N, n] for n factors of 4 bytes, y [M, N].
    """
    left, right, total = types
    n = 4 // left.bytes
    (high, wide), (row_loops, sum_loops, lane_loops) = tiles, loops
    m, k, width = row_loops * high * rows, sum_loops * steps * n, lane_loops * wide * lanes
    x, w = Memory("x", left, (m, k)), Memory("w", right, (k // n, width, n))
    y = Memory("y", total, (m, width))

    def of(name: str, *indices: int) -> tuple[str, tuple[Expr, ...]]:
        return name, tuple(map(integer, indices))

    def row(i: int) -> Expr:
        return add(mul(index("rows"), integer(high * rows)), integer(i * rows))

    def lane(j: int) -> Expr:
        return add(mul(index("lanes"), integer(wide * lanes)), integer(j * lanes))

    body: list[Stmt] = []
    for i in range(high):
        source = Load(left, "x", (row(i), mul(index("sum"), integer(steps * n))))
        body.append(TileLoad(*of("a", i), source, k))
        for j in range(wide):
            if i == 0:
                position = (mul(index("sum"), integer(steps)), lane(j), integer(0))
                body.append(TileLoad(*of("b", j), Load(right, "w", position), width * n))
            a, b = Load(left, *of("a", i)), Load(right, *of("b", j))
            body.append(TileDot(*of("c", i, j), a, b))
    places = [(i, j) for i in range(high) for j in range(wide)]
    zeros = tuple(TileZero(*of("c", i, j)) for i, j in places)
    stores = tuple(
        TileStore("y", (row(i), lane(j)), Load(total, *of("c", i, j)), width) for i, j in places
    )
    inside: Body = (*zeros, For("sum", 0, sum_loops, LoopKind.SERIAL, tuple(body)), *stores)
    for memory in (
        Memory("b", right, (wide, steps, lanes * n)),
        Memory("a", left, (high, rows, steps * n)),
        Memory("c", total, (high, wide, rows, lanes)),
    ):
        inside = (Allocate(memory, Scope.TILE, inside),)
    lanes_loop = For("lanes", 0, lane_loops, LoopKind.SERIAL, inside)
    return LoopNest("product", (x, w), y, (For("rows", 0, row_loops, kind, (lanes_loop,)),))
