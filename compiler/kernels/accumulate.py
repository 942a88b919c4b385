"""Accumulators: the type in which a reduction joins its terms, where it is wider than theirs.

conv[oc]: f32 = sum in f64 over ic of x[ic] * w[oc, ic]
->
conv.accumulated[oc]: f64 = sum over ic of f64(x[ic]) * f64(w[oc, ic])
conv[oc]: f32 = f32(conv.accumulated[oc])
"""

from __future__ import annotations

from dataclasses import replace

from compiler.expr.nodes import Binary, Expr, Load, cast, index, mul
from compiler.kernels.stage import Stage
from compiler.types.dtypes import DType


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
