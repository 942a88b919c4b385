"""Accumulators: the type in which a reduction joins its terms, where it is wider than theirs.

conv[oc]: f32 = sum in f64 over ic of x[ic] * w[oc, ic]
->
conv.accumulated[oc]: f64 = sum over ic of f64(x[ic]) * f64(w[oc, ic])
conv[oc]: f32 = f32(conv.accumulated[oc])
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    cast,
    const,
    index,
    mul,
    select,
)
from tunefarm.compiler.expr.packed_fields import is_unpacked
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.evaluate_product import product_factors
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.dtypes import DType


def widened(term: Expr, combiner: str, accumulator: DType) -> Expr:
    """A term as its accumulator takes it: the product under a sum is one of wide factors."""
    if combiner == "sum" and isinstance(term, Binary) and term.op == "mul":
        return mul(cast(accumulator, term.left), cast(accumulator, term.right))
    return cast(accumulator, term)


def apart(stage: Stage, result: str) -> tuple[Stage, Stage]:
    """A stage `result` that is of the type of its accumulator, and the stage as what stores it."""
    body = widened(stage.body, stage.combiner, stage.accumulates)
    wide = replace(stage, name=result, body=body, accumulator=None)
    load = Load(wide.dtype, result, tuple(index(axis.name) for axis in stage.axes))
    return wide, Stage(stage.name, stage.axes, (), "", cast(stage.dtype, load))


def narrow_factors(term: Expr) -> tuple[Expr, Expr] | None:
    """The factors of a sum's term `mul(cast(left), cast(right))` that is wider than both of them.

    Each is a load, an integer that is unpacked from one, or a choice by indices between those and
    constants; None where that is not so.
    Of a term that is 0 where a condition does not hold, the left factor is.
    """
    if isinstance(term, Select):
        inside = narrow_factors(term.then)
        if inside is None or not _is_zero(term.otherwise) or loads(term.condition):
            return None
        left, right = inside
        return select(term.condition, left, const(0, left.dtype)), right
    if not isinstance(term, Binary) or term.op != "mul":
        return None
    sides = _uncast(term.left, term.dtype), _uncast(term.right, term.dtype)
    return None if sides[0] is None or sides[1] is None else (sides[0], sides[1])


def narrow_types(stage: Stage) -> tuple[DType, ...]:
    """The types of the factors that a stage loads, widens and sums; () if it does not."""
    if stage.combiner != "sum":
        return ()
    narrow = tuple(
        factor.operand.dtype
        for factor in product_factors(stage.body)
        if isinstance(factor, Cast)
        and isinstance(factor.operand, Load)
        and factor.operand.dtype.bytes < factor.dtype.bytes
    )
    return narrow if len(narrow) > 1 else ()


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def _uncast(factor: Expr, term: DType) -> Expr | None:
    """What the factor is converted from, if that is in memory, narrower, and loses nothing."""
    if not isinstance(factor, Cast) or not _is_in_memory(factor.operand):
        return None
    held = factor.operand.dtype
    return factor.operand if held.bytes < term.bytes and term.holds(held) else None


def _is_in_memory(factor: Expr) -> bool:
    if isinstance(factor, Select):
        sides = _is_in_memory(factor.then) and _is_in_memory(factor.otherwise)
        return sides and not loads(factor.condition)
    return isinstance(factor, Load | Const) or is_unpacked(factor)
