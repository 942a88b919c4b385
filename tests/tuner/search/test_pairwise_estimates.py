"""Where schedules stand follows from all pairs jointly, and how far that can be trusted too."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefarm.measure.compare import LogRatio
from tunefarm.tuner.search.pairwise_estimates import BETWEEN_RUNS, Estimate, PairwiseEstimates


def pair(mean: float, deviation: float = 0.01) -> LogRatio:
    return LogRatio(mean, deviation, 14)


def variance(deviation: float = 0.01) -> float:
    return deviation**2 + BETWEEN_RUNS**2


def test_the_default_stands_at_zero() -> None:
    assert PairwiseEstimates("default").estimate("default") == Estimate(0.0, 0.0)
    assert PairwiseEstimates("default").estimate("another") is None


def test_a_chain_adds_up_with_its_errors() -> None:
    pairwise = PairwiseEstimates("default")
    pairwise.add("a", "default", pair(-0.2))
    pairwise.add("b", "a", pair(-0.1))
    pairwise.add("c", "b", pair(0.05, 0.02))
    found = pairwise.estimate("c")
    assert found is not None
    assert found.mean == pytest.approx(-0.25)
    assert found.deviation == pytest.approx(math.sqrt(2 * variance() + variance(0.02)))


def test_two_measurements_of_a_pair_are_worth_more_than_one() -> None:
    pairwise = PairwiseEstimates("default")
    pairwise.add("a", "default", pair(-0.10))
    pairwise.add("a", "default", pair(-0.12))
    found = pairwise.estimate("a")
    assert found is not None
    assert found.mean == pytest.approx(-0.11)
    assert found.deviation == pytest.approx(math.sqrt(variance() / 2))


def test_a_circle_is_closed_by_least_squares() -> None:
    """Equal errors: what is missing at its end is shared by the three of its sides."""
    pairwise = PairwiseEstimates("default")
    pairwise.add("a", "default", pair(-0.2))
    pairwise.add("b", "a", pair(-0.1))
    pairwise.add("b", "default", pair(-0.27))
    places = [pairwise.estimate(schedule) for schedule in "ab"]
    assert [place and place.mean for place in places] == pytest.approx([-0.19, -0.28])


def test_what_both_hang_on_does_not_blur_their_difference() -> None:
    pairwise = PairwiseEstimates("default")
    pairwise.add("reference", "default", pair(-0.2, 0.1))
    pairwise.add("a", "reference", pair(-0.03))
    pairwise.add("b", "reference", pair(0.01))
    found = pairwise.difference("a", "b")
    assert found is not None
    assert found.mean == pytest.approx(-0.04)
    assert found.deviation == pytest.approx(math.sqrt(2 * variance()))
    against = pairwise.difference("a", "reference")
    assert against == pytest.approx(Estimate(-0.03, math.sqrt(variance())))
    assert pairwise.difference("a", "a") == Estimate(0.0, 0.0)
    assert pairwise.difference("a", "unknown") is None


def test_a_part_without_the_default_is_placed_by_what_is_known() -> None:
    pairwise = PairwiseEstimates("default")
    pairwise.add("b", "a", pair(-0.1))
    pairwise.add("c", "b", pair(-0.1))
    assert pairwise.estimate("c") is None
    pairwise.add_known("a", -0.3, 0.1)
    found = pairwise.estimate("c")
    assert found is not None
    assert found.mean == pytest.approx(-0.5)
    assert found.deviation == pytest.approx(math.sqrt(0.1**2 + 2 * variance()))
    pairwise.add("a", "default", pair(-0.2))
    found = pairwise.estimate("c")
    assert found is not None
    assert found.mean == pytest.approx(-0.4, abs=0.005)


def test_what_is_known_alone_is_a_place() -> None:
    pairwise = PairwiseEstimates("default")
    pairwise.add_known("a", -0.3, 0.1)
    assert pairwise.estimate("a") == pytest.approx(Estimate(-0.3, 0.1))


def test_a_root_may_be_found_late() -> None:
    pairwise = PairwiseEstimates()
    pairwise.add("b", "a", pair(-0.1))
    assert pairwise.estimate("b") is None
    pairwise.root = "a"
    found = pairwise.estimate("b")
    assert found is not None and found.mean == pytest.approx(-0.1)


def test_many_are_placed_like_each() -> None:
    pairwise = PairwiseEstimates("default")
    pairwise.add("a", "default", pair(-0.2))
    pairwise.add("b", "a", pair(-0.1))
    means, deviations = pairwise.estimates(("b", "nowhere", "default"))
    assert means == pytest.approx([-0.3, math.nan, 0.0], nan_ok=True)
    assert deviations == pytest.approx([math.sqrt(2 * variance()), math.inf, 0.0])
    joint_means, covariance = pairwise.joint(("b", "default", "a"))
    assert joint_means == pytest.approx([-0.3, 0.0, -0.2])
    assert covariance[0] == pytest.approx([2 * variance(), 0.0, variance()])


class Link(NamedTuple):
    """Who was measured beside whom, how exactly, and what came out too high."""

    schedule: int
    reference: int
    deviation: float
    error: float


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[float], list[Link]]:
    """True places, and who was measured beside whom: a tree and a few links more."""
    count = draw(st.integers(2, 12))
    places = [0.0, *(draw(st.floats(-1, 1)) for _ in range(count - 1))]
    tree = [(i, draw(st.integers(0, i - 1))) for i in range(1, count)]
    number = st.integers(0, count - 1)
    more = draw(st.lists(st.tuples(number, number), max_size=8))
    deviation, error = st.floats(0.001, 0.1), st.floats(-0.1, 0.1)
    return places, [Link(a, b, draw(deviation), draw(error)) for a, b in (*tree, *more)]


def measured(
    places: list[float], links: list[Link], *, exact: bool = False, asked: Sequence[str] = ()
) -> PairwiseEstimates:
    pairwise = PairwiseEstimates("0")
    for a, b, deviation, error in links:
        value = places[a] - places[b] + (0.0 if exact else error)
        pairwise.add(str(a), str(b), pair(value, deviation))
        pairwise.estimates(asked)
    return pairwise


@given(graphs())
def test_exact_pairs_give_exact_places(graph: tuple[list[float], list[Link]]) -> None:
    places, links = graph
    means, _ = measured(places, links, exact=True).estimates(map(str, range(len(places))))
    assert means == pytest.approx(places, abs=1e-9)


@given(graphs(), st.randoms())
def test_the_order_of_pairs_does_not_matter(
    graph: tuple[list[float], list[Link]], order: random.Random
) -> None:
    places, links = graph
    names = [str(number) for number in range(len(places))]
    found = measured(places, links).estimates(names)
    again = measured(places, order.sample(links, len(links))).estimates(names)
    assert found[0] == pytest.approx(again[0], abs=1e-9)
    assert found[1] == pytest.approx(again[1], abs=1e-9)


@given(graphs())
def test_asking_in_between_changes_nothing(graph: tuple[list[float], list[Link]]) -> None:
    places, links = graph
    names = [str(number) for number in range(len(places))]
    found = measured(places, links, asked=names).estimates(names)
    whole = measured(places, links).estimates(names)
    assert found[0] == pytest.approx(whole[0], abs=1e-9)
    assert found[1] == pytest.approx(whole[1], abs=1e-9)


def test_errors_of_chains_are_as_large_as_they_are_said_to_be() -> None:
    """Drawn many times: five references in a row, some of them measured in two ways."""
    rng = np.random.default_rng(1)
    links = [(1, 0), (2, 1), (3, 2), (3, 0), (4, 3), (5, 4), (5, 4), (5, 2), (6, 5)]
    places = rng.uniform(-0.5, 0, 7)
    places[0] = 0.0
    errors = []
    for _ in range(400):
        pairwise = PairwiseEstimates("0")
        for a, b in links:
            deviation = float(rng.uniform(0.005, 0.03))
            noise = rng.normal(0, math.hypot(deviation, BETWEEN_RUNS))
            pairwise.add(str(a), str(b), pair(float(places[a] - places[b] + noise), deviation))
        means, deviations = pairwise.estimates(map(str, range(1, 7)))
        errors.append((means - places[1:]) / deviations)
    spread = np.std(errors, axis=0)
    assert spread == pytest.approx(np.ones(6), abs=0.15)
