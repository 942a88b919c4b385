"""A kernel that is always the same: what loads a core, and what a machine is tried with."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import binary
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType


def fixed_kernel() -> FusedKernel:
    """y[m, n] = sum over k of a[m, k] * b[k, n]."""
    builder = KernelBuilder()
    a = builder.input(TensorType(DType.F32, (96, 256)))
    b = builder.input(TensorType(DType.F32, (256, 128)), constant=True)
    builder.stage(
        "matmul",
        [("m", 96), ("n", 128)],
        lambda m, n, k: binary("mul", a[m, k], b[k, n]),
        reduce=[("k", 256)],
        combiner="sum",
    )
    return FusedKernel("matmul", tuple(builder.inputs), tuple(builder.stages), "matmul")
