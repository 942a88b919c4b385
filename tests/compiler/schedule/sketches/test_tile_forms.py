"""Forms of register tiles: which kernels get which, and what their vectors run along."""

from __future__ import annotations

import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.sketches.tile_forms import tile_forms
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

LANES = 8


def conv(data: TensorType, filters: TensorType, **attributes: Attribute) -> FusedKernel:
    return kernel_of([data, filters], [("conv", ["x0", "x1"], attributes)], ["x1"])


def product(left: TensorType, right: TensorType, **attributes: Attribute) -> FusedKernel:
    return kernel_of([left, right], [("matmul", ["x0", "x1"], attributes)])


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        # Dense: along the columns, or along whole vectors of output channels.
        (conv(f32(1, 3, 9, 21), f32(16, 3, 3, 3)), {"tiled": "ow", "channels": "oc.l"}),
        (conv(f32(1, 3, 9, 21), f32(3, 3, 3, 3)), {"tiled": "ow"}),
        (conv(f32(1, 3, 99), f32(16, 3, 3)), {"tiled": "ow", "channels": "oc.l"}),
        (conv(f32(1, 3, 5, 9, 21), f32(16, 3, 3, 3, 3)), {"tiled": "ow", "channels": "oc.l"}),
        # A stride of columns is read by its phases; one too long for that, element by element.
        (conv(f32(1, 3, 9, 43), f32(3, 3, 3, 3), strides=(2, 2)), {"tiled": "ow"}),
        (conv(f32(1, 3, 32, 64), f32(16, 3, 8, 8), strides=(8, 8)), {"channels": "oc.l"}),
        # The plane of a 1x1 convolution is one axis.
        (conv(f32(1, 5, 9, 21), f32(3, 5, 1, 1)), {"tiled": "oh_ow"}),
        # Planes that are as wide as a vector are no blocks of channels.
        (conv(f32(1, 3, 9, LANES), f32(16, 3, 3, 3)), {"tiled": "ow", "channels": "oc.l"}),
        (conv(f32(1, 3, 5, 9, LANES), f32(3, 3, 3, 3, 3)), {"tiled": "ow"}),
        (conv(f32(1, 5, 9, LANES), f32(3, 5, 1, 1)), {"tiled": "oh_ow"}),
        (
            conv(f32(1, 6, 9, LANES), f32(6, 1, 3, 3), groups=6),
            {"tiled_rows": "ow", "tiled": "ow"},
        ),
        # Not where filters have rows and columns of it as well: filters are packed by their axes.
        (
            kernel_of(
                [f32(1, 2, 1, 1, LANES), f32(2 * LANES, LANES, 2, 2)],
                [
                    (
                        "conv_transpose",
                        ["x0", "x1"],
                        {"layout": "NCHWc", "strides": (2, 2), "shape": (2, 2)},
                    )
                ],
                ["x1"],
            ),
            {"tiled": "oci"},
        ),
        # Groups are an axis of their own; their channels fill vectors or do not.
        (
            conv(f32(1, 6, 9, 21), f32(32, 3, 3, 3), groups=2),
            {"tiled": "ow", "channels": "oc_r.l"},
        ),
        (conv(f32(1, 6, 9, 21), f32(40, 3, 3, 3), groups=2), {"tiled": "ow"}),
        # Rows that depthwise windows share are held in registers.
        (conv(f32(1, 6, 9, 21), f32(6, 1, 3, 3), groups=6), {"tiled_rows": "ow", "tiled": "ow"}),
        # Products: turned operands are copied, long columns of them to panels.
        (product(f32(13, 19), f32(40, 19), transpose_b=True), {"tiled": "n"}),
        (product(f32(99, 19), f32(19, 40)), {"tiled": "n", "tiled_panels": "n"}),
        # Sums along rows are better where vectors would be empty, or few columns use a copy.
        (product(f32(13, 19), f32(1, 19), transpose_b=True), {}),
        (product(f32(1, 19), f32(40, 19), transpose_b=True), {}),
    ],
)
def test_forms_follow_from_strides_groups_and_constants(
    kernel: FusedKernel, expected: dict[str, str]
) -> None:
    assert {form.name: form.roles.vector for form in tile_forms(kernel, LANES)} == expected


def test_columns_are_what_vectors_are_used_again_for() -> None:
    kernel = conv(f32(1, 6, 9, 21), f32(6, 3, 3, 3), groups=2)
    (form,) = tile_forms(kernel, LANES)
    assert (form.roles.outer, form.roles.row, form.roles.column) == (("n", "oc_q"), "oh", "oc_r")


def test_rows_shorter_than_a_vector_share_a_tile() -> None:
    (form, _) = tile_forms(conv(f32(1, 3, 9, 7), f32(16, 3, 3, 3)), LANES)
    assert form.roles.block == "oh"


@pytest.mark.parametrize("outputs", [64, 16])
def test_blocks_of_a_group_share_what_they_read(outputs: int) -> None:
    kernel = conv(f32(1, 4, 9, 21, 8), f32(outputs, 16, 3, 3), groups=2, layout="NCHWc")
    (form,) = tile_forms(kernel, LANES)
    several = outputs == 64
    assert form.roles.block == ("ocb_r" if several else "ocb")
    assert form.roles.outer == (("n", "ocb_q") if several else ("n",))


def test_pointwise_convolutions_of_blocked_groups_have_one_axis_of_the_plane() -> None:
    kernel = conv(f32(1, 4, 9, 21, 8), f32(64, 16, 1, 1), groups=2, layout="NCHWc")
    assert [form.name for form in tile_forms(kernel, LANES)] == ["tiled_merged", "tiled"]
    assert {form.roles.column for form in tile_forms(kernel, LANES)} == {"oh_ow", "ow"}
