"""Factors of 8 bits as ones of 16, converted before they are multiplied.

conv[i]: i32 = sum over k of i32(x[i + k]) * i32(w[k])
->
wide[i] = i16(x[i])
conv[i]: i32 = sum over k of i32(wide[i + k]) * i32(i16(w[k]))

CPUs without dot products of bytes multiply pairs of 16-bit numbers. Into these they take bytes
apart wherever they are read, unless there is a copy.
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import Const, Expr, Load, Select, cast, const, index, mul, select
from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.accumulate import narrow_factors
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.types.dtypes import DType

WIDE = "wide"
"""The stage that holds an input as numbers of 16 bits."""


def has_wide_factors(kernel: FusedKernel) -> bool:
    """The anchor is a sum that has such a form."""
    return _factors(kernel) is not None


def apply_wide_factors(kernel: FusedKernel) -> FusedKernel:
    """The same kernel with its anchor's factors of 16 bits; `ScheduleError` where it has no such.

    The factor that varies is converted in a stage before: its own, if it is one, else `wide`.
    """
    found = _factors(kernel)
    if found is None:
        raise ScheduleError("factors are made wide of products of bytes, one of each a constant")
    data, weight = found
    anchor = kernel.stage(kernel.anchor)
    position = kernel.stages.index(anchor)
    before, name = _converted(kernel, kernel.stages[:position], data)
    wide = cast(anchor.dtype, Load(DType.I16, name, data.indices))
    term = mul(wide, cast(anchor.dtype, cast(DType.I16, weight)))
    stages = (*before, replace(anchor, body=term), *kernel.stages[position + 1 :])
    return replace(kernel, stages=stages)


def _factors(kernel: FusedKernel) -> tuple[Load, Load] | None:
    """What varies and what is constant of the anchor's terms, if it has the form."""
    anchor = kernel.stage(kernel.anchor)
    if anchor.combiner != "sum" or anchor.dtype is not DType.I32 or anchor.accumulator is not None:
        return None
    factors = narrow_factors(anchor.body)
    if factors is None:
        return None
    left, right = factors
    if not isinstance(left, Load) or not isinstance(right, Load):
        return None
    if left.dtype.bits != 8 or right.dtype.bits != 8:
        return None
    constants = {buffer.name for buffer in kernel.inputs if buffer.constant}
    pairs = [(left, right), (right, left)]
    found = [(a, b) for a, b in pairs if a.buffer not in constants and b.buffer in constants]
    if len(found) != 1 or any(stage.name == WIDE for stage in kernel.stages):
        return None
    data = found[0][0].buffer
    users = [stage for stage in kernel.stages if any(x.buffer == data for x in loads(stage.body))]
    reduced = any(stage.name == data and stage.reduce_axes for stage in kernel.stages)
    return None if reduced or users != [anchor] else found[0]


def _converted(
    kernel: FusedKernel, before: tuple[Stage, ...], data: Load
) -> tuple[tuple[Stage, ...], str]:
    """The stages before the anchor with one that has the data converted, and its name."""
    names = [stage.name for stage in before]
    if data.buffer in names:
        number = names.index(data.buffer)
        stage = replace(before[number], body=_widened(before[number].body))
        return (*before[:number], stage, *before[number + 1 :]), data.buffer
    shape = kernel.buffer(data.buffer).shape
    axes = tuple(Axis(f"i{number}", extent) for number, extent in enumerate(shape))
    load = Load(data.dtype, data.buffer, tuple(index(axis.name) for axis in axes))
    return (*before, Stage(WIDE, axes, (), "", cast(DType.I16, load))), WIDE


def _widened(body: Expr) -> Expr:
    if isinstance(body, Select):
        return select(body.condition, _widened(body.then), _widened(body.otherwise))
    if isinstance(body, Const):
        return const(body.value, DType.I16)
    return cast(DType.I16, body)
