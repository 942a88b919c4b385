"""Whether building disturbs timing is tried, and decides about the plan."""

from __future__ import annotations

import os

import pytest

from measure.compare import Comparison
from measure.farm import overlap
from measure.farm.overlap import Overlap, measure_overlap, settle_overlap, take_turns
from measure.farm.slots import SlotPlan

PLAN = SlotPlan((0, 1, 2, 3), ((2,), (3,)))


def comparison(ratio: float) -> Comparison:
    return Comparison(ratio, ratio, ratio, 9)


@pytest.mark.parametrize(
    ("arithmetic", "caches", "clean"),
    [(1.0, 1.04, True), (1.06, 1.0, False), (1.0, 1.3, False), (0.9, 0.95, True)],
)
def test_the_worse_of_both_decides(
    arithmetic: float, caches: float, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Overlap(comparison(arithmetic), comparison(caches))
    monkeypatch.setattr(overlap, "measure_overlap", lambda timed, loaded: found)
    told: list[str] = []
    plan = settle_overlap(PLAN, "auto", told.append)
    assert plan.alternates != clean
    assert ("goes on" in told[0]) == clean


def test_it_is_not_tried_where_it_is_settled() -> None:
    assert settle_overlap(PLAN, "always") is PLAN
    assert settle_overlap(PLAN, "never") == SlotPlan((0, 1, 2, 3), ((2,), (3,)), alternates=True)
    shared = SlotPlan((0,), ((0,),), alternates=True)
    assert settle_overlap(shared, "auto") is shared


def test_cores_that_never_time_are_spare() -> None:
    assert PLAN.spare == (0, 1)
    assert take_turns(PLAN).spare == (0, 1)
    assert SlotPlan((0,), ((0,),)).spare == ()


def test_a_load_on_the_timed_core_itself_is_found() -> None:
    core = max(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    found = measure_overlap([core], [core])
    assert not found.is_clean
    assert found.arithmetic.ratio > 1.3
    assert os.sched_getaffinity(0) == before
