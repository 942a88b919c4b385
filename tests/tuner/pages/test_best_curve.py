"""The curve of the best latency falls from left to right, and its marks are those of the data."""

from __future__ import annotations

import json
import math
import re

import pytest

from tunefarm.tuner.pages.page import HEIGHT, MOST_TICKS, WIDTH, best_curve, round_values
from tunefarm.tuner.reports.job_state import MOST_MOMENTS, JobState, Moment, with_moment

HISTORY = (Moment(5.0, 10, 8e-3), Moment(20.0, 40, 6e-3), Moment(65.0, 90, 4e-3))


def test_a_step_for_each_moment_within_the_drawing() -> None:
    curve = best_curve(HISTORY)
    assert curve is not None
    numbers = [float(number) for number in re.findall(r"[0-9.]+", curve["path"])]
    across, down = numbers[0::2], numbers[1::2]
    assert len(across) == 3 and across == sorted(across) and down == sorted(down)
    assert max(across) <= WIDTH and max(down) <= HEIGHT
    assert [mark["text"] for mark in curve["x"]] == ["0:05", "0:25", "0:45", "1:05"]
    assert "6 ms" in [mark["text"] for mark in curve["y"]]
    assert "8 ms after 10 trials, 4 ms after 90" in curve["caption"]
    json.dumps(curve, allow_nan=False)


def test_a_flat_history_is_a_line_and_a_short_one_is_none() -> None:
    flat = best_curve([Moment(1.0, 1, 1e-3), Moment(1.0, 2, 1e-3)])
    assert flat is not None and flat["y"]
    assert best_curve(HISTORY[:1]) is None
    assert best_curve([HISTORY[0], Moment(9.0, 9, math.inf)]) is None


def test_histories_stay_short_and_keep_their_ends() -> None:
    history: tuple[Moment, ...] = ()
    for number in range(5 * MOST_MOMENTS):
        history = with_moment(history, Moment(float(number), number, 1.0))
        history = with_moment(history, Moment(number + 0.5, number, math.nan))
    assert MOST_MOMENTS / 2 <= len(history) <= MOST_MOMENTS
    assert history[0].trials == 0 and history[-1].trials == 5 * MOST_MOMENTS - 1


def test_histories_are_read_as_written_and_others_are_left_out() -> None:
    state = JobState(history=HISTORY)
    written = json.loads(json.dumps(state.to_json(), allow_nan=False))
    assert JobState.of(written).history == HISTORY
    broken = [3, ["x", 1, 1.0], [1.0, 2], [1.0, 2, 0.0], [1.0, 2, None], [2.0, 3, 1e-3]]
    assert JobState.of({"history": broken}).history == (Moment(2.0, 3, 1e-3),)
    assert JobState.of({"history": "long"}).history == ()


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (0.0, 1.1, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (0.0, 2.5, [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]),
        (6.9e-3, 7.2e-3, [6.9e-3, 7e-3, 7.1e-3, 7.2e-3]),
        (-1.0, 1.0, [-1.0, -0.5, 0.0, 0.5, 1.0]),
    ],
)
def test_marks_are_multiples_of_a_round_number(low: float, high: float, marks: list[float]) -> None:
    assert round_values(low, high) == pytest.approx(marks)


@pytest.mark.parametrize("high", [1e-9, 0.3, 7.0, 1234.5, 1e9])
def test_marks_are_few_and_lie_within(high: float) -> None:
    marks = round_values(0.0, high)
    assert 2 <= len(marks) <= MOST_TICKS and min(marks) >= 0.0 and max(marks) <= high * 1.000001
