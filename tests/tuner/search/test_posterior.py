"""What is believed of the fastest is what a confirmation would find, luck taken off."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tunefarm.measure.compare import LogRatio
from tunefarm.tuner.search.pairwise_estimates import BETWEEN_RUNS, Logs, PairwiseEstimates
from tunefarm.tuner.search.posterior import Posterior, posterior

ERROR = 0.01


def believed(places: Logs, rng: np.random.Generator, times: int = 1) -> tuple[Posterior, Logs]:
    """Every schedule measured so many times against the default."""
    pairwise = PairwiseEstimates("default")
    deviation = math.hypot(ERROR, BETWEEN_RUNS)
    for number, place in enumerate(places):
        for _ in range(times):
            mean = float(rng.normal(place, deviation))
            pairwise.add(str(number), "default", LogRatio(mean, ERROR, 14))
    names = list(map(str, range(len(places))))
    found = posterior(pairwise, names)
    assert found is not None
    return found, pairwise.estimates(names)[0]


def equal(rng: np.random.Generator) -> Logs:
    return rng.uniform(0.0, 0.002, 64)


def near_ties(rng: np.random.Generator) -> Logs:
    """A floor that a third of the space reaches."""
    return np.maximum(-0.3, rng.normal(-0.2, 0.2, 64)) + rng.uniform(0.0, 0.004, 64)


def few_fast(rng: np.random.Generator) -> Logs:
    return rng.normal(0.5, 0.3, 64)


@pytest.mark.parametrize("space", [equal, near_ties, few_fast])
def test_what_is_claimed_is_true_on_average(space: Callable[[np.random.Generator], Logs]) -> None:
    claims, lowest = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        places = space(rng)
        found, observed = believed(places, rng)
        claims.append(found.expected.mean - places[int(found.nominee)])
        lowest.append(observed.min() - places[int(observed.argmin())])
    assert abs(np.mean(claims)) < 0.01
    assert np.mean(claims) > np.mean(lowest)


def test_a_schedule_measured_often_is_believed_more_than_a_luckier_one() -> None:
    pairwise = PairwiseEstimates("default")
    for number in range(40):
        pairwise.add(f"usual {number}", "default", LogRatio(0.001 * number, ERROR, 14))
    pairwise.add("lucky", "default", LogRatio(-0.024, 0.02, 4))
    for _ in range(6):
        pairwise.add("proven", "default", LogRatio(-0.020, ERROR, 14))
    names = [*(f"usual {number}" for number in range(40)), "lucky", "proven"]
    found = posterior(pairwise, names)
    assert found is not None
    assert found.nominee == "proven"


def test_where_one_leads_by_far_it_is_believed() -> None:
    places = np.array([0.0, 0.3, 0.4, 0.5, 0.6])
    found, observed = believed(places, np.random.default_rng(0))
    assert found.expected.mean == pytest.approx(observed[0], abs=0.005)
    assert found.probabilities()["0"] == 1.0
    assert found.again() is None


def test_probabilities_say_how_often_each_would_be_the_fastest() -> None:
    found = Posterior(("a", "b", "c"), np.array([0.0, 0.01, 0.5]), 1e-4 * np.eye(3), 0.01, 0.02)
    chances = found.probabilities()
    assert sum(chances.values()) == pytest.approx(1.0)
    assert chances["a"] == pytest.approx(0.76, abs=0.05)  # a difference of 0.01 / sqrt(2e-4)
    assert chances["c"] == 0.0
    assert chances == found.probabilities()


def test_an_error_that_all_share_leaves_no_doubt_who_is_fastest() -> None:
    shared = np.full((2, 2), 1e-2) + 1e-8 * np.eye(2)
    found = Posterior(("a", "b"), np.array([0.0, 0.01]), shared, 0.1, 0.02)
    assert found.probabilities()["a"] == 1.0
    assert found.again() is None


def test_it_is_measured_again_where_a_wrong_choice_would_cost_most() -> None:
    variances = np.diag([0.01**2, 0.02**2, 0.02**2])
    found = Posterior(("a", "b", "c"), np.array([0.0, 0.005, 0.1]), variances, 0.01, 0.02)
    assert found.again() == "b"
    assert found.again(without=["b"]) == "a"
    assert found.again(worth=0.1) is None


def test_more_measurements_leave_less_to_measure_again() -> None:
    places = np.array([0.0, 0.015, 0.1, 0.2, 0.3, 0.4, 0.5])
    rng = np.random.default_rng(2)
    assert believed(places, rng)[0].again() is not None
    assert believed(places, rng, times=20)[0].again() is None


def test_a_dense_fast_end_promises_little_and_a_thin_one_much() -> None:
    rng = np.random.default_rng(3)
    assert believed(equal(rng), rng)[0].promise < 0.01
    assert believed(few_fast(rng), rng)[0].promise > 0.03


def test_nothing_is_believed_of_what_has_no_place() -> None:
    pairwise = PairwiseEstimates("default")
    pairwise.add("b", "a", LogRatio(-0.1, ERROR, 14))
    assert posterior(pairwise, ["a", "b"]) is None
    found = posterior(pairwise, ["a", "b", "default"])
    assert found is not None
    assert found.schedules == ("default",)
    assert found.expected == pytest.approx((0.0, 0.0), abs=1e-6)
    assert found.again() is None
