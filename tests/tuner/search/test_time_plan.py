"""The minutes of a job are shared so that it ends in time."""

from __future__ import annotations

import pytest

from tunefarm.tuner.search.time_plan import (
    AT_A_SIZE_SECONDS,
    CLOSING_SECONDS,
    COMPARISON_MOST,
    COMPARISON_SECONDS,
    ENDING_SECONDS,
    EXCHANGE_SHARE,
    FINALIST_SECONDS,
    IN_FLIGHT_SECONDS,
    LEAST_ROUNDS,
    PATIENCE,
    PROFILE_SECONDS,
    SEARCH_SHARE,
    SIZES_SHARE,
    TimePlan,
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_without_minutes_there_is_no_limit() -> None:
    plan = TimePlan(None, 0.0)
    assert plan.left is None
    assert plan.search_minutes(20) is None
    assert not plan.finalists_are_late(1e6)
    assert plan.comparison_seconds == COMPARISON_SECONDS


def test_the_search_leaves_time_for_what_comes_after() -> None:
    clock = Clock()
    plan = TimePlan(10.0, 990.0, clock)
    plan.build_seconds, plan.run_seconds = 3.0, 0.03
    assert plan.left == 590.0
    later = IN_FLIGHT_SECONDS + 20 * FINALIST_SECONDS + CLOSING_SECONDS + ENDING_SECONDS
    later += 2 * 3.0 + COMPARISON_SECONDS + PROFILE_SECONDS
    assert plan.search_minutes(20) == pytest.approx((590.0 - later) / 60)


def test_what_finalists_do_not_need_is_spared() -> None:
    clock = Clock()
    plan = TimePlan(10.0, 1000.0, clock)
    minutes = plan.search_minutes(20)
    assert minutes is not None
    clock.now += 60.0 * minutes
    assert plan.spare_seconds(20) == pytest.approx(0.0)
    assert plan.spare_seconds(5) == pytest.approx(15 * FINALIST_SECONDS)
    assert plan.spare_seconds(21) == 0.0


def test_time_is_kept_for_exchanging_kernels_in_the_running_model() -> None:
    clock = Clock()
    plan = TimePlan(10.0, 990.0, clock)
    plan.build_seconds = 3.0
    without = plan.search_minutes(20)
    plan.exchanges = True
    searched = plan.search_minutes(20)
    assert without is not None and searched is not None
    assert searched == pytest.approx(without - (COMPARISON_SECONDS + 3.0) / 60)
    assert plan.exchange_seconds == PATIENCE * COMPARISON_SECONDS
    clock.now = 990.0 + 600.0 - 3.0 - COMPARISON_SECONDS - PROFILE_SECONDS - ENDING_SECONDS - 1.0
    assert plan.exchange_seconds == pytest.approx(1.0)
    clock.now += 2.0
    assert plan.exchange_seconds == 0.0


def test_exchanging_kernels_is_wanted_for_a_share_of_a_short_job() -> None:
    plan = TimePlan(0.5, 1000.0, Clock())
    assert plan.exchange_seconds == pytest.approx(PATIENCE * EXCHANGE_SHARE * 30.0)


def test_time_is_kept_for_kernels_at_several_sizes_until_they_begin() -> None:
    clock = Clock()
    plan = TimePlan(10.0, 1000.0, clock)
    without = plan.search_minutes(20)
    plan.keep_for_sizes(100, 0)
    searched = plan.search_minutes(20)
    assert without is not None and searched is not None
    assert searched == pytest.approx(without - 100 * AT_A_SIZE_SECONDS / 60)
    plan.keep_for_sizes(10**6, 10)
    assert plan.search_minutes(20) == pytest.approx(without - SIZES_SHARE * 10.0)
    clock.now += 0.9 * 600.0
    assert plan.finalists_are_late()
    plan.begin_sizes()
    assert not plan.finalists_are_late()


def test_a_short_job_searches_for_its_share() -> None:
    plan = TimePlan(1.0, 990.0, Clock())
    plan.build_seconds = 20.0
    assert plan.search_minutes(20) == pytest.approx(SEARCH_SHARE * 50.0 / 60)


def test_finalists_end_when_the_whole_model_is_all_that_fits() -> None:
    clock = Clock()
    plan = TimePlan(2.0, 1000.0, clock)
    plan.build_seconds = 5.0
    later = COMPARISON_SECONDS + PROFILE_SECONDS + CLOSING_SECONDS + ENDING_SECONDS
    clock.now = 1120.0 - 10.0 - later - 1.5
    assert not plan.finalists_are_late()
    assert not plan.finalists_are_late(1.0)
    assert plan.finalists_are_late(2.0)
    clock.now += 2.0
    assert plan.finalists_are_late()


def test_slow_models_are_compared_for_longer_within_bounds() -> None:
    plan = TimePlan(None, 0.0)
    plan.run_seconds = 0.1
    assert plan.comparison_seconds == pytest.approx(12.0)
    plan.run_seconds = 10.0
    assert plan.comparison_seconds == COMPARISON_MOST


def test_the_comparison_takes_what_is_left() -> None:
    clock = Clock()
    plan = TimePlan(2.0, 1000.0, clock)
    plan.build_seconds, plan.run_seconds = 1.0, 0.02
    assert plan.comparison_seconds == PATIENCE * COMPARISON_SECONDS
    clock.now = 1114.0
    assert plan.comparison_seconds == pytest.approx(6.0 - ENDING_SECONDS - PROFILE_SECONDS)
    clock.now = 1130.0
    assert plan.left == 0.0
    assert plan.comparison_seconds == pytest.approx(2 * LEAST_ROUNDS * 0.02)
    assert plan.search_minutes(3) == 0.0


class Job:
    """The phases of a job on a clock that is moved by hand, with what each really takes."""

    def __init__(self, minutes: float, tasks: int, build: float, run: float, meeting: float):
        self.clock = Clock()
        self.plan = TimePlan(minutes, self.clock.now, self.clock)
        self.begin = self.clock.now
        self.tasks, self.build, self.meeting = tasks, build, meeting
        self.plan.build_seconds, self.plan.run_seconds = build, run

    def run(self) -> float:
        """Seconds of all of it."""
        self.clock.now += 4.0 + self.build  # imports, Ray, the untuned model
        minutes = self.plan.search_minutes(self.tasks)
        assert minutes is not None
        self.clock.now += 60.0 * minutes + 1.3  # the last requests are answered
        for _ in range(3 * self.tasks):
            if self.plan.finalists_are_late(self.meeting):
                break
            self.clock.now += self.meeting
        self.clock.now += 0.8 + 2 * self.build  # the runner is closed, both models are built
        self.clock.now += self.plan.comparison_seconds
        self.clock.now += self.plan.profile_seconds
        return self.clock.now + 0.3 - self.begin


@pytest.mark.parametrize("meeting", [0.3, 0.7, 1.5])
@pytest.mark.parametrize("minutes, tasks", [(1.0, 10), (4.0, 20), (8.0, 60)])
def test_a_job_that_uses_its_time_ends_within_three_percent(
    minutes: float, tasks: int, meeting: float
) -> None:
    for build, run in ((0.5, 0.005), (2.0, 0.03), (3.0, 0.15)):
        seconds = Job(minutes, tasks, build, run, meeting).run()
        assert seconds <= 60.0 * minutes * 1.03
        assert seconds >= 60.0 * minutes * 0.9 or meeting < 0.5  # cheap meetings leave time over
