"""Positions that are looked up or divided are computed once, in the loop that decides them."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import (
    Expr,
    Load,
    add,
    binary,
    cast,
    const,
    index,
    integer,
    select,
)
from tunefarm.compiler.loops.hoist_positions import hoist_positions
from tunefarm.compiler.loops.ir import Body, For, Let, LoopKind, LoopNest, Memory, Store
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.types.dtypes import DType

X, TABLE = Memory("x", DType.F32, (9, 32)), Memory("t", DType.I32, (4,))
ROW, COLUMN = index("i"), index("j")
LOOKED_UP = cast(DType.I64, Load(DType.I32, "t", (ROW,)))
CLAMPED = binary("max", binary("min", LOOKED_UP, integer(8)), integer(0))


def hoisted(row: Expr, kind: LoopKind = LoopKind.SERIAL, *, guarded: bool = False) -> str:
    value: Expr = Load(DType.F32, "x", (row, COLUMN))
    if guarded:
        condition = binary("lt", ROW, integer(3))
        value = select(condition, value, const(0.0, DType.F32))
    body: Body = (Store("y", (ROW, COLUMN), value),)
    body = (For("j", 0, 32, LoopKind.VECTORISED, body),)
    nest = LoopNest("k", (X, TABLE), Memory("y", DType.F32, (4, 32)), (For("i", 0, 4, kind, body),))
    result = hoist_positions(nest)
    verify_loops(result)
    return format_loops(result)


def test_a_looked_up_row_is_bound_where_its_row_is() -> None:
    lines = hoisted(CLAMPED).splitlines()
    assert "for i" in lines[1]
    assert "let at.1 = max(min(i64(t[i]), 8), 0)" in lines[2]
    assert "y[i, j] = x[at.1, j]" in lines[4]


def test_only_what_is_no_sum_is_bound() -> None:
    text = hoisted(add(binary("floordiv", ROW, integer(2)), ROW))
    assert "let at.1 = i // 2" in text
    assert "let" not in hoisted(add(ROW, integer(5)))


def test_positions_of_lanes_and_of_unrolled_loops_stay() -> None:
    assert "let" not in hoisted(binary("floordiv", COLUMN, integer(8)))
    assert "let" not in hoisted(CLAMPED, LoopKind.UNROLLED)


def test_a_guarded_position_is_moved_where_its_table_is_not_left() -> None:
    assert "let at.1" in hoisted(CLAMPED, guarded=True)
    beyond = Load(DType.I32, "t", (add(ROW, integer(1)),))
    outside = binary("max", binary("min", cast(DType.I64, beyond), integer(8)), integer(0))
    assert "let" not in hoisted(outside, guarded=True)


def test_a_position_is_bound_once_for_several_loads() -> None:
    one = Load(DType.F32, "x", (CLAMPED, COLUMN))
    body: Body = (Store("y", (ROW, COLUMN), add(one, Load(DType.F32, "x", (CLAMPED, integer(0))))),)
    body = (For("i", 0, 4, LoopKind.SERIAL, (For("j", 0, 32, LoopKind.SERIAL, body),)),)
    nest = hoist_positions(LoopNest("k", (X, TABLE), Memory("y", DType.F32, (4, 32)), body))
    (outer,) = nest.body
    assert isinstance(outer, For)
    (bound,) = outer.body
    assert isinstance(bound, Let)
    assert isinstance(bound.body[0], For)
