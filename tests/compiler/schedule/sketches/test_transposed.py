"""Changes of layout by blocks that are turned in registers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule
from tunefarm.compiler.target import host_target


@pytest.mark.parametrize("channels", [20, 24, 53])
def test_no_vector_crosses_two_blocks_of_channels(channels: int) -> None:
    target = replace(host_target(), vector_bytes=64)
    data = f32(1, -(-channels // 16), 28, 28, 16)
    kernel = kernel_of([data], [("from_blocked", ["x0"], {"channels": channels})])
    loops = format_loops(lower(kernel, default_schedule(kernel, target)))
    assert "stack" in loops
    assert "//" not in loops
