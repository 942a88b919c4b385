"""Functions by shorter code, where their operands or a few units in the last place allow it.

max = max over j of x[j]
y[i] = exp(x[i] - max)     ->     y[i] = exp_nonpositive(x[i] - max)
z[i] = tanh(x[i])          ->     z[i] = tanh_rational(x[i])

A difference to the largest element of a row is never positive: its power of e needs no bound
above, and is scaled once. A quotient of polynomials is a tanh in half of the instructions.
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import Binary, Const, Expr, Index, Load, Unary, unary
from tunefarm.compiler.expr.walk import children, transform
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.dtypes import DType


def has_short_functions(kernel: FusedKernel) -> bool:
    """Whether a stage has a function with a shorter form."""
    return _rewritten(kernel) != kernel.stages


def apply_short_functions(kernel: FusedKernel) -> FusedKernel:
    """The same kernel with the shorter forms; `ScheduleError` where there is none."""
    stages = _rewritten(kernel)
    if stages == kernel.stages:
        raise ScheduleError("no function of the kernel has a shorter form")
    return replace(kernel, stages=stages)


def _rewritten(kernel: FusedKernel) -> tuple[Stage, ...]:
    largest = {stage.name: stage for stage in kernel.stages if stage.combiner == "max"}

    def shorter(node: Expr) -> Expr | None:
        if not isinstance(node, Unary) or node.dtype is not DType.F32:
            return None
        if node.op == "tanh":
            return unary("tanh_rational", transform(node.operand, shorter))
        if node.op == "exp" and _is_nonpositive(node.operand, largest, extents):
            return unary("exp_nonpositive", transform(node.operand, shorter))
        return None

    stages = []
    for stage in kernel.stages:
        extents = {axis.name: axis.extent for axis in (*stage.axes, *stage.reduce_axes)}
        body = transform(stage.body, shorter)
        stages.append(stage if body == stage.body else replace(stage, body=body))
    return tuple(stages)


def _is_nonpositive(operand: Expr, largest: dict[str, Stage], extents: dict[str, int]) -> bool:
    """The operand is x - max, where x is one of the elements that the maximum is of."""
    if not isinstance(operand, Binary) or operand.op != "sub":
        return False
    top = operand.right
    if not isinstance(top, Load) or top.buffer not in largest:
        return False
    stage = largest[top.buffer]
    bound: dict[str, Expr] = dict(zip((axis.name for axis in stage.axes), top.indices, strict=True))
    if not _is_element(stage.body, operand.left, bound):
        return False
    for axis in stage.reduce_axes:
        place = bound.get(axis.name)
        if not isinstance(place, Index) or extents[place.name] > axis.extent:
            return False
    return True


def _is_element(term: Expr, found: Expr, bound: dict[str, Expr]) -> bool:
    """Whether an expression is the term for some values of its axes, which are `bound` to them."""
    if isinstance(term, Index):
        return bound.setdefault(term.name, found) == found
    if _head(term) != _head(found):
        return False
    parts = zip(children(term), children(found), strict=True)
    return all(_is_element(a, b, bound) for a, b in parts)


def _head(node: Expr) -> tuple[object, ...]:
    """What makes an expression besides its operands."""
    match node:
        case Unary(op=name) | Binary(op=name) | Load(buffer=name):
            return type(node), node.dtype, name
        case Const():
            return (node,)
        case _:
            return type(node), node.dtype
