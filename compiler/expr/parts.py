"""Parts of expressions: conjuncts, guards of a term, and the largest with some property."""

from __future__ import annotations

import math

from tunefarm.compiler.expr.combiners import neutral_element
from tunefarm.compiler.expr.functions import BINARY, UNARY
from tunefarm.compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Select,
    Unary,
    binary,
    cast,
)
from tunefarm.compiler.expr.walk import axes_of, children, loads, postorder
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen


def is_expensive(expr: Expr) -> bool:
    """Some function in it takes many instructions, or a call."""
    return any(
        (isinstance(node, Unary) and UNARY[node.op].expensive)
        or (isinstance(node, Binary) and BINARY[node.op].expensive)
        for node in postorder(expr)
    )


def float_bounds(expr: Expr) -> tuple[float, float]:
    """Bounds that an expression's numbers are clipped to; NaN may be beyond."""
    if not isinstance(expr, Binary) or expr.op not in ("max", "min"):
        return -math.inf, math.inf
    other, bound = expr.left, expr.right
    if isinstance(other, Const):
        other, bound = bound, other
    if not isinstance(bound, Const):
        return -math.inf, math.inf
    low, high = float_bounds(other)
    limit = float(bound.value)
    if expr.op == "max":
        return max(low, limit), max(high, limit)
    return min(low, limit), min(high, limit)


@frozen
class Quantised:
    """min(max(round(value) + offset, low), high), an integer in a float of 32 bits."""

    value: Expr
    offset: int
    low: int
    high: int


def quantised_parts(expr: Expr) -> Quantised | None:
    """The parts of a rounded and clipped float, with an offset or without; None of anything else.

    Bounds and offset are integers of 16 bits, so that it may be clipped before it is rounded.
    """
    low, high = float_bounds(expr)
    if expr.dtype is not DType.F32 or not (-(2.0**15) <= low <= high < 2.0**15):
        return None
    inner: Expr = expr
    while isinstance(inner, Binary) and inner.op in ("max", "min"):
        inner = inner.right if isinstance(inner.left, Const) else inner.left
    offset = 0.0
    if isinstance(inner, Binary) and inner.op == "add" and isinstance(inner.right, Const):
        offset = float(inner.right.value)
        inner = inner.left
    if not isinstance(inner, Unary) or inner.op != "round" or not abs(offset) < 2.0**15:
        return None
    if not (low.is_integer() and high.is_integer() and offset.is_integer()):
        return None
    return Quantised(inner.operand, int(offset), int(low), int(high))


def conjuncts(condition: Expr) -> list[Expr]:
    """The parts of a conjunction."""
    if isinstance(condition, Binary) and condition.op == "and":
        return [*conjuncts(condition.left), *conjuncts(condition.right)]
    return [condition]


def split_guards(body: Expr, combiner: str) -> tuple[list[Expr], Expr]:
    """Conditions outside of which a reduction's body is neutral, and the body under them.

    sum: a factor `select(c, x, 0)` of a product, converted or not, is `x` under c; max, min:
    `select(c, x, identity)`.
    """
    neutral = neutral_element(combiner, body.dtype)
    # A condition on data stays a select: only conditions on indices can be decided early.
    if isinstance(body, Select) and body.otherwise == neutral and not loads(body.condition):
        guards, inner = split_guards(body.then, combiner)
        return [*conjuncts(body.condition), *guards], inner
    if combiner == "sum" and isinstance(body, Cast):
        guards, inner = split_guards(body.operand, combiner)
        return guards, cast(body.dtype, inner) if guards else body
    if combiner == "sum" and isinstance(body, Binary) and body.op == "mul":
        left_guards, left = split_guards(body.left, combiner)
        right_guards, right = split_guards(body.right, combiner)
        if left_guards or right_guards:
            return [*left_guards, *right_guards], binary("mul", left, right)
    return [], body


def parts_without(expr: Expr, axes: set[str]) -> list[Expr]:
    """The largest computed parts of `expr` that depend on data, but on none of `axes`.

    What is evaluated on one side of a select only cannot stand alone and is left out, as is what is
    no more than a load or an index.
    """
    if isinstance(expr, Load | Const | Index):
        return []
    depends = bool(axes_of(expr) & axes) or expr.dtype is DType.BOOL
    if not depends and not any(isinstance(node, Select) for node in postorder(expr)):
        return [expr] if loads(expr) else []
    operands = (expr.condition,) if isinstance(expr, Select) else children(expr)
    found: list[Expr] = []
    for operand in operands:
        found += [part for part in parts_without(operand, axes) if part not in found]
    return found


def parts_that_read(expr: Expr, buffer: str) -> list[Expr]:
    """The largest parts of `expr` that load from `buffer` and from nothing else.

    A part on one side of a select is evaluated only where that side is taken, so that it cannot
    stand alone; if there is one, the result is empty.
    """
    read = {load.buffer for load in loads(expr)}
    if buffer not in read:
        return []
    if read == {buffer}:
        return [expr]
    if isinstance(expr, Select) and not any(
        load.buffer == buffer for load in loads(expr.condition)
    ):
        return []
    found: list[Expr] = []
    for operand in children(expr):
        parts = parts_that_read(operand, buffer)
        if not parts and any(load.buffer == buffer for load in loads(operand)):
            return []
        found += parts
    return found
