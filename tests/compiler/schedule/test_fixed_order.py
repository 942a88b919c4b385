"""Sums in a fixed order: all schedules, thread counts and CPUs of a family give the same bits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.compiler.emitted_code import target_named
from tests.compiler.schedule.drawn_graphs import Case
from tests.compiler.schedule.guarded_run import run_guarded
from tests.compiler.schedule.small_kernels import f32, kernel_of
from tests.compiler.schedule.test_generated_code import FAMILIES, SMALLEST_PARALLEL
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.runtime.machine.check_target import can_run
from tunefarm.compiler.schedule.fixed_order import check_order
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.spaces import (
    fixed_order,
    schedule_space,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import DETERMINISTIC_NUMERICS
from tunefarm.compiler.types.tensor_type import Array

FAMILY = [t for t in map(target_named, ("x86-64-v3", "x86-64-v4")) if can_run(t)]
THREADS = (1, 2, 7)
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


@pytest.mark.parametrize("share", [0.06, pytest.param(0.5, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_schedules_give_the_same_bits(
    family: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy: Callable[[int], st.SearchStrategy[list[Case]]] = FAMILIES[family][0]
    for module, least in SMALLEST_PARALLEL:
        monkeypatch.setattr(module, least, 1)  # kernels this small would not run in parallel

    @settings(
        max_examples=round(share * FAMILIES[family][1]),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        for case in data.draw(strategy(16), "cases"):
            kernel, found = case.kernel, list[Array]()
            for target in FAMILY:
                for threads in THREADS:
                    space = schedule_space(kernel, target, threads, DETERMINISTIC)
                    drawn = space.candidate(data.draw(st.integers(0, space.size - 1)))
                    for candidate in (space.default(), drawn):
                        schedule = space.schedule(candidate)
                        try:
                            check_order(kernel, schedule, fixed_order(kernel, target))
                        except ScheduleError:
                            assert candidate is drawn
                            continue
                        note(f"{target.cpu}, {threads}: {space.choices(candidate)}")
                        found.append(result(kernel, schedule, case.inputs, target, threads))
                        assert_same(found[0], found[-1])

    check()


def assert_same(one: Array, other: Array) -> None:
    """Equal bits, but for those of what is no number."""
    if one.dtype.kind == "f":
        numbers = ~np.isnan(one)
        np.testing.assert_array_equal(np.isnan(other), ~numbers)
        one, other = one[numbers], other[numbers]
    assert one.tobytes() == other.tobytes()
