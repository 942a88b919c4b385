"""Default tiles: how many vectors are summed at once where vectors do not divide the extent."""

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
