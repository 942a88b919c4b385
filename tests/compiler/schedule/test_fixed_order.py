"""Sums in a fixed order: all schedules, thread counts and CPUs of a family give the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.compiler.graph.graph_helpers import random_inputs
from tests.compiler.schedule.drawn_graphs import Case
from tests.compiler.schedule.drawn_limits import limits
from tests.compiler.schedule.guarded_run import run_guarded
from tests.compiler.schedule.small_kernels import f32, inputs_for, kernel_of
from tests.compiler.schedule.test_generated_code import DRAWN, FAMILIES
from tests.compiler.schedule.test_limited_kernels import STRATEGIES
from tests.targets import target_named
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo.models import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.split_rows import split_rows
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.machine.check_target import can_run
from tunefarm.compiler.schedule.fixed_order import check_order, common_target, sum_orders
from tunefarm.compiler.schedule.schedule import Schedule, ScheduleChoice
from tunefarm.compiler.schedule.spaces import SpaceCache, fixed_order, schedule_space
from tunefarm.compiler.target import Target, baseline_target
from tunefarm.compiler.types.numerics import DETERMINISTIC_NUMERICS
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.configs.errors import SettingsError

FAMILY = [t for t in map(target_named, ("x86-64-v3", "x86-64-v4")) if can_run(t)]
THREADS = (1, 2, 7)
EVERY = [(target, threads) for target in FAMILY for threads in THREADS]
PAIRS = EVERY[::2]
"""Each thread count on one target: with one thread and with many on the first."""
DETERMINISTIC = DETERMINISTIC_NUMERICS.name

pytestmark = pytest.mark.skipif(not FAMILY, reason="no CPU of a family with two kinds of vectors")


def conv() -> FusedKernel:
    """A convolution with padding, whose channels and window can be summed in several orders."""
    return kernel_of(
        [f32(1, 2, 9, 7, 16), f32(32, 32, 3, 3), f32(32)],
        [("conv", ["x0", "x1", "x2"], {"layout": "NCHWc", "pads": (1, 1, 1, 1)})],
        constants=["x1", "x2"],
    )


def result(
    kernel: FusedKernel, schedule: Schedule, inputs: dict[str, Array], target: Target, threads: int
) -> Array:
    """What the kernel's code gives under a schedule, with the rounding of deterministic builds."""
    outcome = run_guarded(kernel, schedule, inputs, target, threads, fixed_rounding=True)
    assert not outcome.problem
    return outcome.output


def assert_same(one: Array, other: Array) -> None:
    """Equal bits, but for those of what is no number."""
    if one.dtype.kind == "f":
        numbers = ~np.isnan(one)
        np.testing.assert_array_equal(np.isnan(other), ~numbers)
        one, other = one[numbers], other[numbers]
    assert one.tobytes() == other.tobytes()


def drawn_check(
    strategy: st.SearchStrategy[list[Case]],
    examples: int,
    are_limited: bool = False,
    pairs: Sequence[tuple[Target, int]] = PAIRS,
) -> None:
    """Draw kernels, and compare what schedules of each give on targets with thread counts.

    `are_limited` gives loops of theirs ends that are known in a run; the rest of a result, which
    nobody needs, is not compared.
    """

    @settings(DRAWN, max_examples=examples)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        for case in data.draw(strategy, "cases"):
            kernel, inputs = case.kernel, case.inputs
            needed: Array = np.ones_like(case.expected, np.bool_)
            if are_limited:
                kernel, inputs, needed = data.draw(limits(case), "limits")
                kernel = split_rows(kernel)
                inputs = {b.name: inputs[b.name].reshape(b.shape) for b in kernel.inputs}
            first: Array | None = None
            for target, threads in pairs:
                order = fixed_order(kernel, target)
                space = schedule_space(kernel, target, threads, DETERMINISTIC)
                drawn = space.candidate(data.draw(st.integers(0, space.size - 1)))
                schedules = [space.schedule(item) for item in (space.default(), drawn)]
                note(f"{target.cpu}, {threads}: {space.choices(drawn)}")
                check_order(kernel, schedules[0], order)
                for schedule in schedules:
                    if sum_orders(kernel, schedule) != order:
                        continue  # a build refuses it
                    found = result(kernel, schedule, inputs, target, threads)
                    found = found.reshape(needed.shape)[needed]
                    first = found if first is None else first
                    assert_same(first, found)

    check()


