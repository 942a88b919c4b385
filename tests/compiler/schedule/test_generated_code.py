"""Generated code gives the reference's result: random kernels, random points of their spaces.

Every kernel runs between guard pages on three targets: this CPU, the narrowest vectors it can run,
and vectors wider than its own, so that nothing hangs on one number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle, product
from random import Random
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.compiler.runnable_targets import runnable_targets
from tests.compiler.schedule.drawn_attention import attentions
from tests.compiler.schedule.drawn_graphs import Case, reduction_length
from tests.compiler.schedule.drawn_kernels import (
    movements,
    normalisations,
    pointwise,
    products,
    reductions,
)
from tests.compiler.schedule.drawn_moves import resampled_rows
from tests.compiler.schedule.drawn_recurrences import recurrences
from tests.compiler.schedule.drawn_rows import (
    pieced_rows,
    reduced_rows,
    rows_of_any_axes,
    running_rows,
    short_rows,
)
from tests.compiler.schedule.drawn_scatters import scatters
from tests.compiler.schedule.drawn_turns import rows_of_windows, turns
from tests.compiler.schedule.drawn_windows import (
    blocked_convolutions,
    odd_blocks,
    plain_convolutions,
    pools,
    stem_convolutions,
    transposed_convolutions,
)
from tests.compiler.schedule.guarded_run import run_guarded, targets
from tests.compiler.schedule.small_kernels import f32, inputs_for, kernel_from, kernel_of
from tunefarm.compiler.kernels.evaluate import evaluate_kernel
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.runtime.machine.threads import make_runtime
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import naive_schedule, schedule_space, untiled_schedule
from tunefarm.compiler.schedule.steps.kernel_forms import Winograd
from tunefarm.compiler.schedule.steps.loop_kinds import Vectorize
from tunefarm.compiler.schedule.steps.tiles import Reorder, Tile
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

Values: TypeAlias = npt.NDArray[Any]

TARGETS = {**targets(), **{target.cpu: target for target in runnable_targets()[1:]}}
DRAWN = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
WINOGRAD_FACTOR = 64  # its transforms multiply rounding errors

# Family, and how many kernels are drawn of it.
FAMILIES: dict[str, tuple[Callable[[int], st.SearchStrategy[list[Case]]], int]] = {
    "blocked_convolutions": (blocked_convolutions, 90),
    "odd_blocks": (odd_blocks, 90),
    "stem_convolutions": (stem_convolutions, 40),
    "transposed_convolutions": (transposed_convolutions, 80),
    "plain_convolutions": (plain_convolutions, 130),
    "products": (products, 100),
    "pools": (pools, 120),
    "reductions": (reductions, 120),
    "normalisations": (normalisations, 100),
    "pointwise": (pointwise, 150),
    "movements": (movements, 200),
    "turns": (turns, 120),
    "reduced_rows": (reduced_rows, 100),
    "rows_of_any_axes": (rows_of_any_axes, 150),
    "short_rows": (short_rows, 90),
    "running_rows": (running_rows, 150),
    "pieced_rows": (pieced_rows, 120),
    "resampled_rows": (resampled_rows, 120),
    "rows_of_windows": (rows_of_windows, 90),
    "attentions": (attentions, 120),
    "scatters": (scatters, 90),
    "recurrences": (recurrences, 100),
}


def assert_agrees(
    kernel: FusedKernel, schedule: Schedule, actual: Values, expected: Values
) -> None:
    """Integers are equal; a sum of K floats may be off by K roundings of the largest result."""
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected, strict=True)
        return
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=1.0)
    used = {expected.dtype, *(buffer.dtype.numpy for buffer in kernel.inputs)}
    roundoff = max(float(np.finfo(dtype).eps) for dtype in used if dtype.kind == "f")
    tolerance = roundoff * (reduction_length(kernel) + 32) * largest
    if any(isinstance(step, Winograd) for step in schedule.steps):
        tolerance *= WINOGRAD_FACTOR
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance, strict=True)


def drawn_target(data: st.DataObject) -> tuple[Target, int]:
    """A target, and a number of threads."""
    target = TARGETS[data.draw(st.sampled_from(sorted(TARGETS)), "target")]
    return target, data.draw(st.sampled_from([1, 2]), "threads")


def run_drawn(
    data: st.DataObject, kernel: FusedKernel, inputs: Mapping[str, Values], on: tuple[Target, int]
) -> tuple[Schedule, Values]:
    """One schedule of the kernel's, and what its code computes."""
    space = schedule_space(kernel, *on)
    candidate = space.candidate(data.draw(st.integers(0, space.size - 1), "candidate"))
    note(f"{candidate.sketch}: {space.choices(candidate)}")
    schedule = space.schedule(candidate)
    outcome = run_guarded(kernel, schedule, inputs, *on)
    assert not outcome.problem
    return schedule, outcome.output


