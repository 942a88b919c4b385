"""Kernels with accumulators: evaluated, interpreted and run natively alike, under every schedule.

Terms are such that sums are exact in the accumulator, and in the type of the terms are not.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.compiler.loops.tiny_kernels import run_loops
from tests.compiler.runnable_targets import runnable_targets
from tests.compiler.schedule.guarded_run import run_guarded, targets
from tunefarm.compiler.expr.nodes import (
    Expr,
    all_of,
    binary,
    cast,
    const,
    integer,
    mul,
    select,
    sub,
)
from tunefarm.compiler.kernels.canonicalise import canonicalise
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel, KernelBuilder
from tunefarm.compiler.kernels.verify import verify_kernel
from tunefarm.compiler.loops.verify import verify_loops
from tunefarm.compiler.schedule.apply_schedule import lower
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import naive_schedule, schedule_space
from tunefarm.compiler.schedule.steps.loop_kinds import Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite, SplitReduction
from tunefarm.compiler.schedule.steps.placement import ComputeAt
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Reorder, Tile
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, TensorType

TYPES = {
    DType.F32: (DType.F64, 1 << 20),  # terms up to 2^40: f64 sums them exactly
    DType.I8: (DType.I32, 127),
    DType.U8: (DType.I32, 255),
    DType.I16: (DType.I32, 1000),
    DType.I32: (DType.I64, 1 << 20),
}
TARGETS = {**targets(), **{target.cpu: target for target in runnable_targets()[1:]}}


def product(dtype: DType, m: int, n: int, k: int, in_body: bool, relu: bool) -> FusedKernel:
    """y[m, n] = sum over k of x[m, k] * w[k, n]; the accumulator is the body's if `in_body`."""
    builder = KernelBuilder()
    x, w = (builder.input(TensorType(dtype, shape)) for shape in ((m, k), (k, n)))
    accumulator = TYPES[dtype][0]

    def term(i: Expr, j: Expr, k: Expr) -> Expr:
        factors = x[i, k], w[k, j]
        return mul(*(cast(accumulator, item) for item in factors) if in_body else factors)

    total = builder.stage(
        "y",
        [("m", m), ("n", n)],
        term,
        reduce=[("k", k)],
        combiner="sum",
        accumulator=accumulator,
    )
    if relu:
        zero = const(0, total.dtype)
        builder.stage("relu", [("m", m), ("n", n)], lambda i, j: binary("max", total[i, j], zero))
    return builder.kernel("product", "y")


def window(dtype: DType, m: int, n: int, k: int) -> FusedKernel:
    """y[m, n] = sum over k of x[m, n + k - 1], 0 outside of the row."""
    builder = KernelBuilder()
    x = builder.input(TensorType(dtype, (m, n)))

    def term(i: Expr, j: Expr, k: Expr) -> Expr:
        at = sub(binary("add", j, k), integer(1))
        inside = all_of(binary("ge", at, integer(0)), binary("lt", at, integer(n)))
        return select(inside, x[i, at], const(0, dtype))

    builder.stage(
        "y",
        [("m", m), ("n", n)],
        term,
        reduce=[("k", k)],
        combiner="sum",
        accumulator=TYPES[dtype][0],
    )
    return builder.kernel("window", "y")


def inputs_of(kernel: FusedKernel, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    limit = TYPES[kernel.inputs[0].dtype][1]
    return {
        buffer.name: rng.integers(
            0 if buffer.dtype is DType.U8 else -limit, limit, buffer.shape, endpoint=True
        ).astype(buffer.dtype.numpy)
        for buffer in kernel.inputs
    }


def assert_all_agree(kernel: FusedKernel, schedule: Schedule, target: str, seed: int) -> None:
    inputs = inputs_of(kernel, seed)
    expected = evaluate_kernel(kernel, inputs, accumulate_double=False)
    verify_loops(lower(kernel, schedule))
    np.testing.assert_array_equal(run_loops(kernel, schedule, inputs), expected, strict=True)
    outcome = run_guarded(kernel, schedule, inputs, TARGETS[target])
    assert not outcome.problem
    np.testing.assert_array_equal(outcome.output, expected, strict=True)


TILED = (Tile("y", "n", 4), Reorder("y", ("m", "n.o", "k", "n.i")))
STEPS: dict[str, tuple[Step, ...]] = {
    "none": (),
    "vector": (*TILED, Vectorize("y", "n.i")),
    "shifted": (
        Tile("y", "n", 4, "shift"),
        Reorder("y", ("n.o", "m", "k", "n.i")),
        Unroll("y", "n.i"),
    ),
    "cached": (CacheWrite("y", "cache"), ComputeAt("cache", "y", "m", "stack")),
    "registers": (
        CacheWrite("y", "cache"),
        Tile("y", "n", 4),
        Vectorize("y", "n.i"),
        ComputeAt("cache", "y", "n.o", "register"),
        Reorder("cache", ("m", "k", "n")),
        Vectorize("cache", "n"),
    ),
    "split": (SplitReduction("y", "k", 4),),
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_step_keeps_the_accumulator(dtype: DType, steps: str) -> None:
    for k in (8, 11):
        kernel = product(dtype, 3, 13, k, in_body=False, relu=False)
        assert_all_agree(kernel, Schedule(STEPS[steps]), "host", seed=k)


def test_stage_inside_of_another_keeps_its_accumulator() -> None:
    kernel = product(DType.F32, 3, 13, 11, in_body=False, relu=True)
    schedule = Schedule(
        (
            Tile("relu", "n", 4, "mask"),
            Vectorize("relu", "n.i"),
            ComputeAt("y", "relu", "n.o", "register"),
            Reorder("y", ("m", "k", "n")),
            Vectorize("y", "n"),
        )
    )
    assert_all_agree(kernel, schedule, "host", seed=0)


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.data())
def test_every_schedule_keeps_the_accumulator(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(list(TYPES)), "type")
    m = data.draw(st.sampled_from([1, 3, 7, 13]), "m")
    n, k = (data.draw(st.sampled_from([1, 3, 7, 13, 16, 32, 45]), name) for name in "nk")
    drawn = {
        "product": product(dtype, m, n, k, data.draw(st.booleans()), data.draw(st.booleans())),
        "window": window(dtype, m, n, 3),
    }
    kernel = drawn[data.draw(st.sampled_from(list(drawn)), "kernel")]
    verify_kernel(kernel)
    canonical, _ = canonicalise(kernel)
    target = data.draw(st.sampled_from(sorted(TARGETS)), "target")
    space = schedule_space(canonical, TARGETS[target])
    candidate = space.candidate(data.draw(st.integers(0, space.size - 1), "candidate"))
    note(f"{candidate.sketch}: {space.choices(candidate)}")
    assert_all_agree(kernel, naive_schedule(), target, seed=m)
    assert_all_agree(canonical, space.schedule(candidate), target, seed=n)