@pytest.mark.usefixtures("small_in_parallel")
@pytest.mark.parametrize(
    ("share", "pairs"), [(0.06, PAIRS), pytest.param(0.5, EVERY, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_schedules_give_the_same_bits(
    family: str, share: float, pairs: Sequence[tuple[Target, int]]
) -> None:
    strategy: Callable[[int], st.SearchStrategy[list[Case]]] = FAMILIES[family][0]
    drawn_check(strategy(16), max(1, round(share * FAMILIES[family][1])), pairs=pairs)


@pytest.mark.usefixtures("small_in_parallel")
@pytest.mark.parametrize("family", ["filled_rows", "attentions", "products", "normalisations"])
def test_sums_that_end_in_a_run_give_the_same_bits(family: str) -> None:
    drawn_check(STRATEGIES[family](16), 4, are_limited=True)


def test_a_schedule_that_moves_terms_is_refused_and_gives_other_bits() -> None:
    kernel, target = conv(), FAMILY[0]
    (sketch, *_) = [s for s in schedule_space(kernel, target).sketches if s.name == "tiled"]
    chosen = dict(zip((c.name for c in sketch.choices), sketch.default, strict=True))
    orders = next(c.values for c in sketch.choices if c.name == "reduce")
    spaces = SpaceCache(target, 1, DETERMINISTIC)
    schedules = [sketch.build({**chosen, "reduce": order}) for order in orders]
    kept = [s for s in schedules if sum_orders(kernel, s) == sum_orders(kernel, schedules[0])]
    moved = next(s for s in schedules if s not in kept)
    assert len({sum_orders(kernel, s) for s in schedules}) > 1
    with pytest.raises(ScheduleError, match="not part of the fixed order"):
        spaces.check(kernel, moved)
    SpaceCache(target, 1, "default").check(kernel, moved)  # every order is one
    inputs = inputs_for(kernel)
    one, other = (result(kernel, s, inputs, target, 1) for s in (kept[0], moved))
    assert one.tobytes() != other.tobytes()


def test_tiles_of_a_sum_that_follow_each_other_are_its_order() -> None:
    kernel = kernel_of([f32(8, 96), f32(96, 32)], [("matmul", ["x0", "x1"], {})], ["x1"])
    target = FAMILY[0]
    space = schedule_space(kernel, target, 1, DETERMINISTIC)
    (order,) = fixed_order(kernel, target)
    assert [extent for _, extent in order.axes] == [96]
    assert order.is_product
    for choice in space.sketches[0].choices:
        if choice.name == "unroll":
            assert len(choice.values) > 1


def test_partial_sums_are_as_many_on_every_cpu() -> None:
    kernel = kernel_of([f32(5, 256)], [("reduce_sum", ["x0"], {"axes": (1,), "keepdims": 0})])
    narrow, wide = (
        schedule_space(kernel, target_named(name), 1, DETERMINISTIC)
        for name in ("x86-64-v3", "x86-64-v4")
    )
    schedules = [space.schedule(space.default()) for space in (narrow, wide)]
    assert len({sum_orders(kernel, schedule) for schedule in schedules}) == 1
    plain = (schedule_space(kernel, target_named(name), 1) for name in ("x86-64-v3", "x86-64-v4"))
    schedules = [space.schedule(space.default()) for space in plain]
    assert len({sum_orders(kernel, schedule) for schedule in schedules}) == 2


def test_a_cpu_without_fma_is_of_no_family() -> None:
    with pytest.raises(SettingsError, match="has no FMA"):
        common_target(baseline_target(target_named("x86-64-v3")))


def bits(graph: Graph, target: Target, threads: int, seed: int) -> list[bytes]:
    """The outputs of a model on random inputs, with schedules drawn by a seed (0: default)."""
    random = Random(seed)

    def choose(kernel: FusedKernel) -> ScheduleChoice:
        space = schedule_space(kernel, target, threads, DETERMINISTIC)
        return ScheduleChoice(space.schedule(space.sample(random)), "drawn")

    compiled = compile_model(
        graph, choose if seed else None, target=target, threads=threads, numerics=DETERMINISTIC
    )
    outputs = Executable(compiled.spec).run(random_inputs(graph))
    return [np.asarray(outputs[name]).tobytes() for name in sorted(outputs)]


MODELS = {
    "mlp": Size(),
    "crnn": Size(image=32, width=0.25),
    "resnet18": Size(image=64, width=0.25),
    "mobilenet_v2": Size(image=64, width=0.5),
    "encoder": Size(tokens=19, layers=2, width=0.25),
    "vit_tiny": Size(image=64, layers=2),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "seeds, is_full", [((0, 1), False), pytest.param(range(6), True, marks=pytest.mark.nightly)]
)
def test_models_give_the_same_bits(name: str, seeds: Sequence[int], is_full: bool) -> None:
    graph = import_model_proto(build_model(name, size=None if is_full else MODELS[name]))
    threads = THREADS if is_full else THREADS[::2]
    found = [bits(graph, t, n, seed) for seed in seeds for t in FAMILY for n in threads]
    assert all(item == found[0] for item in found)


def test_lanes_beyond_a_strided_row_are_not_read() -> None:
    """10 rows of 4 in 16 lanes: half of a load of two registers has no lanes."""
    kernel = kernel_of([f32(1, 10, 4)], [("arg_min", ["x0"], {"axis": 1})])
    data = np.random.default_rng(0).standard_normal((1, 10, 4), dtype=np.float32)
    for target in FAMILY:
        space = schedule_space(kernel, target, 1, DETERMINISTIC)
        schedule = space.schedule(space.default())
        found = result(kernel, schedule, {kernel.inputs[0].name: data}, target, 1)
        np.testing.assert_array_equal(found.ravel(), data.argmin(1).ravel())
