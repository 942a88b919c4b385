"""A matrix multiplication, for tests that need a kernel and do not care which."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr, mul
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType


def matmul_kernel(m: int = 32, n: int = 48, k: int = 64) -> FusedKernel:
    """A plain matrix multiplication."""
    builder = KernelBuilder()
    a = builder.input(TensorType(DType.F32, (m, k)))
    b = builder.input(TensorType(DType.F32, (k, n)), constant=True)

    def body(i: Expr, j: Expr, r: Expr) -> Expr:
        return mul(a[i, r], b[r, j])

    builder.stage("matmul", [("m", m), ("n", n)], body, reduce=[("k", k)], combiner="sum")
    return builder.kernel("matmul", "matmul")
