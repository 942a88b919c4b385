"""Tiles that reach beyond a row's pitch write what is within it; only those are tested for it."""

from __future__ import annotations

import pytest

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import (
    Binary,
    Expr,
    Load,
    add,
    binary,
    const,
    index,
    integer,
    mul,
    unary,
)
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.kernels.kernel import RowPitch
from tunefarm.compiler.loops.ir import (
    Body,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Memory,
    Store,
    TileLoad,
    walk,
)
from tunefarm.compiler.loops.separate_rows import separate_rows
from tunefarm.compiler.types.dtypes import DType

ROWS, WIDTH, LANES, TILE = 4, 20, 8, 6
SIZE = Load(DType.I64, "sizes", (integer(0),))


def nest(body: Body, margin: int, column: int = LANES, multiple: int = 1) -> LoopNest:
    pitch = RowPitch(column, WIDTH, ROWS, "sizes", 0, margin, multiple)
    shape = (1, ROWS, WIDTH, LANES) if column > 1 else (1, 1, ROWS, WIDTH)
    output = Memory("y", DType.F32, shape, pitch)
    return LoopNest("rows", (Memory("sizes", DType.I64, (1,)),), output, body)


def tiles(end: Expr | None) -> Body:
    """for w.o < min(3, end): unrolled for w: vector for c: y[0, h, 6 w.o + w, c] = 0"""
    column = add(mul(index("w.o"), integer(TILE)), index("w"))
    store = Store("y", (integer(0), index("h"), column, index("c")), const(0.0, DType.F32))
    body: Body = (For("c", 0, LANES, LoopKind.VECTORISED, (store,)),)
    body = (For("w", 0, TILE, LoopKind.UNROLLED, body),)
    body = (For("w.o", 0, WIDTH // TILE, LoopKind.SERIAL, body, limit=end),)
    return (For("h", 0, ROWS, LoopKind.SERIAL, body),)


def rounded_up() -> Expr:
    return binary("floordiv", add(SIZE, integer(TILE - 1)), integer(TILE))


def guards(body: Body) -> list[If]:
    return [statement for statement in walk(body) if isinstance(statement, If)]


@pytest.mark.parametrize(("margin", "tested"), [(TILE - 2, True), (TILE - 1, False)])
def test_a_tile_is_tested_where_it_reaches_beyond_the_pitch(margin: int, tested: bool) -> None:
    given = nest(tiles(rounded_up()), margin)
    found = separate_rows(given)
    assert bool(guards(found.body)) is tested
    if not tested:
        assert found.body == given.body


def test_the_element_behind_the_margin_is_in_the_next_row() -> None:
    for behind, tested in ((2, False), (3, True)):
        place = (integer(0), integer(0), index("h"), add(SIZE, integer(behind)))
        store = Store("y", place, const(0.0, DType.F32))
        body = (For("h", 0, ROWS, LoopKind.SERIAL, (store,)),)
        assert bool(guards(separate_rows(nest(body, 3, column=1)).body)) is tested


def test_tiles_that_no_size_ends_are_tested_before_their_vectors() -> None:
    (guard,) = guards(separate_rows(nest(tiles(None), 2)).body)
    (vectors,) = guard.body
    assert isinstance(vectors, For)
    assert vectors.kind is LoopKind.VECTORISED


def test_a_guard_that_no_round_changes_is_tested_before_an_unrolled_loop() -> None:
    place = (integer(0), index("h"), mul(index("w.o"), integer(TILE)), index("c"))
    vector = For("c", 0, LANES, LoopKind.VECTORISED, (Store("y", place, const(0.0, DType.F32)),))
    twice = For("twice", 0, 2, LoopKind.UNROLLED, (vector,))
    columns = For("w.o", 0, WIDTH // TILE, LoopKind.SERIAL, (twice,))
    (guard,) = guards(
        separate_rows(nest((For("h", 0, ROWS, LoopKind.SERIAL, (columns,)),), 2)).body
    )
    assert guard.body == (twice,)


def lanes_that_are_columns(by: int) -> Body:
    """for b: vector for c in 0..4: y[0, 0, h, 4 b + by c] = 0"""
    place = add(mul(index("b"), integer(4)), mul(index("c"), integer(by)))
    store = Store("y", (integer(0), integer(0), index("h"), place), const(0.0, DType.F32))
    body: Body = (For("c", 0, 4, LoopKind.VECTORISED, (store,)),)
    body = (For("b", 0, WIDTH // 4, LoopKind.SERIAL, body),)
    return (For("h", 0, ROWS, LoopKind.SERIAL, body),)


def test_lanes_that_are_columns_are_masked_where_a_row_ends() -> None:
    found = separate_rows(nest(lanes_that_are_columns(1), 1, column=1))
    whole, rest, mask = guards(found.body)
    kinds = [s.kind for s in (*whole.body, *rest.body) if isinstance(s, For)]
    assert kinds == [LoopKind.VECTORISED, LoopKind.VECTORISED]
    assert unary("not", whole.condition) in conjuncts(rest.condition)
    left = add(add(SIZE, integer(1)), mul(index("b"), integer(-4)))
    assert isinstance(mask.condition, Binary)
    assert isinstance(mask.condition.right, Binary)
    assert affine(mask.condition.right.left, {}) == affine(left, {})
    assert mask.condition.left == index("c")


def test_lanes_that_are_columns_apart_are_written_one_by_one_where_a_row_ends() -> None:
    found = separate_rows(nest(lanes_that_are_columns(2), 1, column=1))
    whole, rest = guards(found.body)[:2]
    kinds = [s.kind for s in (*whole.body, *rest.body) if isinstance(s, For)]
    assert kinds == [LoopKind.VECTORISED, LoopKind.SERIAL]
    assert rest.condition == unary("not", whole.condition)
    assert len(guards(rest.body)) == 1


@pytest.mark.parametrize(("vectors", "tested"), [(1, False), (2, True)])
def test_vectors_within_the_multiple_that_a_row_ends_in_are_not_tested(
    vectors: int, tested: bool
) -> None:
    """for b < min(…, (size + 4 v - 1) // 4 v): let s = min(4 v b, 12): vectors of y[0, 0, h, s]"""
    lanes = 4 * vectors
    place = add(add(index("s"), mul(index("v"), integer(4))), index("c"))
    store = Store("y", (integer(0), integer(0), index("h"), place), const(0.0, DType.F32))
    body: Body = (For("c", 0, 4, LoopKind.VECTORISED, (store,)),)
    body = (For("v", 0, vectors, LoopKind.UNROLLED, body),)
    start = binary("min", mul(index("b"), integer(lanes)), integer(WIDTH - lanes))
    end = binary("floordiv", add(SIZE, integer(lanes - 1)), integer(lanes))
    body = (For("b", 0, WIDTH // 4, LoopKind.SERIAL, (Let("s", start, body),), limit=end),)
    body = (For("h", 0, ROWS, LoopKind.SERIAL, body),)
    found = separate_rows(nest(body, 0, column=1, multiple=4))
    kinds = [s.kind for s in walk(found.body) if isinstance(s, For) and s.variable == "c"]
    assert kinds == [LoopKind.VECTORISED]
    assert bool(guards(found.body)) is tested


def test_a_matrix_tile_of_rows_that_are_apart_is_refused() -> None:
    load = Load(DType.F32, "y", (integer(0), integer(0), integer(0), integer(0)))
    tile = TileLoad("tile", (), load, LANES)
    with pytest.raises(ScheduleError, match="no matrix tile"):
        separate_rows(nest((tile,), 2))
