"""Schedules count vectors of f32, but where sums in f64 would fill twice the registers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.schedule.small_kernels import kernel_of
from tunefarm.compiler.schedule.vectors import lanes_along, vector_lanes
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType


@pytest.mark.parametrize(("dtype", "lanes"), [(DType.F32, 8), (DType.F64, 4), (DType.I32, 8)])
def test_a_product_has_the_lanes_of_f32_or_f64(dtype: DType, lanes: int) -> None:
    kernel = kernel_of([TensorType(dtype, (9, 9))] * 2, [("matmul", ["x0", "x1"], {})])
    assert vector_lanes(kernel, replace(host_target(), vector_bytes=32)) == lanes


def test_elements_in_f64_have_the_lanes_of_f32() -> None:
    kernel = kernel_of([TensorType(DType.F64, (9, 9))], [("relu", ["x0"], {})])
    assert vector_lanes(kernel, replace(host_target(), vector_bytes=32)) == 8


@pytest.mark.parametrize(("block", "lanes"), [(8, 8), (16, 16), (12, 16), (32, 16)])
def test_a_vector_is_no_more_than_a_block_of_channels(block: int, lanes: int) -> None:
    data = TensorType(DType.F32, (1, 2, 6, 6, block))
    weight = TensorType(DType.F32, (3 * block, 2 * block, 3, 3))
    attributes: dict[str, str | tuple[int, ...]] = {"layout": "NCHWc", "strides": (2, 2)}
    kernel = kernel_of([data, weight], [("conv", ["x0", "x1"], attributes)], ["x1"])
    assert vector_lanes(kernel, replace(host_target(), vector_bytes=64)) == lanes


def test_a_short_row_fills_a_part_of_a_register_only_where_masks_load_it() -> None:
    masked = ("avx512f", "avx512vl", "avx512dq")
    whole, pairs = (replace(host_target(), features=names) for names in (masked, ("avx2",)))
    assert [lanes_along(extent, 16, whole) for extent in (7, 16, 50)] == [7, 16, 16]
    assert [lanes_along(extent, 16, pairs) for extent in (1, 7, 13, 16, 50)] == [1, 4, 8, 16, 16]
