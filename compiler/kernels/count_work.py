"""Count work: the arithmetic and the data of a kernel, whatever its schedule does with them."""

from __future__ import annotations

import math

from tunefarm.compiler.expr.nodes import Binary, Cast, Expr, Select, Unary
from tunefarm.compiler.expr.walk import children, postorder
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.running import running_reduction
from tunefarm.compiler.kernels.scatter import searched_updates
from tunefarm.compiler.kernels.stage import Stage


def kernel_flops(kernel: FusedKernel) -> int:
    """Arithmetic operations on values of one call; indices, loads and conversions are free."""
    return sum(
        iterations(stage) * (_operations(stage.body) + bool(stage.reduce_axes))
        for stage in kernel.stages
    )


def kernel_iterations(kernel: FusedKernel) -> int:
    """How often the bodies of all stages are evaluated in one call."""
    return sum(map(iterations, kernel.stages))


def kernel_bytes(kernel: FusedKernel) -> int:
    """Bytes of all inputs and of the output."""
    inputs = sum(buffer.type.bytes for buffer in kernel.inputs)
    return inputs + elements(kernel.output) * kernel.output.dtype.bytes


def written_size(kernel: FusedKernel) -> int:
    """Nodes of the largest stage's expression where shared parts are written out each time.

    Code for the sides of a select shares nothing, so this bounds the code of a kernel.
    """
    return max(_written(stage.body) for stage in kernel.stages)


def _written(expression: Expr) -> int:
    sizes: dict[int, int] = {}
    for node in postorder(expression):
        sizes[id(node)] = 1 + sum(sizes[id(operand)] for operand in children(node))
    return sizes[id(expression)]


def elements(stage: Stage) -> int:
    """Elements of the stage's result."""
    return math.prod(axis.extent for axis in stage.axes)


def iterations(stage: Stage) -> int:
    """How often the stage's body is evaluated; once per element of a running reduction.

    Of a search for updates once for each, and once for each element that has none.
    """
    if running_reduction(stage) is not None:
        return elements(stage)
    searched = searched_updates(stage)
    if searched is not None:
        extent = next(axis.extent for axis in stage.axes if axis.name == searched.axis)
        return elements(stage) // extent * (extent + searched.updates.extent)
    return math.prod(axis.extent for axis in (*stage.axes, *stage.reduce_axes))


def _operations(expression: Expr) -> int:
    """Operations of the expression written out; shared parts are looked at once."""
    counts: dict[int, int] = {}
    for node in postorder(expression):
        match node:
            case Unary(operand=operand):
                count = 1 + counts[id(operand)]
            case Binary(left=left, right=right):
                count = 1 + counts[id(left)] + counts[id(right)]
            case Select(then=then, otherwise=otherwise):
                count = max(counts[id(then)], counts[id(otherwise)])
            case Cast(operand=operand):
                count = counts[id(operand)]
            case _:
                count = 0
        counts[id(node)] = count
    return counts[id(expression)]
