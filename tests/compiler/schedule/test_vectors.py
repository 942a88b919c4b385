"""Schedules count vectors of f32 whatever a kernel computes with: records hold them to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.schedule.vectors import vector_lanes
from compiler.target import host_target
from compiler.types.dtypes import DType
from compiler.types.tensor_type import TensorType
from tests.compiler.schedule.small_kernels import kernel_of


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I32])
def test_every_kernel_has_the_lanes_of_f32(dtype: DType) -> None:
    kernel = kernel_of([TensorType(dtype, (9, 9))] * 2, [("matmul", ["x0", "x1"], {})])
    assert vector_lanes(kernel, replace(host_target(), vector_bytes=32)) == 8
