"""Split an axis of a kernel's result in two: [w] -> [w / 2, 2], the inverse of merging axes."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import simplify_division
from tunefarm.compiler.expr.nodes import (
    Binary,
    Const,
    Expr,
    Index,
    Load,
    add,
    binary,
    index,
    integer,
    mul,
)
from tunefarm.compiler.expr.walk import rewrite
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Role, Stage
from tunefarm.compiler.types.dtypes import DType


def split_axis(kernel: FusedKernel, axis: str, factor: int) -> FusedKernel:
    """The anchor and what follows it with `axis` as `axis_q` and, inside of it, `axis_r` < factor.

    `axis_r` has the role of a phase. `ScheduleError` where the factor does not divide the extent,
    or a stage is read at other points than its reader's own.

    y[w] = x[w // 2] * f[w % 2]     ->     y[w_q, w_r] = x[w_q] * f[w_r]
    """
    position = next(i for i, stage in enumerate(kernel.stages) if stage.name == kernel.anchor)
    before, stages = kernel.stages[:position], kernel.stages[position:]
    for stage in stages:
        extents = {item.name: item.extent for item in stage.axes}
        if axis not in extents:
            raise ScheduleError(f"{axis} is no axis of {stage.name}")
        if factor < 1 or extents[axis] % factor:
            raise ScheduleError(f"{factor} does not divide {axis} of extent {extents[axis]}")
    split = {stage.name: [item.name for item in stage.axes].index(axis) for stage in stages}
    return replace(kernel, stages=(*before, *(_split(s, axis, factor, split) for s in stages)))


def _split(stage: Stage, axis: str, factor: int, split: dict[str, int]) -> Stage:
    quotient, rest = f"{axis}_q", f"{axis}_r"
    whole = add(mul(index(quotient), integer(factor)), index(rest))
    position = split[stage.name]
    extent = stage.axes[position].extent
    pair = (Axis(quotient, extent // factor), Axis(rest, factor, Role.PHASE))
    axes = (*stage.axes[:position], *pair, *stage.axes[position + 1 :])
    ranges = {item.name: (0, item.extent - 1) for item in (*axes, *stage.reduce_axes)}

    def rule(node: Expr) -> Expr:
        if isinstance(node, Index):
            return whole if node.name == axis else node
        if isinstance(node, Load) and node.buffer in split:
            at = split[node.buffer]
            if node.indices[at] != whole:
                raise ScheduleError(f"{stage.name} reads {node.buffer} not along {axis}")
            both = (index(quotient), index(rest))
            return replace(node, indices=(*node.indices[:at], *both, *node.indices[at + 1 :]))
        if not isinstance(node, Binary) or node.left.dtype is not DType.I64:
            return node
        divides = node.op in ("floordiv", "mod")
        if divides and isinstance(node.right, Const) and int(node.right.value) > 0:
            return simplify_division(node.op, node.left, int(node.right.value), ranges)
        return binary(node.op, node.left, node.right)

    return replace(stage, axes=axes, body=rewrite(stage.body, rule))
