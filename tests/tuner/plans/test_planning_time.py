"""The time for a plan is shared, and is over when somebody asks for that."""

from __future__ import annotations

import pytest

from tunefarm.tuner.interrupt import Interrupt
from tunefarm.tuner.plans.planning_time import LEAVING_OUT, LOOKING, REGIONS, PlanningTime
from tunefarm.tuner.plans.problems import Kind

OWN, LAYOUTS, CUTS = Kind.OWN, Kind.LAYOUTS, Kind.CUTS


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def begun(seconds: float | None, passed: float, interrupt: Interrupt | None = None) -> PlanningTime:
    clock = Clock()
    time = PlanningTime(seconds, interrupt or Interrupt(), clock)
    clock.now += passed
    return time


@pytest.mark.parametrize(
    ("passed", "kinds"),
    [(24.0, {OWN, LAYOUTS, CUTS}), (26.0, {LAYOUTS, CUTS}), (50.0, {CUTS}), (70.0, set())],
)
def test_the_kernels_of_the_model_as_it_is_leave_time_for_others(
    passed: float, kinds: set[Kind]
) -> None:
    time = begun(100.0, passed)
    assert {kind for kind in (OWN, LAYOUTS, CUTS) if time.may_measure(kind)} == kinds


def test_regions_have_time_beyond_that_of_whole_plans() -> None:
    time = begun(100.0, 110.0)
    assert time.is_late() and time.is_late(LOOKING) and not time.is_late(REGIONS)
    assert begun(100.0, 130.0).is_late(REGIONS) and not begun(100.0, 130.0).is_late(LEAVING_OUT)


def test_where_a_runner_would_take_all_the_time_no_kernel_is_measured() -> None:
    time = begun(12.0, 0.0)
    assert not time.may_measure(CUTS) and not time.is_late(LOOKING)
    assert time.describe(0) == "by what is known of their kernels, since there is little time"
    assert begun(100.0, 0.0).describe(1) == "1 kernel measured for them"


def test_without_a_limit_only_an_interrupt_ends_it() -> None:
    interrupt = Interrupt()
    time = begun(None, 1e6, interrupt)
    assert time.may_measure(OWN) and not time.is_late()
    interrupt.ask()
    assert time.is_late(LEAVING_OUT) and not time.may_measure(CUTS)
