"""Changes of layout by blocks that are turned in registers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.targets import target_named
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule, schedule_space
from tunefarm.compiler.target import host_target


@pytest.mark.parametrize("channels", [20, 24, 53])
def test_no_vector_crosses_two_blocks_of_channels(channels: int) -> None:
    target = replace(host_target(), vector_bytes=64)
    data = f32(1, -(-channels // 16), 28, 28, 16)
    kernel = kernel_of([data], [("from_blocked", ["x0"], {"channels": channels})])
    loops = format_loops(lower(kernel, default_schedule(kernel, target)))
    assert "stack" in loops
    assert "//" not in loops


@pytest.mark.parametrize(("name", "vectors"), [("x86-64-v3", 8), ("x86-64-v4", 16)])
def test_lines_that_vectors_share_stay_in_the_cache(name: str, vectors: int) -> None:
    kernel = kernel_of([f32(1, 64, 56, 56)], [("transpose", ["x0"], {"perm": (0, 2, 3, 1)})])
    space = schedule_space(kernel, target_named(name))
    assert space.choices(space.default())["read"] == vectors
