"""The sequential test gives up what is slower, and seldom what is not."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from tests.measure.clock_traces import KINDS, against_itself
from tunefarm.measure.compare import LogRatio, log_ratio
from tunefarm.measure.worker.timer import FEWEST, FEWEST_TOLD, is_clearly_slower, is_told

PAIRS = 14
DRAWS = 400  # of a recorded clock


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


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_shared_core_equals_are_seldom_given_up(kind: str) -> None:
    """1 % at most, up to three standard errors of a share."""
    rounds = rounds_on_a_shared_core(kind, 1.0)
    assert mean(number < PAIRS for number in rounds) <= 0.01 + 3 * (0.01 * 0.99 / DRAWS) ** 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_shared_core_slow_candidates_cost_three_or_four_pairs(kind: str) -> None:
    assert mean(rounds_on_a_shared_core(kind, 1.3)) < 4.0
    assert mean(rounds_on_a_shared_core(kind, 1.1)) < 5.0


def rounds_on_a_shared_core(kind: str, ratio: float) -> list[int]:
    """Pairs that candidates are given that are `ratio` times as slow, PAIRS at most."""
    return [
        next(
            (
                number
                for number in range(FEWEST, PAIRS)
                if is_clearly_slower(log_ratio((ratio * a[:number]).tolist(), b[:number].tolist()))
            ),
            PAIRS,
        )
        for a, b in zip(*against_itself(kind, PAIRS, DRAWS, 1), strict=True)
    ]


def test_of_what_is_slower_half_of_the_rounds_tell_enough() -> None:
    assert is_told(LogRatio(0.03, 0.01, FEWEST_TOLD))
    assert not is_told(LogRatio(0.015, 0.01, FEWEST_TOLD))
    assert not is_told(LogRatio(0.03, 0.01, FEWEST_TOLD - 1))
    assert not is_told(LogRatio(-0.5, 0.01, FEWEST_TOLD))
