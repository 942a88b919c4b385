"""Who wins, and how seldom chance does."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.confirm.verdict import LEAST_PAIRS, judge


def drawn(
    rng: np.random.Generator, ratios: list[float], pairs: int, noise: float
) -> list[list[float]]:
    """Samples of schedules with these times, each pair under a common drift of the machine."""
    drift = np.exp(rng.normal(0.0, 0.05, pairs))
    return [list(drift * ratio * np.exp(rng.normal(0.0, noise, pairs))) for ratio in ratios]


@pytest.mark.parametrize("rivals", [1, 4])
def test_equal_schedules_seldom_dethrone_the_incumbent(rivals: int) -> None:
    rng = np.random.default_rng(1)
    wins = 0
    for _ in range(200):
        verdict = judge(drawn(rng, [1.0] * (1 + rivals), 12, 0.03), 0)
        assert verdict is not None
        wins += verdict.winner != 0
    assert wins <= 10


def test_five_percent_faster_wins() -> None:
    rng = np.random.default_rng(2)
    wins = 0
    for _ in range(100):
        verdict = judge(drawn(rng, [1.0, 0.95], 12, 0.02), 0)
        assert verdict is not None
        wins += verdict.winner == 1
    assert wins >= 90


def test_the_fastest_of_several_wins_and_is_compared_with_the_default() -> None:
    samples = drawn(np.random.default_rng(3), [1.0, 0.9, 0.8, 2.0], 12, 0.001)
    verdict = judge(samples, 3)
    assert verdict is not None
    assert verdict.winner == 2
    assert verdict.against_default[2].ratio == pytest.approx(0.4, rel=0.01)
    assert verdict.default_latency == pytest.approx(2.0, rel=0.2)


def test_a_gain_below_two_percent_changes_nothing() -> None:
    verdict = judge(drawn(np.random.default_rng(4), [1.0, 0.985], 12, 0.0001), 0)
    assert verdict is not None and verdict.winner == 0


def test_few_pairs_give_no_verdict() -> None:
    assert judge([[1.0] * (LEAST_PAIRS - 1)] * 2, 0) is None
