"""How much slices scatter, and whose fault that is."""

from __future__ import annotations

import random

import pytest

from tunefarm.measure.worker.stability import relative_mad, scatters


@pytest.mark.parametrize(
    ("samples", "scatter"),
    [
        ([], 0.0),
        ([2.0], 0.0),
        ([1.0, 2.0, 3.0], 0.5),
        ([1.0, 1.0, 1.0, 50.0], 0.0),  # one interrupted sample does not count
        ([0.0, 0.0], 0.0),
    ],
)
def test_scatter_is_the_median_deviation_over_the_median(
    samples: list[float], scatter: float
) -> None:
    assert relative_mad(samples) == scatter


def noise(sigma: float, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.lognormvariate(0.0, sigma) for _ in range(28)]


def two_modes(seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.choice((1.0, 1.25)) * value for value in noise(0.01, seed)]


def test_a_candidate_with_two_modes_scatters_against_a_quiet_reference() -> None:
    found = [scatters(two_modes(seed), noise(0.01, 100 + seed)) for seed in range(20)]
    assert sum(found) >= 17  # in the others most slices were of one mode


def test_a_candidate_beside_a_reference_with_two_modes_does_not() -> None:
    assert not any(scatters(noise(0.01, seed), two_modes(100 + seed)) for seed in range(20))


@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.5])
def test_noise_of_both_sides_is_not_the_candidates(sigma: float) -> None:
    found = [scatters(noise(sigma, seed), noise(sigma, 100 + seed)) for seed in range(100)]
    assert sum(found) <= 2


def test_a_clock_that_wanders_is_not_the_candidates() -> None:
    clock = [1.0 + 0.05 * number for number in range(28)]
    assert not scatters(clock, [0.9 * value for value in clock])
