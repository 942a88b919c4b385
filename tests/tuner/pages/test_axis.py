"""Marks of an axis are round and few."""

from __future__ import annotations

import pytest

from tunefarm.tuner.pages.axis import MOST_TICKS, round_values


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
