"""Defaults of tiled reductions: vectors that are summed at once, and the order of the sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_from, kernel_of
from tests.targets import target_named
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel, ValidExtent
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.schedule.steps.tiles import Partition
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import Algorithm
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

ONE_ROW = kernel_from("[1,512] const [512,100]; matmul x0 x1")
PIXELS = kernel_from("[1,16,14,14] const [512,16,1,1]; conv x0 x1")


def default_of(kernel: FusedKernel, target: str) -> dict[str, Any]:
    """The choices of the kernel's default schedule."""
    space = schedule_space(kernel, target_named(target))
    return dict(space.choices(space.default()))


@pytest.mark.parametrize("kernel", [ONE_ROW, PIXELS], ids=["one row", "pixels"])
def test_a_smaller_last_tile_does_not_make_tiles_one_vector_wide(kernel: FusedKernel) -> None:
    target = target_named("x86-64-v4")
    space = schedule_space(kernel, target)
    tile = space.choices(space.default())["tile"]
    assert isinstance(tile, tuple) and int(tile[1]) > 1


@pytest.mark.parametrize("rows", [200, 512])
@pytest.mark.parametrize("columns", [512, 1000, 1024])
def test_sums_down_long_rows_read_several_vectors_of_each(rows: int, columns: int) -> None:
    kernel = kernel_of(
        [f32(rows, columns)], [("reduce_sum", ["x0"], {"axes": (0,), "keepdims": True})]
    )
    tile = default_of(kernel, "x86-64-v4")["tile"]
    assert isinstance(tile, tuple) and int(tile[1]) >= 8


def test_sums_go_over_unpacked_weights_as_they_lie() -> None:
    types = [f32(1, 8, 500), f32(256, 8, 5)]
    kernel = kernel_of(types, [("conv", ["x0", "x1"], {})], ["x1"])
    assert default_of(kernel, "x86-64-v3")["reduce"] == ("ic", "kw")


def test_axes_of_one_point_are_outside_of_those_that_are_unrolled() -> None:
    kernel = kernel_from("[1,16,14,14] const [8,16,1,1]; conv x0 x1")
    default = default_of(kernel, "x86-64-v3")
    assert default["reduce"][-1] == "ic" and default["unroll"][0] > 1


def test_tiles_leave_registers_for_factors_that_are_widened() -> None:
    factors = [TensorType(DType.BF16, (128, 768)), TensorType(DType.BF16, (768, 768))]
    kernel = kernel_of(factors, [("matmul", ["x0", "x1"], {})], ["x1"])
    default = default_of(kernel, "x86-64-v3")
    columns, vectors = default["tile"]
    assert default["factors"] == "widened"
    assert columns * vectors + vectors + 1 + 2 <= 16


def test_tiles_of_dynamic_rows_suit_short_ones_too() -> None:
    """13 rows are one tile where they are static; most smaller numbers of them are not."""
    static = kernel_from("[13,64] const [64,64]; matmul x0 x1")
    sizes = Buffer("in2", DType.I64, (1,))
    limits = (ValidExtent(64, 13, "in2", 0),)
    dynamic = replace(static, inputs=(*static.inputs, sizes), limits=limits)
    (rows, _), (fewer, _) = (default_of(k, "x86-64-v4")["tile"] for k in (static, dynamic))
    assert rows == 13 and fewer < 13


def test_forms_are_compared_by_dynamic_rows_of_all_lengths() -> None:
    """Tiles of channels leave more of short rows over than vectors along them do."""
    conv = ("conv", ["x0", "x1"], {"strides": (2, 1), "pads": (1, 1, 1, 1)})
    static = kernel_of([f32(2, 256, 8, 80), f32(384, 256, 3, 3)], [conv], ["x1"])
    sizes = Buffer("in2", DType.I64, (1,))
    limits = (ValidExtent(1, 80, "in2", 0),)
    dynamic = replace(static, inputs=(*static.inputs, sizes), limits=limits)
    space = schedule_space(dynamic, target_named("x86-64-v4"))
    assert space.default().sketch == "tiled"


def test_depthwise_tiles_of_dynamic_rows_are_of_one_block() -> None:
    """Blocks share nothing, and tiles for the rest of a row would be as many times as large."""
    attributes: dict[str, Attribute] = {"groups": 240, "pads": (2, 2, 2, 2), "layout": "NCHWc"}
    conv = ("conv", ["x0", "x1"], attributes)
    blocked = [f32(2, 15, 12, 160, 16), f32(240, 1, 5, 5)]
    static = kernel_of(blocked, [conv], ["x1"])
    sizes = Buffer("in2", DType.I64, (1,))
    limits = (ValidExtent(16, 160, "in2", 0),)
    dynamic = replace(static, inputs=(*static.inputs, sizes), limits=limits)
    assert default_of(dynamic, "x86-64-v4")["tile"][1] == 1


@pytest.mark.parametrize(
    ("stride", "width"),
    [(2, 40), (1, 40), (1, 48)],
    ids=["no border", "a border behind whole tiles", "a border in the last tile"],
)
def test_no_tiles_of_a_dynamic_row_stand_alone(stride: int, width: int) -> None:
    """Each that does is all of the code of a tile again; static ones do on either side."""
    attributes: dict[str, Attribute] = {
        "strides": (stride, stride),
        "pads": (1, 1, 1, 1),
        "layout": "NCHWc",
    }
    blocked = [f32(1, 4, 8, stride * width, 16), f32(64, 64, 3, 3)]
    static = kernel_of(blocked, [("conv", ["x0", "x1"], attributes)], ["x1"])
    sizes = Buffer("in2", DType.I64, (1,))
    limits = (ValidExtent(16, width, "in2", 0),)
    dynamic = replace(static, inputs=(*static.inputs, sizes), limits=limits)
    for kernel, expected in ((dynamic, []), (static, [(1, 1)])):
        space = schedule_space(kernel, target_named("x86-64-v4"))
        direct = next(sketch for sketch in space.sketches if sketch.algorithm is Algorithm.DIRECT)
        names = (choice.name for choice in direct.choices)
        schedule = direct.build({**dict(zip(names, direct.default, strict=True)), "tile": (6, 4)})
        cuts = [step for step in schedule.steps if isinstance(step, Partition)]
        assert [(cut.first, cut.last) for cut in cuts] == expected


def test_tiles_of_a_dynamic_batch_suit_one_row_and_many_where_weights_are_widened() -> None:
    """The few sums of one row of a tall tile wait for each other; flat ones widen for each row."""
    data = [f32(1, 20, 8, 3, 256), TensorType(DType.I8, (1, 256, 3, 256)), f32(1, 3, 256)]
    functions: dict[str, Attribute] = {
        "activations": ("sigmoid", "tanh"),
        "alphas": (0.0, 0.0),
        "betas": (0.0, 0.0),
        "linear_before_reset": True,
        "states": "f32",
    }
    node = ("recurrence", ["x0", "x1", *[""] * 7, "x2"], {"kind": "GRU", **functions})
    static = kernel_of(data, [node], ["x1", "x2"])
    number = len(static.inputs)
    sizes = Buffer(f"in{number}", DType.I64, (1,))
    limits = (ValidExtent(256, 8, sizes.name, 0),)
    dynamic = replace(static, inputs=(*static.inputs, sizes), limits=limits)
    tiles = [default_of(kernel, "x86-64-v4")["product"] for kernel in (static, dynamic)]
    assert tiles == [(8, 1), (2, 4)]
