"""Roles: which axes of a reduction become the vector, the register tile and the outer loops."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.expr.affine import affine
from compiler.expr.nodes import Load, index
from compiler.expr.walk import axes_of, loads
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.stage import Stage
from compiler.schedule.vectors import vector_lanes
from compiler.target import Target


@dataclass(frozen=True, slots=True)
class Roles:
    """The axes of an anchor by their part in a register-tiled loop nest.

    The tile is `column` x `block` x `vector`: each step of the reduction loads one vector per block
    and one value per column and multiplies them all. `block` is "" where only the vector axis,
    split, gives several vectors. `row` is the outer axis next to the column ("" if there is none).
    """

    vector: str
    block: str
    column: str
    row: str
    outer: tuple[str, ...]
    reduce: tuple[str, ...]

    @property
    def vector_is_whole(self) -> bool:
        """The vector axis is exactly one vector: data in blocked layout."""
        return self.block != ""


def epilogue_is_plain(kernel: FusedKernel) -> bool:
    """The output reads the anchor element by element, under the anchor's axis names."""
    anchor, output = kernel.stage(kernel.anchor), kernel.output
    if output is anchor:
        return True
    if output.axes != anchor.axes or output.reduce_axes or kernel.stages[-2] is not anchor:
        return False
    own = tuple(index(axis.name) for axis in output.axes)
    return all(load.indices == own for load in loads(output.body) if load.buffer == anchor.name)


def roles_of(kernel: FusedKernel, target: Target) -> Roles | None:
    """Roles for the anchor, or None where no axis makes a good vector."""
    anchor = kernel.stage(kernel.anchor)
    if not anchor.reduce_axes or not anchor.axes or not epilogue_is_plain(kernel):
        return None
    names = [axis.name for axis in anchor.axes]
    vector = names[-1]
    strides = [vector_stride(kernel, load, vector) for load in loads(anchor.body)]
    if not all(stride in (0, 1) for stride in strides):
        return None
    reduce = tuple(axis.name for axis in anchor.reduce_axes)
    if anchor.axes[-1].extent == vector_lanes(kernel, target) and len(names) >= 4:
        # Blocked data: [n, block, ..., row, column, vector].
        block, column = names[1], names[-2]
        row = names[-3] if len(names) >= 5 else ""
        outer = tuple(name for name in names if name not in (vector, block, column, row))
        return Roles(vector, block, column, row, outer, reduce)
    if len(names) == 1:
        return Roles(vector, "", "", "", (), reduce)
    # Plain data: the column is an axis that some operand does not depend on.
    columns = [name for name in names[:-1] if _is_shared(anchor, name)]
    column = columns[-1] if columns else names[-2]
    outer = tuple(name for name in names if name not in (vector, column))
    row = outer[-1] if outer and len(names) >= 4 else ""
    return Roles(vector, "", column, row, tuple(name for name in outer if name != row), reduce)


def _is_shared(anchor: Stage, axis: str) -> bool:
    """Some load does not depend on the axis, so that tiling it reuses what was loaded."""
    return any(
        all(axis not in axes_of(item) for item in load.indices) for load in loads(anchor.body)
    )


def vector_stride(kernel: FusedKernel, load: Load, vector: str) -> int:
    """Elements between neighbours along `vector`: 0 the same element, 1 adjacent, else gathered.

    A constant can be packed so that the dimension which holds the vector axis comes last: 1.
    """
    holding = [dimension for dimension, item in enumerate(load.indices) if vector in axes_of(item)]
    if not holding:
        return 0
    coefficients = [affine(load.indices[d], {}).coefficient(vector) for d in holding]
    if len(holding) != 1 or coefficients[0] != 1:
        return 1 << 30
    last = holding[0] == len(load.indices) - 1
    constant = any(buffer.name == load.buffer and buffer.constant for buffer in kernel.inputs)
    return 1 if last or constant else 1 << 30
