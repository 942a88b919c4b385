"""The rules of a FusedKernel, checked before and after everything that rewrites one."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.expr.affine import affine, affine_range, is_exact
from tunefarm.compiler.expr.combiners import COMBINERS
from tunefarm.compiler.expr.nodes import (
    Expr,
    Load,
    Select,
)
from tunefarm.compiler.expr.verify import node_problem
from tunefarm.compiler.expr.walk import Operands, children, loads, postorder
from tunefarm.compiler.kernels.kernel import FusedKernel, Tensor, ValidExtent
from tunefarm.compiler.kernels.printer import format_expression, format_kernel
from tunefarm.compiler.kernels.recurrence import recurrence_of
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.types.dtypes import DType


def verify_kernel(kernel: FusedKernel) -> None:
    """Check names, types, axes, arities and provable bounds; `VerifyError` with the program.

    A load is out of bounds when interval arithmetic proves that some index leaves its extent. Loads
    under a side of a select are exempt: their condition guards them.
    """
    problem = _first_problem(kernel)
    if problem:
        raise VerifyError(f"kernel {kernel.name}: {problem}", program=format_kernel(kernel))


def _first_problem(kernel: FusedKernel) -> str:
    tensors: dict[str, Tensor] = {}
    for buffer in kernel.inputs:
        if buffer.name in tensors:
            return f"two inputs are named {buffer.name}"
        if any(extent < 1 for extent in buffer.shape):
            return f"input {buffer.name} has an extent below 1: {buffer.type}"
        tensors[buffer.name] = Tensor(buffer.name, buffer.dtype, buffer.shape)
    if not kernel.stages:
        return "it has no stage"
    names = [*tensors, *(stage.name for stage in kernel.stages)]
    for stage in kernel.stages:
        if names.count(stage.name) > 1:
            return f"the name {stage.name} is taken twice"
    try:
        recurrence = recurrence_of(kernel)
    except ValueError as error:
        return str(error)
    back: dict[str, Tensor] = {}
    if recurrence is not None:  # the output's earlier elements are there for all of its stages
        output = kernel.output
        back = {output.name: Tensor(output.name, output.dtype, output.shape)}
    used: set[str] = set()
    for stage in kernel.stages:
        problem = _stage_problem(stage, {**back, **tensors})
        if problem:
            return f"stage {stage.name}: {problem}"
        used.update(load.buffer for load in loads(stage.body))
        tensors[stage.name] = Tensor(stage.name, stage.dtype, stage.shape)
    for stage in kernel.stages[:-1]:
        if stage.name not in used:
            return f"stage {stage.name} is not used"
    if kernel.anchor not in {stage.name for stage in kernel.stages}:
        return f"anchor {kernel.anchor} is not a stage"
    problems = (_limit_problem(kernel, limit) for limit in kernel.limits)
    return next(filter(None, problems), "")


def _limit_problem(kernel: FusedKernel, limit: ValidExtent) -> str:
    sizes = next((buffer for buffer in kernel.inputs if buffer.name == limit.sizes), None)
    if sizes is None or sizes.dtype is not DType.I64 or len(sizes.shape) != 1:
        return f"its limits are of {limit.sizes}, which is no input of sizes"
    if not 0 <= limit.number < sizes.shape[0]:
        return f"{limit.sizes} has no size {limit.number}"
    size = math.prod(kernel.output.shape)
    if limit.stride < 1 or limit.extent < 1 or size % (limit.period):
        return f"{size} elements have no axis of {limit.extent}, {limit.stride} apart"
    return ""


def _stage_problem(stage: Stage, tensors: Mapping[str, Tensor]) -> str:
    axes = (*stage.axes, *stage.reduce_axes)
    extents = {axis.name: axis.extent for axis in axes}
    if len(extents) != len(axes):
        return "axis names repeat"
    for axis in axes:
        if axis.extent < 1:
            return f"axis {axis.name} has the extent {axis.extent}"
    if bool(stage.reduce_axes) != bool(stage.combiner):
        return "a combiner is needed exactly when there are reduce axes"
    if stage.combiner and stage.combiner not in COMBINERS:
        return f"unknown combiner {stage.combiner}"
    if stage.combiner and stage.dtype not in COMBINERS[stage.combiner].operands:
        return f"combiner {stage.combiner} does not combine {stage.dtype}"
    if stage.accumulator is not None:
        problem = _accumulator_problem(stage, stage.accumulator)
        if problem:
            return problem
    for node in postorder(stage.body):
        problem = node_problem(node, extents, tensors)
        if problem:
            return f"{problem} in {format_expression(node)}"
    return _bounds_problem(stage.body, extents, tensors)


def _accumulator_problem(stage: Stage, accumulator: DType) -> str:
    if not stage.combiner or not COMBINERS[stage.combiner].rounds:
        what = f"a {stage.combiner}" if stage.combiner else "a stage without reduce axes"
        return f"{what} has no use for an accumulator of type {accumulator}"
    if accumulator is stage.dtype or not accumulator.holds(stage.dtype):
        return (
            f"{accumulator} cannot accumulate {stage.dtype}: it has to be wider, and a float for "
            "floats, an integer for integers"
        )
    return ""


def _bounds_problem(body: Expr, extents: Mapping[str, int], tensors: Mapping[str, Tensor]) -> str:
    ranges = {name: (0, extent - 1) for name, extent in extents.items()}
    for node in postorder(body, _unguarded):
        if not isinstance(node, Load):
            continue
        for index, extent in zip(node.indices, tensors[node.buffer].shape, strict=True):
            form = affine(index, ranges)
            low, high = affine_range(form, ranges)
            outside = low < 0 or high >= extent
            disjoint = high < 0 or low >= extent
            if disjoint or (outside and is_exact(form, ranges)):
                return (
                    f"index {format_expression(index)} runs over {low}..{high}, "
                    f"the extent is {extent}, in {format_expression(node)}"
                )
    return ""


def _unguarded(node: Expr) -> Operands:
    """The operands that are evaluated whatever a select decides."""
    return (node.condition,) if isinstance(node, Select) else children(node)
