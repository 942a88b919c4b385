"""The sequential test gives up what is slower, and seldom what is not."""

from __future__ import annotations

import random

import pytest

from measure.worker.early_stop import SequentialTest


def given_up(ratio: float, noise: float, rng: random.Random, samples: int = 7) -> int:
    """After how many samples a candidate is given up; 0 if it never is."""
    test = SequentialTest(1e-3)
    for number in range(1, samples + 1):
        if test.is_slower(1e-3 * ratio * (1.0 + abs(rng.gauss(0.0, noise)))):
            return number
    return 0


def test_one_interrupted_sample_never_decides() -> None:
    assert not SequentialTest(1.0).is_slower(1e6)


@pytest.mark.parametrize("ratio", [0.9, 1.0])
def test_candidates_as_fast_as_the_incumbent_are_rarely_given_up(ratio: float) -> None:
    rng = random.Random(1)
    lost = sum(given_up(ratio, 0.03, rng) > 0 for _ in range(1000))
    assert lost <= 20


def test_slow_candidates_cost_two_or_three_samples() -> None:
    rng = random.Random(2)
    taken = [given_up(1.5, 0.03, rng) for _ in range(1000)]
    assert max(taken) <= 3 and min(taken) >= 2


def test_what_is_near_is_measured_in_full() -> None:
    rng = random.Random(3)
    assert sum(given_up(1.02, 0.01, rng) > 0 for _ in range(1000)) == 0
