"""Reductions: neutral elements, and the conditions outside of which a term is neutral."""

from __future__ import annotations

from compiler.expr.nodes import Binary, Const, Expr, Select, binary, const
from compiler.expr.parts import conjuncts
from compiler.expr.walk import loads
from compiler.types.dtypes import DType


def reduction_identity(combiner: str, dtype: DType) -> Const:
    """The neutral element of a combiner."""
    if combiner in ("sum", "prod"):
        return const(0 if combiner == "sum" else 1, dtype)
    if combiner in ("and", "or"):
        return const(combiner == "and", dtype)
    if dtype.is_float:
        return const(float("-inf") if combiner == "max" else float("inf"), dtype)
    if dtype is DType.BOOL:
        return const(combiner == "min", dtype)
    bits = dtype.bytes * 8
    highest = (1 << (bits - dtype.is_signed)) - 1
    lowest = -highest - 1 if dtype.is_signed else 0
    return const(lowest if combiner == "max" else highest, dtype)


def split_guards(body: Expr, combiner: str) -> tuple[list[Expr], Expr]:
    """Conditions outside of which a reduction's body is neutral, and the body under them.

    sum: a factor `select(c, x, 0)` of a product is `x` under c; max, min: `select(c, x, identity)`.
    """
    neutral = reduction_identity(combiner, body.dtype)
    # A condition on data stays a select: only conditions on indices can be decided early.
    if isinstance(body, Select) and body.otherwise == neutral and not loads(body.condition):
        guards, inner = split_guards(body.then, combiner)
        return [*conjuncts(body.condition), *guards], inner
    if combiner == "sum" and isinstance(body, Binary) and body.op == "mul":
        left_guards, left = split_guards(body.left, combiner)
        right_guards, right = split_guards(body.right, combiner)
        if left_guards or right_guards:
            return [*left_guards, *right_guards], binary("mul", left, right)
    return [], body
