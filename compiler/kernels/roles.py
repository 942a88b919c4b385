"""Roles: what the axes of a kernel's anchor are to each other, as facts on the axes.

They follow from how operands are indexed. Operators do not give them, and the kernel's JSON does
not hold them: kernels that come from records know nothing but their indices, and must have the
same schedules as those that come from a model. This is the one place that finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Load, binary, index, integer
from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Role, Stage

_GATHERED = 1 << 30
MUCH_LONGER = 4  # times: a tile along such an axis has rows where there is one sequence


def with_roles(kernel: FusedKernel, lanes: int) -> FusedKernel:
    """The kernel with the roles of its anchor's axes, in vectors of so many lanes.

    The same kernel where no axis makes a good vector.
    """
    anchor = kernel.stage(kernel.anchor)
    if not anchor.reduce_axes or not anchor.axes:
        return kernel
    phases = {axis.name: Role.PHASE for axis in anchor.axes if axis.role is Role.PHASE}
    others = [axis for axis in anchor.axes if axis.name not in phases]
    for axes in (_behind_ones(others), others):
        vector = axes[-1].name
        strides = [vector_stride(kernel, load, vector, lanes) for load in loads(anchor.body)]
        if max(strides, default=0) <= 1:
            break
    else:
        return kernel
    behind = anchor.axes[-1].name == vector
    blocked = _blocked_roles(anchor, axes, lanes) if behind else None
    roles = phases | (blocked or _plain_roles(anchor, axes, lanes, bool(kernel.limits)))
    for axis in anchor.reduce_axes:
        roles[axis.name] = Role.WINDOW if _is_window(anchor, axis.name) else Role.REDUCE

    def known(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(replace(axis, role=roles[axis.name]) for axis in axes)

    changed = replace(anchor, axes=known(anchor.axes), reduce_axes=known(anchor.reduce_axes))
    stages = tuple(changed if stage is anchor else stage for stage in kernel.stages)
    return replace(kernel, stages=stages)


def _behind_ones(axes: Sequence[Axis]) -> list[Axis]:
    """The axes with those of one point in the end first: of one pixel, channels are adjacent."""
    many = len(axes)
    while many and axes[many - 1].extent == 1:
        many -= 1
    return [*axes[many:], *axes[:many]]


def _blocked_roles(anchor: Stage, axes: Sequence[Axis], lanes: int) -> dict[str, Role] | None:
    """Of [n, block, ..., row, column, lane], where the last axis is a block of channels."""
    names = [axis.name for axis in axes]
    if axes[-1].extent != lanes or len(names) < 4:
        return None
    block = _block_of(anchor, axes, lanes)
    row, column = axes[-3:-1]
    if column.extent == 1 < row.extent and row.name != block:
        row, column = column, row
    roles = dict.fromkeys(names, Role.BATCH) | {names[-1]: Role.LANE, column.name: Role.COLUMN}
    if row.name != block:
        roles[row.name] = Role.ROW
    return roles | {block: Role.BLOCK}


def _block_of(anchor: Stage, axes: Sequence[Axis], lanes: int) -> str:
    """The axis that runs over blocks: an operand knows its channels by one number."""
    lane = axes[-1].name
    for load in loads(anchor.body):
        for item in load.indices:
            form = affine(item, {})
            blocks = [a.name for a in axes[:-2] if form.coefficient(a.name) == lanes]
            if form.coefficient(lane) == 1 and blocks:
                return blocks[-1]
    return axes[1].name


def channel_block(kernel: FusedKernel) -> int:
    """The channels of the blocks that a convolution's result lies in, 0 where that is not known.

    Of [n, block, ..., lane] a constant knows the channel by one number, block * channels + lane.
    """
    anchor = kernel.stage(kernel.anchor)
    if not anchor.reduce_axes or len(anchor.axes) < 4:
        return 0
    *outer, lane = anchor.axes
    constants = {buffer.name for buffer in kernel.inputs if buffer.constant}
    for load in loads(anchor.body):
        for item in load.indices if load.buffer in constants else ():
            form = affine(item, {})
            if form.coefficient(lane.name) == 1 and any(
                form.coefficient(axis.name) == lane.extent for axis in outer
            ):
                return lane.extent
    return 0


def _plain_roles(
    anchor: Stage, axes: Sequence[Axis], lanes: int, is_dynamic: bool
) -> dict[str, Role]:
    """Of plain data, whose last axis fills vectors.

    The column is an axis that the operands with vectors do not depend on, so that each vector
    serves several columns; else one that another operand does not depend on: the last of them, or
    a much longer one where sizes are dynamic, as of 256 steps of up to 4 sequences. Where a row is
    no more than a vector, a tile has several rows.
    """
    *names, vector = (axis.name for axis in axes)
    roles = dict.fromkeys(names, Role.BATCH) | {vector: Role.LANE}
    if not names:
        return roles
    read = [
        {name for item in load.indices for name in axes_of(item)} for load in loads(anchor.body)
    ]
    moving = [axes for axes in read if vector in axes]
    reused = [name for name in names if not any(name in axes for axes in moving)]
    shared = [name for name in names if any(name not in axes for axes in read)]
    column = (reused or shared or names)[-1]
    if is_dynamic and reused:
        extents = {axis.name: axis.extent for axis in axes}
        longest = max(reused, key=extents.__getitem__)
        if extents[longest] >= MUCH_LONGER * extents[column]:
            column = longest
    roles[column] = Role.COLUMN
    rest = [name for name in names if name != column]
    rows = rest[-1:] if column in reused and rest and rest[-1] in shared else []
    if rows:
        short = axes[-1].extent <= lanes
        roles[rows[0]] = Role.BLOCK if short else Role.ROW
    return roles


def _is_window(anchor: Stage, axis: str) -> bool:
    """The reduce axis moves along a dimension with an axis of the plane, behind [n, channel]."""
    plane = {item.name for item in anchor.axes[2:]}
    indices = [axes_of(item) for load in loads(anchor.body) for item in load.indices]
    return any(axis in found and found & plane for found in indices)


def vector_stride(kernel: FusedKernel, load: Load, vector: str, lanes: int) -> int:
    """Elements between neighbours along `vector`: 0 the same element, 1 adjacent, else gathered.

    Dimensions of one element behind change nothing. A constant can be packed so that the dimension
    which holds the vector axis comes last: 1. So is what was packed in vectors,
    [..., v // lanes, ..., v % lanes].
    """
    holding = [dimension for dimension, item in enumerate(load.indices) if vector in axes_of(item)]
    if not holding:
        return 0
    last = all(extent == 1 for extent in _shape(kernel, load.buffer)[holding[-1] + 1 :])
    if last and len(holding) == 2:
        own = [binary(op, index(vector), integer(lanes)) for op in ("floordiv", "mod")]
        return 1 if own == [load.indices[dimension] for dimension in holding] else _GATHERED
    coefficient = affine(load.indices[holding[0]], {}).coefficient(vector)
    if len(holding) != 1 or coefficient < 1:
        return _GATHERED
    constant = any(buffer.name == load.buffer and buffer.constant for buffer in kernel.inputs)
    return coefficient if last or (constant and coefficient == 1) else _GATHERED


def _shape(kernel: FusedKernel, name: str) -> tuple[int, ...]:
    """The extents of an input or of a stage."""
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    return (shapes | {stage.name: stage.shape for stage in kernel.stages})[name]
