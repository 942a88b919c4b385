"""How often a kernel's result is rounded on its way, from which follows how far it may be off."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tunefarm.compiler.expr.combiners import COMBINERS
from tunefarm.compiler.expr.nodes import Cast, Unary
from tunefarm.compiler.expr.walk import postorder
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.recurrence import Recurrence, recurrence_of
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import is_narrow

_ROUNDED_STATE = 8 / 255
"""Of the largest result, that two right computations may differ by where a recurrence rounds its
states to one of 256 at each step: 4/255 was seen in 170 steps of 256 units. An f32 that lies on
the border of two of them goes either way, and into all later steps."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """What rounds a kernel's result before it is stored.

    `length` is how many roundings of its sums can pile up in one element, see
    `tunefarm.compiler.types.numerics.sum_tolerance`. `inner` adds up the spacings (at 1) of the
    narrow types that values are rounded to on their way: where two right computations differ in the
    last place of a sum, the values rounded to such a type may be neighbours there.
    """

    length: float
    inner: float = 0.0


def rounding_of(kernel: FusedKernel) -> Rounding:
    """What rounds the kernel's result.

    Errors grow with the root of their number, so that a rounding of an accumulator which is finer
    than the output counts as the square of its part of one. What rounds a narrow output at last is
    no part of it.
    """
    output = _computed_in(kernel.output.dtype)
    sums = [s for s in kernel.stages if s.combiner and COMBINERS[s.combiner].rounds]
    recurrence = recurrence_of(kernel)
    steps = 1 if recurrence is None else recurrence.extent  # each rounds what the last one gave
    length = max(1, steps * sum(_roundings(stage, output) for stage in sums))
    inner = sum(_inner(kernel, stage) for stage in kernel.stages)
    return Rounding(length, inner + _ROUNDED_STATE * _rounds_states(kernel, recurrence))


def _rounds_states(kernel: FusedKernel, recurrence: Recurrence | None) -> bool:
    """Whether a state is rounded to an integer on its way to the next step."""
    walked = () if recurrence is None else recurrence.stages
    return any(
        isinstance(node, Unary) and node.op == "round"
        for name in walked
        for node in postorder(kernel.stage(name).body)
    )


def _computed_in(dtype: DType) -> DType:
    return DType.F32 if is_narrow(dtype) else dtype


def _roundings(stage: Stage, output: DType) -> float:
    terms = math.prod(axis.extent for axis in stage.reduce_axes)
    if not (stage.accumulates.is_float and output.is_float):
        return terms
    return terms * min(1.0, _computed_in(stage.accumulates).epsilon / output.epsilon) ** 2


def _inner(kernel: FusedKernel, stage: Stage) -> float:
    """The spacings of all that a stage rounds to narrow types, but for the kernel's output."""
    rounded = [node.dtype for node in postorder(stage.body) if isinstance(node, Cast)]
    if stage.accumulates is not stage.dtype:
        rounded.append(stage.dtype)
    total = sum(dtype.epsilon for dtype in rounded if is_narrow(dtype))
    is_stored = isinstance(stage.body, Cast) or stage.accumulates is not stage.dtype
    if total and stage.name == kernel.output.name and is_stored:
        total -= stage.dtype.epsilon
    return total
