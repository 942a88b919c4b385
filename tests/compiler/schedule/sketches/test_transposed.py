"""Changes of layout by blocks that are turned in registers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.targets import target_named
from tunefarm.compiler.kernels.kernel import Buffer, ValidExtent
from tunefarm.compiler.loops.interpret import interpret
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import default_schedule, schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType


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


def test_rows_that_end_at_run_time_are_inside_of_the_blocks_that_are_read() -> None:
    """Else each row writes to all channels, as many streams as there are."""
    blocked = [f32(1, 6, 160, 160, 16)]
    static = kernel_of(blocked, [("from_blocked", ["x0"], {"channels": 96})])
    sizes = Buffer("in1", DType.I64, (2,))
    limits = (ValidExtent(1, 160, "in1", 1), ValidExtent(160, 160, "in1", 0))
    dynamic = replace(static, inputs=(*static.inputs, sizes), limits=limits)
    target = target_named("x86-64-v4")
    loops = format_loops(lower(dynamic, default_schedule(dynamic, target)))
    channels, rows = loops.index("for i1.o in"), loops.index("for i2 in")
    assert channels < rows


def test_rows_inside_of_blocks_move_the_same_whatever_the_order() -> None:
    static = kernel_of([f32(2, 3, 5, 37, 8)], [("from_blocked", ["x0"], {"channels": 24})])
    sizes = Buffer("in1", DType.I64, (2,))
    limits = (ValidExtent(1, 37, "in1", 1), ValidExtent(37, 5, "in1", 0))
    dynamic = replace(static, inputs=(*static.inputs, sizes), limits=limits)
    data = np.random.default_rng(0).standard_normal((2, 3, 5, 37, 8)).astype(np.float32)
    expected = data.transpose(0, 1, 4, 2, 3).reshape(2, 24, 5, 37)
    space = schedule_space(dynamic, target_named("x86-64-v3"))
    (sketch,) = (sketch for sketch in space.sketches if sketch.name == "transposed")
    names = [choice.name for choice in sketch.choices]
    for order in ("read", "written"):
        values = {**dict(zip(names, sketch.default, strict=True)), "order": order}
        nest = lower(dynamic, sketch.build(values))
        inputs = {"in0": data, "in1": np.array([3, 21])}
        found = interpret(nest, inputs)
        np.testing.assert_array_equal(found[:, :, :3, :21], expected[:, :, :3, :21])
