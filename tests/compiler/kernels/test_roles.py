"""Roles: found in how operands are indexed, and no part of what a kernel is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_from, kernel_of
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel, ValidExtent
from tunefarm.compiler.kernels.merge_axes import merge_axes
from tunefarm.compiler.kernels.roles import channel_block, with_roles
from tunefarm.compiler.kernels.serialize import kernel_from_json, kernel_to_json
from tunefarm.compiler.kernels.split_rows import split_rows
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

BLOCKED: dict[str, Attribute] = {"layout": "NCHWc", "pads": (1, 1, 1, 1)}
STRIDED: dict[str, Attribute] = {"kernel": (2, 2), "strides": (2, 2), "shape": (4, 4)}
CONV = kernel_of([f32(1, 2, 7, 9, 8), f32(24, 16, 3, 3)], [("conv", ["x0", "x1"], BLOCKED)], ["x1"])


def roles(kernel: FusedKernel) -> dict[str, str]:
    anchor = kernel.stage(kernel.anchor)
    return {axis.name: str(axis.role) for axis in (*anchor.axes, *anchor.reduce_axes)}


def plain(operator: str, inputs: list[TensorType], attributes: dict[str, Attribute]) -> FusedKernel:
    names = [f"x{i}" for i in range(len(inputs))]
    return kernel_of(inputs, [(operator, names, attributes)], names[1:])


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (CONV, "n=batch ocb=block oh=row ow=column oci=lane icb=reduce ici=reduce "
         "kh=window kw=window"),
        (plain("conv", [f32(1, 4, 7, 9), f32(6, 2, 3, 3)], {"groups": 2}),
         "n=batch oc=batch oh=column ow=lane ic=reduce kh=window kw=window"),
        (plain("conv", [f32(1, 4, 40, 1), f32(16, 4, 3, 1)], {}),
         "n=row oc=column oh=lane ow=batch ic=reduce kh=window kw=window"),
        (kernel_from("[1,2,40,1,8] const [24,16,5,1]; conv x0 x1 layout=NCHWc"),
         "n=batch ocb=block oh=column ow=row oci=lane icb=reduce ici=reduce "
         "kh=window kw=window"),
        (plain("conv_transpose", [f32(1, 4, 7, 9), f32(4, 5, 3, 3)], {"shape": (9, 11)}),
         "n=batch oc=column oh=row ow=lane ic=reduce kh=window kw=window"),
        (plain("matmul", [f32(13, 19), f32(19, 40)], {}), "m=column n=lane k=reduce"),
        (plain("matmul", [f32(3, 13, 19), f32(3, 19, 40)], {}),
         "b0=batch m=column n=lane k=reduce"),
    ],
)  # fmt: skip
def test_roles_follow_from_indices(kernel: FusedKernel, expected: str) -> None:
    found = roles(with_roles(kernel, 8))
    assert found == dict(item.split("=") for item in expected.split())


def test_channels_lie_in_blocks_where_a_constant_has_them_in_one_axis() -> None:
    assert channel_block(CONV) == 8
    assert channel_block(plain("conv", [f32(1, 4, 7, 9), f32(6, 2, 3, 3)], {"groups": 2})) == 0
    assert channel_block(plain("matmul", [f32(3, 13, 19), f32(3, 19, 40)], {})) == 0


@pytest.mark.parametrize(
    ("groups", "rows", "column"),
    [(256, 4, "m_q"), (8, 256, "m_r"), (16, 8, "m_r")],
)
def test_a_tile_is_along_the_much_longer_of_two_dynamic_axes(
    groups: int, rows: int, column: str
) -> None:
    kernel = plain("matmul", [f32(groups * rows, 19), f32(19, 40)], {})
    sizes = Buffer("sizes", DType.I64, (2,))
    limits = (ValidExtent(40, rows, "sizes", 0), ValidExtent(40 * rows, groups, "sizes", 1))
    dynamic = replace(kernel, inputs=(*kernel.inputs, sizes), limits=limits)
    found = roles(with_roles(split_rows(dynamic), 8))
    assert [name for name, role in found.items() if role == "column"] == [column]


def test_an_axis_that_operands_gather_along_gives_none() -> None:
    kernel = kernel_from("[16,40] [24,40]; matmul x0 x1 transpose_b=True")
    assert set(roles(with_roles(kernel, 8)).values()) == {"None"}


def test_blocks_of_other_widths_than_a_vector_are_plain_data() -> None:
    assert roles(with_roles(CONV, 16))["ocb"] != "block"


def test_a_record_gives_the_same_roles_and_roles_leave_the_key_alone() -> None:
    known = with_roles(CONV, 8)
    assert known == CONV and workload_key(known) == workload_key(CONV)
    again = kernel_from_json(kernel_to_json(known))
    assert roles(again).keys() == roles(known).keys() and set(roles(again).values()) == {"None"}
    assert roles(with_roles(again, 8)) == roles(known)


def test_merged_axes_have_the_role_of_the_second() -> None:
    attributes: dict[str, Attribute] = {"layout": "NCHWc"}
    pointwise = plain("conv", [f32(1, 2, 7, 9, 8), f32(24, 16, 1, 1)], attributes)
    merged = merge_axes(with_roles(pointwise, 8), "oh", "ow")
    assert roles(merged)["oh_ow"] == "column" and roles(merged)["ocb"] == "block"
