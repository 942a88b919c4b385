"""Who wins, and how seldom chance does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tunefarm.tuner.confirm.verdict import LEAST_PAIRS, Meeting, judge, standing
from tunefarm.tuner.search.pairwise_estimates import BETWEEN_RUNS


def drawn(
    rng: np.random.Generator, times: list[float], pairs: int, noise: float, processes: int = 2
) -> list[Meeting]:
    """Processes with schedules of these times, each round under a common drift of the machine."""
    meetings: list[Meeting] = []
    for _ in range(processes):
        drift = np.exp(rng.normal(0.0, 0.05, pairs))
        taken = [drift * time * np.exp(rng.normal(0.0, noise, pairs)) for time in times]
        meetings.append({number: samples.tolist() for number, samples in enumerate(taken)})
    return meetings


@pytest.mark.parametrize("rivals", [1, 4])
def test_equal_schedules_seldom_dethrone_the_incumbent(rivals: int) -> None:
    rng = np.random.default_rng(1)
    wins = 0
    for _ in range(200):
        verdict = judge(drawn(rng, [1.0] * (1 + rivals), 12, 0.03))
        assert verdict is not None
        wins += verdict.winner != 0
    assert wins <= 2


def test_five_percent_faster_wins() -> None:
    rng = np.random.default_rng(2)
    wins = 0
    for _ in range(100):
        verdict = judge(drawn(rng, [1.0, 0.95], 16, 0.02))
        assert verdict is not None
        wins += verdict.winner == 1
    assert wins >= 95


def test_the_fastest_of_several_wins_and_is_compared_with_the_default() -> None:
    meetings = drawn(np.random.default_rng(3), [1.0, 0.9, 0.8, 2.0], 12, 0.001)
    verdict = judge(meetings, 3)
    assert verdict is not None
    assert verdict.winner == 2
    compared = verdict.against_default[2]
    assert compared.ratio == pytest.approx(0.4, rel=0.01)
    assert compared.low < 0.4 < compared.high
    assert verdict.against_default[3].ratio == 1.0
    assert verdict.default_latency == pytest.approx(2.0, rel=0.2)


def test_a_gain_below_two_percent_changes_nothing() -> None:
    verdict = judge(drawn(np.random.default_rng(4), [1.0, 0.985], 12, 0.0001))
    assert verdict is not None and verdict.winner == 0


def test_few_pairs_give_no_verdict() -> None:
    assert judge([{0: [1.0] * (LEAST_PAIRS - 1), 1: [0.5] * (LEAST_PAIRS - 1)}]) is None


def test_a_rival_that_came_late_needs_as_many_pairs() -> None:
    long, short = [1.0] * LEAST_PAIRS, [1.0] * (LEAST_PAIRS - 1)
    meetings = [{0: long, 1: long}, {0: short, 1: short, 2: [0.5] * len(short)}]
    verdict = judge(meetings)
    assert verdict is not None and verdict.winner == 0
    assert verdict.against_default[2].ratio == pytest.approx(0.5)


def test_processes_that_contradict_each_other_widen_the_interval() -> None:
    rng = np.random.default_rng(5)
    apart = [*drawn(rng, [1.0, 0.9], 16, 0.001, 1), *drawn(rng, [1.0, 1.1], 16, 0.001, 1)]
    found = standing(apart, 1, 0)
    assert found is not None
    assert found.mean == pytest.approx(math.log(0.9 * 1.1) / 2, abs=0.03)
    assert found.deviation > 0.05
    alike = standing(drawn(rng, [1.0, 0.9], 16, 0.001), 1, 0)
    assert alike is not None
    assert alike.mean == pytest.approx(math.log(0.9), abs=0.01)
    assert BETWEEN_RUNS / 2 < alike.deviation < 2 * BETWEEN_RUNS


def test_who_never_met_is_not_compared() -> None:
    assert standing([{0: [1.0], 1: [1.0]}, {0: [1.0], 2: [1.0]}], 1, 2) is None
