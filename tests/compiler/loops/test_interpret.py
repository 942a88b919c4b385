"""The interpreter of the generated loops gives what the tensor expressions mean."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.loops.tiny_kernels import (
    LANES,
    STEP_KERNELS,
    assert_close,
    run_loops,
    tiny_kernels,
)
from tests.compiler.schedule.small_kernels import inputs_for
from tunefarm.compiler.expr.nodes import Load, add, const, index, integer
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.loops.interpret import interpret
from tunefarm.compiler.loops.ir import Dot, For, LoopKind, LoopNest, Memory, Store
from tunefarm.compiler.loops.printer import format_loops
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.spaces import naive_schedule, schedule_space
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType

TARGET = replace(host_target(), vector_bytes=4 * LANES, vector_registers=16)
TINY = tiny_kernels()


@pytest.mark.parametrize("name", TINY)
def test_loops_mean_what_the_kernel_means(name: str) -> None:
    kernel = TINY[name]
    inputs = inputs_for(kernel)
    expected = evaluate_kernel(kernel, inputs)
    schedules = [naive_schedule()]
    for threads in (1, 2):
        space = schedule_space(kernel, TARGET, threads)
        rng = random.Random(name)
        schedules += [
            space.schedule(candidate)
            for candidate in (space.default(), space.sample(rng), space.sample(rng))
        ]
    for schedule in dict.fromkeys(schedules):
        verify_loops(lower(kernel, schedule))
        assert_close(run_loops(kernel, schedule, inputs), expected)


@pytest.mark.parametrize("name", STEP_KERNELS)
def test_without_steps_the_loops_are_the_kernel(name: str) -> None:
    kernel = STEP_KERNELS[name]()
    inputs = inputs_for(kernel)
    assert_close(run_loops(kernel, naive_schedule(), inputs), evaluate_kernel(kernel, inputs))


def _copy(shift: int) -> LoopNest:
    """y[i] = x[i + shift] for 4 elements."""
    i = index("i")
    load = Load(DType.F32, "x", (add(i, integer(shift)),))
    loop = For("i", 0, 4, LoopKind.SERIAL, (Store("y", (i,), load),))
    memory = [Memory(name, DType.F32, (4,)) for name in "xy"]
    return LoopNest("copy", (memory[0],), memory[1], (loop,))


@pytest.mark.parametrize("shift", [-1, 1])
def test_an_index_out_of_range_is_an_error(shift: int) -> None:
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(interpret(_copy(0), {"x": x}), x)
    with pytest.raises(IndexError, match=r"x\["):
        interpret(_copy(shift), {"x": x})


def test_what_is_never_stored_is_not_a_number() -> None:
    nest = replace(_copy(0), body=())
    assert np.isnan(interpret(nest, {"x": np.zeros(4, np.float32)})).all()


def _dot(count: int) -> LoopNest:
    """y[i] = 1 + the sum of count products a[i, d] * b[d]."""
    i, d = index("i"), index("d")
    left, right = Load(DType.U8, "a", (i, d)), Load(DType.I8, "b", (d,))
    body = (Store("y", (i,), const(1, DType.I32)), Dot("y", (i,), "d", count, left, right))
    inputs = (Memory("a", DType.U8, (3, 4)), Memory("b", DType.I8, (4,)))
    output = Memory("y", DType.I32, (3,))
    return LoopNest("dot", inputs, output, (For("i", 0, 3, LoopKind.SERIAL, body),))


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_dot_product_is_summed_up_in_the_wide_type(count: int) -> None:
    a = np.array([[255] * 4, [1, 2, 3, 4], [0, 200, 0, 1]], np.uint8)
    b = np.array([-128, 127, -128, -128], np.int8)
    verify_loops(_dot(count))
    expected = 1 + a[:, :count].astype(np.int32) @ b[:count].astype(np.int32)
    np.testing.assert_array_equal(interpret(_dot(count), {"a": a, "b": b}), expected)


def test_a_dot_product_is_printed_with_its_variable_and_factors() -> None:
    assert "    y[i] += dot over d in 0..4 of a[i, d], b[d]\n" in format_loops(_dot(4))
