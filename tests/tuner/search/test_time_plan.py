"""The minutes of a job are shared so that it ends in time."""

from __future__ import annotations

import pytest

from tuner.search.time_plan import FINALIST_SECONDS, SEARCH_SHARE, TimePlan


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_without_minutes_there_is_no_limit() -> None:
    plan = TimePlan(None, 0.0)
    assert plan.left is None
    assert plan.search_minutes(20) is None
    assert not plan.finalists_are_late()
    assert plan.comparison_seconds > 0


def test_the_search_leaves_time_for_what_comes_after() -> None:
    clock = Clock()
    plan = TimePlan(10.0, 990.0, clock)
    plan.build_seconds, plan.run_seconds = 3.0, 0.05
    assert plan.left == 590.0
    later = 20 * FINALIST_SECONDS + 2 * 3.0 + 4.0
    assert plan.search_minutes(20) == pytest.approx((590.0 - later) / 60)


def test_a_short_job_searches_for_its_share() -> None:
    plan = TimePlan(1.0, 990.0, Clock())
    plan.build_seconds = 20.0
    assert plan.search_minutes(20) == pytest.approx(SEARCH_SHARE * 50.0 / 60)


def test_finalists_end_when_building_and_measuring_is_all_that_fits() -> None:
    clock = Clock()
    plan = TimePlan(2.0, 1000.0, clock)
    plan.build_seconds = 5.0
    clock.now = 1105.0
    assert not plan.finalists_are_late()
    clock.now = 1107.0
    assert plan.finalists_are_late()


def test_the_comparison_is_cut_to_what_is_left() -> None:
    clock = Clock()
    plan = TimePlan(2.0, 1000.0, clock)
    plan.build_seconds, plan.run_seconds = 1.0, 1.0
    assert plan.comparison_seconds == 40.0
    clock.now = 1110.0
    assert plan.comparison_seconds == 8.0
    clock.now = 1130.0
    assert plan.left == 0.0
    assert plan.comparison_seconds == 1.0
    assert plan.search_minutes(3) == 0.0