@pytest.mark.usefixtures("small_in_parallel")
@pytest.mark.parametrize("share", [0.25, pytest.param(1.0, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_schedule_computes_the_kernel(family: str, share: float) -> None:
    strategy, examples = FAMILIES[family]

    @settings(DRAWN, max_examples=round(share * examples))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        on = drawn_target(data)
        for case in data.draw(strategy(on[0].lanes(DType.F32)), "cases"):
            schedule, output = run_drawn(data, case.kernel, case.inputs, on)
            assert_agrees(case.kernel, schedule, output, case.expected)

    check()


@pytest.mark.usefixtures("small_in_parallel")
@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize(
    ("weights", "rows"), [(DType.I8, 1), (DType.I8, 4), (DType.I16, 4)], ids=str
)
def test_schedules_of_a_recurrence_of_rounded_states_compute_it(
    target: str, weights: DType, rows: int
) -> None:
    """Integer products are exact in any order, so that all round states alike."""
    units = 24 if target == "host" else 21
    attributes: dict[str, Attribute] = {
        "kind": "LSTM",
        "activations": ("sigmoid", "tanh", "tanh"),
        "alphas": (0.0,) * 3,
        "betas": (0.0,) * 3,
        "states": str(TARGETS[target].states(rows)),
    }
    operands = ["x0", "x1", *[""] * 3, "x2", "x2", "", "x3", "x4", "x5"]
    inputs = [
        f32(2, 3, 5, 4, units),
        TensorType(weights, (2, units, 4, units)),
        f32(2, 5, units),
        TensorType(DType.I32, (2, 5)),
        f32(2, 4, units),
        TensorType(DType.I64, (1,)),
    ]
    constants = ["x1", "x4"]
    if weights is DType.I8:
        inputs.append(TensorType(DType.I32, (2, 4, units)))
        operands, constants = [*operands, "x6"], [*constants, "x6"]
    kernel = kernel_of(inputs, [("recurrence", operands, attributes)], constants)
    arrays = inputs_for(kernel)
    for buffer in kernel.inputs:
        if buffer.dtype is DType.I32 and len(buffer.shape) == 3:
            (integers,) = (arrays[b.name] for b in kernel.inputs if b.dtype is weights)
            arrays[buffer.name] = integers.sum(axis=1, dtype=np.int32)
        elif buffer.shape == (2, 4, units):  # states stay where functions are curved
            arrays[buffer.name] = np.divide(arrays[buffer.name], 100, dtype="f4")
    expected = evaluate_kernel(kernel, arrays)
    random = Random(target)
    for threads in (1, 2):
        space = schedule_space(kernel, TARGETS[target], threads)
        for candidate in (space.default(), space.candidate(random.randrange(space.size))):
            schedule = space.schedule(candidate)
            outcome = run_guarded(kernel, schedule, arrays, TARGETS[target], threads)
            assert not outcome.problem
            assert_agrees(kernel, schedule, outcome.output, expected)


def _large() -> dict[str, FusedKernel]:
    """Kernels with work enough that their default schedules run in parallel."""
    return {
        "conv": kernel_from(
            "[1,2,14,13,8] const [40,16,3,3] const [40]; conv x0 x1 x2 layout=NCHWc pads=(1,1,1,1)"
        ),
        "matmul": kernel_from("[97,64] [64,96]; matmul x0 x1; relu v0"),
        "softmax": kernel_from("[7,13,512]; softmax x0 axis=2"),
        "add": kernel_from("[97,513] [513]; add x0 x1"),
        "transpose": kernel_from("[130,129,2]; transpose x0 perm=(1,0,2)"),
    }


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["pointwise convolution", "product"])
def test_blocks_of_columns_compute_the_kernel(name: str, threads: int) -> None:
    """With a second-level cache so small that even little data is walked in blocks."""
    lanes = TARGETS["host"].lanes(DType.F32)
    kernel = {
        "pointwise convolution": kernel_of(
            [f32(1, 64 // lanes, 9, 11, lanes), f32(5 * lanes, 64, 1, 1), f32(5 * lanes)],
            [("conv", ["x0", "x1", "x2"], {"layout": "NCHWc"}), ("relu", ["v0"], {})],
            constants=["x1", "x2"],
        ),
        "product": kernel_from("[97,64] [64,43]; matmul x0 x1"),
    }[name]
    target = replace(TARGETS["host"], l2_bytes=16 * 1024)
    inputs = inputs_for(kernel)
    expected = evaluate_kernel(kernel, inputs)
    space = schedule_space(kernel, target, threads)
    sketch = space.sketches[0]
    choices = {choice.name: choice.values for choice in sketch.choices}
    orders = [order for order in choices["loops"] if str(order).startswith("columns")]
    assert orders
    default = dict(zip(choices, sketch.default, strict=True))
    rests = cycle(choices["rest"])  # each of them with several orders and tiles
    for order, tile in product(orders, choices["tile"]):
        schedule = sketch.build({**default, "loops": order, "tile": tile, "rest": next(rests)})
        outcome = run_guarded(kernel, schedule, inputs, target, threads)
        assert not outcome.problem
        assert_agrees(kernel, schedule, outcome.output, expected)


@pytest.mark.parametrize("name", _large())
def test_threads_do_not_change_the_result(name: str) -> None:
    if not make_runtime(2)[1]:
        pytest.skip("no pool on this machine")
    kernel = _large()[name]
    target = TARGETS["host"]
    inputs = inputs_for(kernel)
    expected = evaluate_kernel(kernel, inputs)
    space = schedule_space(kernel, target, 2)
    schedule = space.schedule(space.default())
    serial = run_guarded(kernel, schedule, inputs, target, 1)
    assert serial.is_parallel
    assert_agrees(kernel, schedule, serial.output, expected)
    for threads in (2, 3, 2):
        outcome = run_guarded(kernel, schedule, inputs, target, threads)
        assert not outcome.problem
        np.testing.assert_array_equal(outcome.output, serial.output)


@pytest.mark.parametrize("name", _large())
def test_the_schedules_that_tuning_is_compared_with_compute_the_kernel(name: str) -> None:
    kernel = _large()[name]
    inputs = inputs_for(kernel)
    expected = evaluate_kernel(kernel, inputs)
    for target in TARGETS.values():
        for schedule in (naive_schedule(), untiled_schedule(kernel, target)):
            outcome = run_guarded(kernel, schedule, inputs, target)
            assert not outcome.problem
            assert_agrees(kernel, schedule, outcome.output, expected)


def _rows() -> dict[str, FusedKernel]:
    """Kernels of rows that are no whole number of vectors, one per way to load and store."""
    i32, boolean = TensorType(DType.I32, (3, 21)), TensorType(DType.BOOL, (3, 21))
    return {
        "floats": kernel_from("[3,21] [21]; add x0 x1"),
        "division": kernel_of([i32, i32], [("div", ["x0", "x1"], {})]),
        "comparison": kernel_from("[3,21] [3,1]; less x0 x1"),
        "choice": kernel_of([boolean, f32(3, 21), f32(21)], [("where", ["x0", "x1", "x2"], {})]),
        "padding": kernel_from("[3,17]; pad x0 pads=(0,2,0,2)"),
        "reflection": kernel_from("[3,17]; pad x0 pads=(0,2,0,2) mode=reflect"),
        "gather": kernel_from("[21,3]; transpose x0 perm=(1,0)"),
        "sum": kernel_from("[5,3,21]; reduce_sum x0 axes=(0,) keepdims=0"),
    }


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", _rows())
def test_a_masked_vector_touches_only_elements_that_exist(name: str, target: str) -> None:
    kernel = _rows()[name]
    inputs = inputs_for(kernel)
    stage, lanes = kernel.output, TARGETS[target].lanes(DType.F32)
    axis = stage.axes[-1].name
    schedule = Schedule(
        (
            Tile(stage.name, axis, lanes, "mask"),
            *(
                [
                    Reorder(
                        stage.name, (stage.axes[0].name, f"{axis}.o", *_names(stage), f"{axis}.i")
                    )
                ]
                if stage.reduce_axes
                else []
            ),
            Vectorize(stage.name, f"{axis}.i"),
        )
    )
    outcome = run_guarded(kernel, schedule, inputs, TARGETS[target], 1)
    assert not outcome.problem
    assert_agrees(kernel, schedule, outcome.output, evaluate_kernel(kernel, inputs))


def _names(stage: Stage) -> list[str]:
    return [axis.name for axis in stage.reduce_axes]
