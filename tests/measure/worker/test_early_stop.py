"""The sequential test gives up what is slower, and seldom what is not."""

from __future__ import annotations

import random

import pytest

from measure.compare import log_ratio
from measure.worker.early_stop import FEWEST, is_clearly_slower

PAIRS = 14


def given_up(ratio: float, noise: float, rng: random.Random) -> int:
    """After how many pairs a candidate is given up; 0 if it never is."""
    candidate, reference = [], []
    for number in range(1, PAIRS + 1):
        candidate.append(ratio * rng.lognormvariate(0.0, noise))
        reference.append(rng.lognormvariate(0.0, noise))
        if is_clearly_slower(log_ratio(candidate, reference)):
            return number
    return 0


def test_one_interrupted_slice_never_decides() -> None:
    assert not is_clearly_slower(log_ratio([1e6], [1.0]))
    assert not is_clearly_slower(log_ratio([1e6, 1.0, 1.0], [1.0, 1.0, 1.0]))


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.02])
@pytest.mark.parametrize("ratio", [0.9, 1.0])
def test_candidates_as_fast_as_the_reference_are_rarely_given_up(
    ratio: float, noise: float
) -> None:
    rng = random.Random(1)
    lost = sum(given_up(ratio, noise, rng) > 0 for _ in range(300))
    assert lost <= 3


def test_slow_candidates_cost_three_or_four_pairs() -> None:
    rng = random.Random(2)
    taken = [given_up(1.2, 0.01, rng) for _ in range(300)]
    assert min(taken) == FEWEST
    assert sum(number <= 4 for number in taken) >= 297


def test_what_is_near_is_measured_in_full() -> None:
    rng = random.Random(3)
    assert sum(given_up(1.02, 0.01, rng) > 0 for _ in range(300)) == 0
