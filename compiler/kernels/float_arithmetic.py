"""Where a kernel computes with floats: there denormal numbers count as zeros if they are flushed.

What only moves elements, or takes their bits, keeps them whatever a thread's state of floats is.
"""

from __future__ import annotations

from tunefarm.compiler.expr.functions import UNARY
from tunefarm.compiler.expr.nodes import Binary, Cast, Expr, Load, Unary
from tunefarm.compiler.expr.walk import loads, postorder
from tunefarm.compiler.kernels.evaluate_product import product_factors
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage


def computes_with_floats(kernel: FusedKernel) -> bool:
    """Whether any element of the result is more than one of the operands', or of their bits."""
    return any(
        (stage.combiner and stage.dtype.is_float) or any(map(_computes, postorder(stage.body)))
        for stage in kernel.stages
    )


def _computes(expr: Expr) -> bool:
    if isinstance(expr, Binary):
        return expr.left.dtype.is_float
    if isinstance(expr, Unary):
        return expr.operand.dtype.is_float and not UNARY[expr.op].bitwise
    return isinstance(expr, Cast) and expr.operand.dtype.is_float


def only_multiplies(kernel: FusedKernel, buffer: str) -> bool:
    """Whether all that is made of a buffer's elements is sums of products with others."""
    reading = [stage for stage in kernel.stages if _reads(stage.body, buffer)]
    return bool(reading) and all(_multiplies(stage, buffer) for stage in reading)


def _multiplies(stage: Stage, buffer: str) -> bool:
    factors = product_factors(stage.body)
    others = [factor for factor in factors if not _is_element(factor, buffer)]
    if stage.combiner != "sum" or len(factors) < 2 or len(others) == len(factors):
        return False
    return not any(_reads(factor, buffer) for factor in others)


def _is_element(factor: Expr, buffer: str) -> bool:
    """Whether it is an element of the buffer, as it is or in a wider type."""
    while isinstance(factor, Cast) and factor.operand.dtype.is_float and factor.dtype.is_float:
        factor = factor.operand
    return isinstance(factor, Load) and factor.buffer == buffer


def _reads(expr: Expr, buffer: str) -> bool:
    return any(load.buffer == buffer for load in loads(expr))
