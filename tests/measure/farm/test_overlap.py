"""Whether building disturbs timing is tried, and decides about the plan."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from tunefarm.measure.compare import LogRatio
from tunefarm.measure.farm import overlap
from tunefarm.measure.farm.overlap import Overlap, measure_overlap, resolve_overlap, take_turns
from tunefarm.measure.farm.slots import SlotPlan

PLAN = SlotPlan((0, 1, 2, 3), ((2,), (3,)))


def pair(ratio: float) -> LogRatio:
    return LogRatio(math.log(ratio), 0.005, 27)


@pytest.mark.parametrize(
    ("arithmetic", "copying", "clean"),
    [(1.0, 1.04, True), (1.0, 1.07, False), (1.0, 0.9, False), (1.3, 1.0, True)],
)
def test_what_moves_a_ratio_of_different_work_decides(
    arithmetic: float, copying: float, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Overlap(pair(arithmetic), pair(copying))
    monkeypatch.setattr(overlap, "measure_overlap", lambda *_: found)
    told: list[str] = []
    plan = resolve_overlap(PLAN, "auto", told.append)
    assert plan.alternates != clean
    assert ("goes on" in told[0]) == clean


def test_it_is_not_tried_where_it_is_settled() -> None:
    assert resolve_overlap(PLAN, "always") is PLAN
    assert resolve_overlap(PLAN, "never") == SlotPlan((0, 1, 2, 3), ((2,), (3,)), alternates=True)
    shared = SlotPlan((0,), ((0,),), alternates=True)
    assert resolve_overlap(shared, "auto") is shared


def test_cores_that_never_time_are_spare() -> None:
    assert PLAN.spare == (0, 1)
    assert take_turns(PLAN).spare == (0, 1)
    assert SlotPlan((0,), ((0,),)).spare == ()


def test_what_may_be_chance_does_not_decide() -> None:
    assert Overlap(pair(1.0), LogRatio(-0.2, 0.1, 27)).is_clean
    assert not Overlap(pair(1.0), LogRatio(-0.2, 0.02, 27)).is_clean


def test_the_try_leaves_this_thread_where_it_was_and_no_load_behind() -> None:
    before = os.sched_getaffinity(0)
    found = measure_overlap([max(before)], [min(before)])
    assert found.arithmetic.pairs == found.copying.pairs > 20
    assert os.sched_getaffinity(0) == before
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    assert not any(b"build_load" in command for command in commands)
