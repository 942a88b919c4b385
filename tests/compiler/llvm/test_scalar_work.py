"""What is done element by element is found out, with a reason that fits; the rest is not."""

from __future__ import annotations

import pytest

from tests.compiler.kernels.matmul import matmul_kernel
from tests.targets import target_named
from tunefarm.compiler.expr.nodes import Expr, Load, add, binary, const, index, integer, mul, unary
from tunefarm.compiler.llvm.scalar_work import calls_library, scalar_work
from tunefarm.compiler.loops.ir import For, If, Let, LoopKind, LoopNest, Memory, Store, Update
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule, naive_schedule
from tunefarm.compiler.types.dtypes import DType

TARGET = target_named("x86-64-v3")
WITHOUT_GATHER = target_named("x86-64-v2")
ROWS, LANES = 1000, 8
X, TABLE = Memory("x", DType.F32, (1 << 16,)), Memory("table", DType.I64, (1 << 16,))
Y = Memory("y", DType.F32, (ROWS * LANES,))
AT = add(mul(index("row"), integer(LANES)), index("lane"))


def nest(value: Expr, at: Expr = AT, kind: LoopKind = LoopKind.VECTORISED) -> LoopNest:
    """`y[at] = value` for each row and lane."""
    inner = For("lane", 0, LANES, kind, (Store("y", (at,), value),))
    return LoopNest("k", (X, TABLE), Y, (For("row", 0, ROWS, LoopKind.SERIAL, (inner,)),))


def x(at: Expr) -> Expr:
    return Load(DType.F32, "x", (at,))


VECTORS = {
    "side by side": x(AT),
    "the same for all lanes": x(index("row")),
    "a few apart": x(mul(AT, integer(3))),
    "each twice": x(binary("floordiv", AT, integer(2))),
    "backwards": x(binary("sub", integer(ROWS * LANES), AT)),
    "in vectors of code": unary("exp", x(AT)),
    "a power of two": binary("pow", x(AT), const(2.0, DType.F32)),
}


@pytest.mark.parametrize("value", VECTORS.values(), ids=VECTORS)
def test_vectors_are_no_scalar_work(value: Expr) -> None:
    assert scalar_work(nest(value), TARGET) == ""


def test_elements_far_apart_are_scalar_work() -> None:
    value = x(add(mul(index("lane"), integer(ROWS)), index("row")))
    assert scalar_work(nest(value), TARGET) == (
        f"elements of `x` lie {ROWS} apart along the axis of the vectors"
    )


def test_elements_at_positions_from_a_table_are_scalar_work_where_nothing_gathers() -> None:
    value = x(Load(DType.I64, "table", (AT,)))
    assert scalar_work(nest(value), TARGET) == ""
    assert scalar_work(nest(value), WITHOUT_GATHER) == (
        "where `x` is read depends on the values of `table`"
    )


def test_division_that_leaves_no_pattern_is_scalar_work_where_nothing_gathers() -> None:
    value = x(binary("mod", mul(AT, integer(7)), integer(1009)))
    assert scalar_work(nest(value), WITHOUT_GATHER) == (
        "integer division or modulo in an index of `x`"
    )


def test_library_call_is_scalar_work_in_vectors_too() -> None:
    doubles = [Memory(name, DType.F64, (ROWS * LANES,)) for name in ("x", "y")]
    value = unary("erf", Load(DType.F64, "x", (AT,)))
    called = LoopNest("k", (doubles[0],), doubles[1], nest(value).body)
    assert calls_library(value)
    assert scalar_work(called, TARGET) == "`erf` is a call of the C library for each element"


def test_results_far_apart_are_scalar_work() -> None:
    at = add(mul(index("lane"), integer(ROWS)), index("row"))
    assert scalar_work(nest(x(AT), at), TARGET) == (
        "neighbouring lanes are no neighbours in the result `y`"
    )


def test_loop_that_is_not_vectorised_is_scalar_work_for_what_keeps_it_from_that() -> None:
    far = x(add(mul(index("lane"), integer(ROWS)), index("row")))
    serial = LoopKind.SERIAL
    assert "lie 1000 apart" in scalar_work(nest(far, kind=serial), TARGET)
    assert scalar_work(nest(x(AT), kind=serial), TARGET).startswith("no sketch makes vectors")
    narrow = add(mul(index("row"), integer(3)), index("lane"))
    body = For("lane", 0, 3, serial, (Store("y", (narrow,), x(narrow)),))
    few = LoopNest("k", (X, TABLE), Y, (For("row", 0, ROWS, serial, (body,)),))
    assert scalar_work(few, TARGET) == "no axis of 4 or more elements is contiguous in `y`"


def test_what_is_written_where_memory_says_does_not_count() -> None:
    place = Load(DType.I64, "table", (index("row"),))
    store = Store("y", (index("at"),), x(index("row")))
    body = (Let("at", place, (If(binary("lt", index("at"), integer(ROWS)), (store,)),)),)
    scattered = LoopNest("k", (X, TABLE), Y, (For("row", 0, ROWS, LoopKind.SERIAL, body),))
    assert scalar_work(scattered, TARGET) == ""


def test_a_little_scalar_work_beside_vectors_is_nothing() -> None:
    few = For("row", 0, 40, LoopKind.SERIAL, (Update("y", (integer(0),), "sum", x(index("row"))),))
    vectors = nest(x(AT))
    assert scalar_work(LoopNest("k", (X,), Y, (few, *vectors.body)), TARGET) == ""
    assert scalar_work(LoopNest("k", (X,), Y, (few,)), TARGET) == ""


def test_scalar_work_is_weighed_against_all_of_the_vectors() -> None:
    """What is the same for all lanes is an operand of vectors too."""
    scalar = Update("y", (integer(0),), "sum", x(index("row")))
    many = For("row", 0, 1700, LoopKind.SERIAL, (scalar,))
    few, more = nest(x(AT)).body, nest(mul(x(AT), const(2.0, DType.F32))).body
    assert scalar_work(LoopNest("k", (X,), Y, (many, *few)), TARGET)
    assert scalar_work(LoopNest("k", (X,), Y, (many, *more)), TARGET) == ""


def test_naive_schedule_is_scalar_work_and_the_default_one_is_not() -> None:
    kernel = matmul_kernel(64, 64, 64)
    assert scalar_work(lower(kernel, naive_schedule()), TARGET)
    assert scalar_work(lower(kernel, default_schedule(kernel, TARGET)), TARGET) == ""


def test_constants_alone_are_vectors() -> None:
    assert scalar_work(nest(const(1.0, DType.F32)), TARGET) == ""
