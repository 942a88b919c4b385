"""Work that is counted: every extent, every operation, and nothing that is free."""

from __future__ import annotations

from tests.compiler.kernels.matmul import matmul_kernel
from tunefarm.compiler.expr.nodes import binary, const, unary
from tunefarm.compiler.kernels.count_work import kernel_bytes, kernel_flops
from tunefarm.compiler.kernels.kernel import KernelBuilder
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType


def test_every_extent_counts() -> None:
    kernel = matmul_kernel(1, 7, 13)
    assert kernel_flops(kernel) == 2 * 7 * 13
    assert kernel_bytes(kernel) == 4 * (13 + 13 * 7 + 7)


def test_each_stage_and_operation_counts_once() -> None:
    builder = KernelBuilder()
    x = builder.input(TensorType(DType.F32, (5, 3)))
    one = const(1.0, DType.F32)
    axes = [("i", 5), ("j", 3)]
    y = builder.stage("y", axes, lambda i, j: unary("exp", binary("add", x[i, j], one)))
    builder.stage("z", axes, lambda i, j: y[i, j])
    kernel = builder.kernel("two", "y")
    assert kernel_flops(kernel) == 2 * 15  # the copy in z is free
    assert kernel_bytes(kernel) == 4 * (15 + 15)
