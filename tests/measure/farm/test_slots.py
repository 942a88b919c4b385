"""How cores are divided and leased."""

from __future__ import annotations

import os

import pytest

from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.farm.slots import CoreLeases, ProcessPin, SlotPlan, plan_slots


def test_two_cores_and_one_thread_build_on_one_and_time_on_the_other() -> None:
    plan = plan_slots((0, 1), 1)
    assert plan == SlotPlan((0, 1), ((1,),))
    assert not plan.alternates
    assert plan.spare == (0,)


def test_all_cores_timed_means_that_building_and_timing_alternate() -> None:
    plan = plan_slots((0, 1), 2)
    assert plan == SlotPlan((0, 1), ((0, 1),), alternates=True)
    assert plan.spare == ()


def test_slots_of_a_larger_node_share_no_core() -> None:
    plan = plan_slots(range(16), 4, slots=2, builders=3)
    assert plan == SlotPlan((0, 1, 2), ((8, 9, 10, 11), (12, 13, 14, 15)))


@pytest.mark.parametrize(
    "arguments", [{"threads": 3}, {"threads": 0}, {"threads": 1, "builders": 0}]
)
def test_impossible_division_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(MeasureError):
        plan_slots((0, 1), **arguments)


def test_lease_is_granted_whole_or_not_at_all() -> None:
    leases = CoreLeases()
    assert leases.acquire((0, 1))
    assert not leases.acquire((1, 2))
    assert leases.acquire((2,))
    leases.release((0, 1))
    assert leases.acquire((1,))


def test_core_that_is_not_leased_cannot_be_released() -> None:
    with pytest.raises(MeasureError, match=r"\[3\] are not leased"):
        CoreLeases().release((3,))


def test_pinned_process_gets_its_cores_back() -> None:
    before = os.sched_getaffinity(0)
    pin = ProcessPin()
    pin.confine([min(before)])
    assert os.sched_getaffinity(0) == {min(before)}
    pin.release()
    pin.release()
    assert os.sched_getaffinity(0) == before
