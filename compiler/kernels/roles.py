"""Roles: what the axes of a kernel's anchor are to each other, as facts on the axes.

They follow from how operands are indexed. Operators do not give them, and the kernel's JSON does
not hold them: kernels that come from records know nothing but their indices, and must have the
same schedules as those that come from a model. This is the one place that finds them.
"""

from __future__ import annotations

from dataclasses import replace

from compiler.expr.affine import affine
from compiler.expr.nodes import Load
from compiler.expr.walk import axes_of, loads
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.stage import Axis, Role, Stage

_GATHERED = 1 << 30


def with_roles(kernel: FusedKernel, lanes: int) -> FusedKernel:
    """The kernel with the roles of its anchor's axes, in vectors of so many lanes.

    The same kernel where no axis makes a good vector.
    """
    anchor = kernel.stage(kernel.anchor)
    if not anchor.reduce_axes or not anchor.axes:
        return kernel
    phases = {axis.name: Role.PHASE for axis in anchor.axes if axis.role is Role.PHASE}
    names = [axis.name for axis in anchor.axes if axis.name not in phases]
    vector = names[-1]
    if any(vector_stride(kernel, load, vector) > 1 for load in loads(anchor.body)):
        return kernel
    roles = dict.fromkeys(names, Role.BATCH) | phases | {vector: Role.LANE}
    blocked = anchor.axes[-1].name == vector and anchor.axes[-1].extent == lanes
    if blocked and len(names) >= 4:
        # Blocked data: [n, block, ..., row, column, lane].
        roles |= {names[1]: Role.BLOCK, names[-2]: Role.COLUMN}
        if len(names) >= 5:
            roles[names[-3]] = Role.ROW
    elif len(names) > 1:
        # Plain data: the column is an axis that some operand does not depend on.
        columns = [name for name in names[:-1] if _is_shared(anchor, name)]
        column = columns[-1] if columns else names[-2]
        rest = [name for name in names[:-1] if name != column]
        roles[column] = Role.COLUMN
        if len(names) >= 4:
            roles[rest[-1]] = Role.ROW
    for axis in anchor.reduce_axes:
        roles[axis.name] = Role.WINDOW if _is_window(anchor, axis.name) else Role.REDUCE

    def known(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(replace(axis, role=roles[axis.name]) for axis in axes)

    changed = replace(anchor, axes=known(anchor.axes), reduce_axes=known(anchor.reduce_axes))
    stages = tuple(changed if stage is anchor else stage for stage in kernel.stages)
    return replace(kernel, stages=stages)


def _is_shared(anchor: Stage, axis: str) -> bool:
    """Some load does not depend on the axis, so that tiling it reuses what was loaded."""
    return any(
        all(axis not in axes_of(item) for item in load.indices) for load in loads(anchor.body)
    )


def _is_window(anchor: Stage, axis: str) -> bool:
    """The reduce axis moves along a dimension with an axis of the plane, behind [n, channel]."""
    plane = {item.name for item in anchor.axes[2:]}
    indices = [axes_of(item) for load in loads(anchor.body) for item in load.indices]
    return any(axis in found and found & plane for found in indices)


def vector_stride(kernel: FusedKernel, load: Load, vector: str) -> int:
    """Elements between neighbours along `vector`: 0 the same element, 1 adjacent, else gathered.

    A constant can be packed so that the dimension which holds the vector axis comes last: 1.
    """
    holding = [dimension for dimension, item in enumerate(load.indices) if vector in axes_of(item)]
    if not holding:
        return 0
    coefficients = [affine(load.indices[d], {}).coefficient(vector) for d in holding]
    if len(holding) != 1 or coefficients[0] != 1:
        return _GATHERED
    last = holding[0] == len(load.indices) - 1
    constant = any(buffer.name == load.buffer and buffer.constant for buffer in kernel.inputs)
    return 1 if last or constant else _GATHERED
