"""Count work: the arithmetic and the data of a kernel, whatever its schedule does with them."""

from __future__ import annotations

from compiler.kernels.expr import Binary, Cast, Expr, Select, Stage, Unary
from compiler.kernels.kernel import FusedKernel


def kernel_flops(kernel: FusedKernel) -> int:
    """Arithmetic operations on values of one call; indices, loads and conversions are free."""
    total = 0
    for stage in kernel.stages:
        iterations = elements(stage)
        for axis in stage.reduce_axes:
            iterations *= axis.extent
        total += iterations * (_operations(stage.body) + bool(stage.reduce_axes))
    return total


def kernel_bytes(kernel: FusedKernel) -> int:
    """Bytes of all inputs and of the output."""
    inputs = sum(buffer.type.bytes for buffer in kernel.inputs)
    return inputs + elements(kernel.output) * kernel.output.dtype.bytes


def elements(stage: Stage) -> int:
    """Elements of the stage's result."""
    count = 1
    for axis in stage.axes:
        count *= axis.extent
    return count


def _operations(expression: Expr) -> int:
    match expression:
        case Unary(operand=operand):
            return 1 + _operations(operand)
        case Binary(left=left, right=right):
            return 1 + _operations(left) + _operations(right)
        case Select(then=then, otherwise=otherwise):
            return max(_operations(then), _operations(otherwise))
        case Cast(operand=operand):
            return _operations(operand)
        case _:
            return 0
