"""What a driver writes of its job is what others read, whichever version wrote it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from tunefarm.tuner.reports.job_state import JobState
from tunefarm.tuner.reports.report import TaskStatus

TASK = TaskStatus(
    "conv", "0123", 2, 9, 1, 2e-3, 1e-3, "", scattered=3, expected=1e-3, low=0.9e-3, high=1.1e-3
)
STATE = JobState(
    tasks=(TASK, replace(TASK, kernel="gemm", occurrences=1)),
    phase="searching",
    elapsed=12.5,
    left=30.0,
    workers=4,
    busy=3,
    measured={"ok": 5, "crashed": 1},
    at=1000.0,
)


def through_json(state: JobState) -> JobState:
    return JobState.of(json.loads(json.dumps(state.to_json(), allow_nan=False)))


def test_a_state_is_read_as_it_was_written() -> None:
    found = through_json(STATE)
    assert replace(found, tasks=(), totals={}) == replace(STATE, tasks=())
    for task, written in zip(found.tasks, STATE.tasks, strict=True):
        assert repr(task) == repr(written)  # NaN is not equal to itself
    assert (found.trials, found.failures, found.scattered) == (18, 2, 6)


def test_latencies_that_are_not_known_stay_so() -> None:
    task = TaskStatus("conv", "0123", 1, 0, 0, math.inf, math.inf)
    (found,) = through_json(JobState(tasks=(task,))).tasks
    assert found.default == found.best == math.inf and math.isnan(found.expected)
    assert not found.is_measured


def test_expectations_are_sums_over_calls() -> None:
    assert STATE.expected.value == pytest.approx(3e-3)
    assert STATE.untuned == pytest.approx(6e-3)
    assert STATE.speed_up == pytest.approx(2.0)


def test_what_may_be_noise_is_no_speed_up() -> None:
    task = replace(TASK, default=1.05e-3)
    assert math.isnan(JobState(tasks=(task,)).speed_up)  # 1.05 is between 0.9 and 1.1
    near = replace(TASK, default=1.111e-3, low=1.09e-3, expected=1.1e-3, high=1.11e-3)
    assert math.isnan(JobState(tasks=(near,)).speed_up)


def test_nothing_is_expected_before_every_kernel_was_measured() -> None:
    unknown = replace(TASK, default=math.inf, best=math.inf, expected=math.nan)
    state = JobState(tasks=(TASK, unknown))
    assert math.isnan(state.expected.value) and math.isnan(state.speed_up)
    assert math.isnan(JobState().expected.value)


@pytest.mark.parametrize(
    "progress",
    [
        None,
        [],
        {},
        {"trials": "many", "kernels": 3, "columns": "x", "left": "soon", "measured": 1},
        {"columns": ["kernel"], "kernels": [["a", "b"]]},
        {"columns": ["kernel", "trials"], "kernels": [[3, "x"]], "phase": None},
    ],
)
def test_progress_of_other_forms_is_not_known(progress: Any) -> None:
    state = JobState.of(progress)
    assert state.trials == 0 and state.phase == ""
    json.dumps(state.to_json(), allow_nan=False)


def test_totals_of_older_versions_are_read() -> None:
    state = JobState.of({"tasks": 3, "trials": 40, "failures": 2, "scattered": 1})
    assert (state.trials, state.failures, state.scattered) == (40, 2, 1)
