"""Defaults of tiled reductions: vectors that are summed at once, and the order of the sums."""

from __future__ import annotations

import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target
from tunefarm.configs.settings import load_target

ONE_ROW = kernel_of([f32(1, 512), f32(512, 100)], [("matmul", ["x0", "x1"], {})], ["x1"])
PIXELS = kernel_of([f32(1, 16, 14, 14), f32(512, 16, 1, 1)], [("conv", ["x0", "x1"], {})], ["x1"])


@pytest.mark.parametrize("kernel", [ONE_ROW, PIXELS], ids=["one row", "pixels"])
def test_a_smaller_last_tile_does_not_make_tiles_one_vector_wide(kernel: FusedKernel) -> None:
    target = Target.from_json(load_target("x86-64-v4").model_dump())
    space = schedule_space(kernel, target)
    tile = space.choices(space.default())["tile"]
    assert isinstance(tile, tuple) and int(tile[1]) > 1


@pytest.mark.parametrize(
    ("channels", "columns", "first"),
    [(64, 2048, "ic"), (256, 500, "ic"), (32, 3072, "ic"), (8, 500, "kw"), (8, 2048, "kw")],
    ids=["a page apart", "many", "few a page apart", "few", "fitting pages"],
)
def test_channels_are_outside_of_taps_where_their_rows_leave_the_cache(
    channels: int, columns: int, first: str
) -> None:
    types = [f32(1, channels, columns), f32(256, channels, 5)]
    kernel = kernel_of(types, [("conv", ["x0", "x1"], {})], ["x1"])
    target = Target.from_json(load_target("x86-64-v3").model_dump())
    space = schedule_space(kernel, target)
    (tiled,) = [sketch for sketch in space.sketches if sketch.name == "tiled"]
    default = dict(zip((choice.name for choice in tiled.choices), tiled.default, strict=True))
    orders = {choice.name: choice.values for choice in tiled.choices}["reduce"]
    chosen = default["reduce"]
    assert isinstance(chosen, tuple) and chosen[0] == first
    assert {order[0] for order in orders if isinstance(order, tuple)} == {"ic", "kw"}
