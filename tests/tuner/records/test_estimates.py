"""Which schedule a task's trials speak for: luck alone is not believed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tunefarm.db.records import TaskKey, TrialRecord
from tunefarm.measure.compare import ALONE_DEVIATION, BETWEEN_RUNS
from tunefarm.tuner.records.estimates import (
    Joint,
    is_dangerous,
    joint,
    most_promising,
    recorded_pair,
    scales,
)

KEY = TaskKey("w", "t", 1, "default", "1")
DEFAULT = "d"


def alone(schedule: str, latency: float | None = 1.0, status: str = "ok") -> TrialRecord:
    return TrialRecord(KEY, "r", "s", {}, [[schedule]], status, latency)


def pair(schedule: str, ratio: float, deviation: float = 0.01) -> TrialRecord:
    """A schedule against the default, whose latency is 1; the ratio has this deviation."""
    factor = math.exp(1.96 * deviation)
    return replace(
        alone(schedule, ratio),
        reference=alone(DEFAULT).schedule_hash,
        ratio=ratio,
        low=ratio / factor,
        high=ratio * factor,
        samples=(ratio,),
        reference_samples=(1.0,),
    )


def promising(*trials: TrialRecord) -> str | None:
    """The schedule's name."""
    found = most_promising(trials)
    return found[0].schedule[0][0] if found else None


def test_a_schedule_measured_again_counts_by_the_mean_of_its_logarithms() -> None:
    found = joint([pair("a", 0.9), pair("a", 1.1)])
    assert found is not None
    assert found.latency == pytest.approx(math.sqrt(0.99))
    one = math.hypot(0.01, BETWEEN_RUNS)
    assert found.deviation == pytest.approx(one / math.sqrt(2))
    assert not found.alone


def test_a_sure_trial_weighs_more_than_one_that_is_not() -> None:
    found = joint([pair("a", 0.9, 0.05), pair("a", 1.1, 0.005), alone("a", 0.5)])
    assert found is not None
    assert 1.07 < found.latency < 1.1


def test_a_single_trial_keeps_its_latency_to_the_last_bit() -> None:
    assert joint([alone("a", 0.1)]) == Joint(0.1, ALONE_DEVIATION, True)
    found = joint([pair("a", 0.3), alone("a", None, "scattered")])
    assert found is not None
    assert found.latency == 0.3


def test_failures_have_no_latency() -> None:
    assert joint([alone("a", None, "crashed")]) is None


def test_a_recorded_pair_is_the_log_ratio_that_it_was() -> None:
    found = recorded_pair(pair("a", 0.8, 0.02))
    assert found is not None
    assert (found.mean, found.deviation) == pytest.approx((math.log(0.8), 0.02))
    assert found.pairs == 1
    assert recorded_pair(alone("a")) is None


def test_what_held_when_measured_again_goes_before_a_lucky_trial() -> None:
    assert promising(alone("d"), pair("a", 0.8), pair("a", 0.82), pair("b", 0.78)) == "a"


def test_what_is_faster_beyond_luck_needs_no_second_trial() -> None:
    assert promising(alone("d"), pair("a", 0.8), pair("a", 0.82), pair("b", 0.7)) == "b"


def test_a_lucky_trial_of_a_schedule_that_did_not_hold_is_not_believed() -> None:
    trials = [alone("d"), pair("a", 0.7), pair("a", 0.9), pair("b", 0.75), pair("b", 0.77)]
    assert promising(*trials) == "b"


def test_of_schedules_measured_once_the_one_with_the_lowest_upper_end_counts() -> None:
    assert promising(pair("a", 0.8), pair("b", 0.81), pair("c", 0.79, 0.05)) == "a"


def test_the_default_schedule_is_kept_when_nothing_is_clearly_faster() -> None:
    """It was measured alone, but everything else is measured by it."""
    assert promising(alone("d"), pair("a", 1.05), pair("b", 0.97)) == "d"
    assert promising(alone("d"), pair("b", 0.9)) == "b"


def test_pairs_go_before_what_was_measured_alone_by_an_earlier_version() -> None:
    assert promising(alone("a", 0.9), pair("b", 0.95)) == "b"
    assert promising(alone("a", 0.9), alone("b", 0.95)) == "a"


@pytest.mark.parametrize("status", ["crashed", "wrong_result", "run_timeout"])
def test_what_ever_went_wrong_is_not_applied(status: str) -> None:
    trials = [pair("a", 0.5), pair("a", 0.5), alone("a", None, status), pair("b", 0.9)]
    assert promising(*trials) == "b"
    assert is_dangerous(trials[2:3])


@pytest.mark.parametrize("status", ["scattered", "unstable", "build_timeout", "infrastructure"])
def test_what_says_nothing_about_a_schedule_is_not_held_against_it(status: str) -> None:
    assert promising(pair("a", 0.5), alone("a", None, status), pair("b", 0.9)) == "a"


def test_nothing_is_applied_when_nothing_is_ok() -> None:
    assert promising() is None
    assert promising(alone("a", None, "scattered")) is None
    assert most_promising([pair("a", 0.5)], without={pair("a", 0.5).schedule_hash}) == []


def test_references_are_what_others_were_measured_against() -> None:
    assert scales([alone("a"), pair("b", 0.9)]) == {alone(DEFAULT).schedule_hash}
