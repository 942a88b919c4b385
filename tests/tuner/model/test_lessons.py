"""What measurements teach, by how they ended."""

from __future__ import annotations

import math

import pytest

from tunefarm.measure.measurement import Status
from tunefarm.tuner.model.cost_model import Outcome
from tunefarm.tuner.model.lessons import ALONE_DEVIATION, TIMED_CALLS, Lesson

BESIDE = {"anchor_seconds": 4e-9}


def test_a_pair_needs_no_yardstick() -> None:
    lesson = Lesson.of(Status.OK, 1e-3, 0.1, BESIDE, deviation=0.012)
    assert lesson is not None
    assert (lesson.latency, lesson.outcome, lesson.deviation) == (1e-3, Outcome.MEASURED, 0.012)
    assert math.isnan(lesson.yardstick)


def test_what_was_measured_alone_is_less_sure_and_has_one() -> None:
    lesson = Lesson.of(Status.OK, 1e-3, 0.1, BESIDE)
    assert lesson == Lesson(1e-3, Outcome.MEASURED, ALONE_DEVIATION, 4e-9)


def test_a_pair_that_scatters_teaches_what_its_deviation_leaves() -> None:
    lesson = Lesson.of(Status.SCATTERED, 1e-3, 0.1, BESIDE, deviation=0.2)
    assert lesson is not None
    assert (lesson.outcome, lesson.deviation) == (Outcome.MEASURED, 0.2)


@pytest.mark.parametrize("status", [Status.UNSTABLE, Status.SCATTERED])
def test_what_scattered_without_a_pair_teaches_nothing(status: Status) -> None:
    assert Lesson.of(status, 1e-3, 0.1, BESIDE) is None
    assert Lesson.of(status, math.inf, 0.1, BESIDE, deviation=0.2) is None


@pytest.mark.parametrize("status", [Status.QUARANTINED, Status.INFRASTRUCTURE])
def test_neither_fast_nor_failing_teaches_nothing(status: Status) -> None:
    assert Lesson.of(status, math.inf, 0.1, BESIDE) is None


def test_a_run_ended_for_its_time_is_a_bound_and_a_crash_a_failure() -> None:
    bound = Lesson.of(Status.RUN_TIMEOUT, math.inf, 8.0, {}, deviation=0.01)
    assert bound is not None
    assert (bound.latency, bound.outcome) == (8.0 / TIMED_CALLS, Outcome.ABOVE)
    crash = Lesson.of(Status.CRASHED, math.inf, 8.0, {})
    assert crash is not None and crash.outcome is Outcome.FAILED
