"""How cores are divided and leased."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.measure.fake_machine import desktop_amd, hybrid_intel
from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.cpus import CpuQuota, Cpus, usable_cpus
from tunefarm.measure.farm.slots import CoreLeases, ProcessPin, SlotPlan, describe, plan_slots


def test_two_cores_and_one_thread_build_on_one_and_time_on_the_other() -> None:
    plan = plan_slots(Cpus.alike((0, 1)), 1)
    assert plan == SlotPlan((0, 1), ((1,),))
    assert not plan.alternates
    assert plan.spare == (0,)


def test_all_cores_timed_means_that_building_and_timing_alternate() -> None:
    plan = plan_slots(Cpus.alike((0, 1)), 2)
    assert plan == SlotPlan((0, 1), ((0, 1),), alternates=True)
    assert plan.spare == ()


def test_slots_of_a_larger_node_share_no_core() -> None:
    plan = plan_slots(Cpus.alike(range(16)), 4, slots=2, builders=3)
    assert plan == SlotPlan((0, 1, 2), ((8, 9, 10, 11), (12, 13, 14, 15)))


@pytest.mark.parametrize(
    "arguments", [{"threads": 3}, {"threads": 0}, {"threads": 1, "builders": 0}]
)
def test_impossible_division_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(MeasureError):
        plan_slots(Cpus.alike((0, 1)), **arguments)


def test_hybrid_with_threads_times_on_p_cores_and_leaves_their_other_threads_idle(
    tmp_path: Path,
) -> None:
    hybrid_intel(tmp_path)
    plan = plan_slots(usable_cpus(tmp_path, range(16)), 1, slots=2)
    assert plan.slots == ((4,), (6,))
    assert plan.build_cores == (0, 1, 2, 3, 8, 9, 10, 11)
    assert not plan.alternates and not {5, 7} & set(plan.build_cores)


def test_two_threads_of_one_core_are_no_slot_of_two(tmp_path: Path) -> None:
    desktop_amd(tmp_path)
    cpus = usable_cpus(tmp_path, (3, 11))
    assert plan_slots(cpus, 1) == SlotPlan((3, 11), ((3,),), alternates=True)
    with pytest.raises(MeasureError, match=r"offers 1 \(threads of one core are not timed at once"):
        plan_slots(cpus, 2)


def test_more_threads_than_fast_cores_names_the_way_to_the_slower_ones(tmp_path: Path) -> None:
    hybrid_intel(tmp_path)
    with pytest.raises(MeasureError, match="8 of 16 are of the fastest kind") as raised:
        plan_slots(usable_cpus(tmp_path, range(16)), 6)
    assert raised.value.hint.startswith("taskset --cpu-list 8,9,10,11,12,13,14,15 ")


@pytest.mark.parametrize(
    ("quota", "slots", "expected"),
    [
        (0.5, 1, SlotPlan((0,), ((7,),), alternates=True)),
        (1.5, 1, SlotPlan((0,), ((7,),), alternates=True)),
        (2.0, 1, SlotPlan((0, 7), ((7,),))),
        (3.5, 4, SlotPlan((0, 1, 2), ((5,), (6,), (7,)), alternates=True)),
        (64.0, 2, SlotPlan((0, 1, 2, 3, 4, 5, 6, 7), ((6,), (7,)))),
    ],
)
def test_slots_and_builders_are_no_more_than_the_quota_pays_for(
    quota: float, slots: int, expected: SlotPlan
) -> None:
    cpus = Cpus(tuple(range(8)), quota=CpuQuota(quota, Path("/sys/fs/cgroup")))
    assert plan_slots(cpus, 1, slots=slots) == expected


def test_quota_below_the_threads_still_has_a_slot_of_them() -> None:
    cpus = Cpus(tuple(range(8)), quota=CpuQuota(1.0, Path("/sys/fs/cgroup")))
    plan = plan_slots(cpus, 4, slots=2, builders=6)
    assert (plan.slots, plan.alternates, len(plan.build_cores)) == (((4, 5, 6, 7),), True, 1)


def test_division_is_described_with_what_bounds_it(tmp_path: Path) -> None:
    hybrid_intel(tmp_path)
    cpus = replace(usable_cpus(tmp_path, range(16)), quota=CpuQuota(1.5, Path("/sys/fs/cgroup")))
    assert describe(plan_slots(cpus, 1), cpus) == (
        "16 threads of 12 cores of 2 kinds, a CPU quota of 1.5: 1 slot for timing (core 6), "
        "1 builder, one after the other"
    )


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
