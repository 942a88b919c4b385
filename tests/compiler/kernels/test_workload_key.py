from __future__ import annotations

from dataclasses import replace

import pytest

from tests.processes import python
from tunefarm.compiler.expr.nodes import const, mul
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType


def scaled(
    extent: int = 5, dtype: DType = DType.F32, factor: float = 2, constant: bool = False
) -> FusedKernel:
    builder = KernelBuilder()
    data = builder.input(TensorType(dtype, (extent,)), constant)
    builder.stage("mul", [("i0", extent)], lambda i: mul(data[i], const(factor, dtype)))
    return builder.kernel("mul", "mul")


def test_key_is_sixteen_hex_digits_without_the_name() -> None:
    key = workload_key(scaled())
    assert len(key) == 16
    assert int(key, 16) >= 0
    assert workload_key(replace(scaled(), name="another name")) == key


@pytest.mark.parametrize(
    "other",
    [scaled(extent=6), scaled(dtype=DType.F64), scaled(factor=3), scaled(constant=True)],
    ids=["extent", "element type", "literal", "constant input"],
)
def test_what_the_kernel_computes_changes_the_key(other: FusedKernel) -> None:
    assert workload_key(other) != workload_key(scaled())


def test_key_is_the_same_in_another_process() -> None:
    program = (
        "from tunefarm.compiler.kernels.workload_key import workload_key\n"
        "from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder\n"
        "from tunefarm.compiler.expr.nodes import const, mul\n"
        "from tunefarm.compiler.graph.ir import TensorType\n"
        "from tunefarm.compiler.types.dtypes import DType\n"
        "b = KernelBuilder()\n"
        "x = b.input(TensorType(DType.F32, (5,)), False)\n"
        "b.stage('mul', [('i0', 5)], lambda i: mul(x[i], const(2, DType.F32)))\n"
        "print(workload_key(b.kernel('n', 'mul')))\n"
    )
    result = python("-c", program, check=True)
    assert result.stdout.strip() == workload_key(scaled())
