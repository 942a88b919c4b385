"""The log-ratio of a pair: what it ignores, and that its deviations hold what they claim.

Calibrated on recordings of a shared core, a kernel against itself: the truth is 0.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.measure.clock_traces import KINDS, against_itself
from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.compare import LogRatio, log_ratio

DRAWS = 400
ROUNDS = (3, 4, 7, 14, 28)

Sides = tuple[list[float], list[float]]


@st.composite
def sides(draw: st.DrawFn, least: int = 1) -> Sides:
    """Slices of two sides, between a tenth and ten times of a millisecond."""
    count = draw(st.integers(least, 30))
    logs = st.lists(st.floats(-2.3, 2.3), min_size=count, max_size=count)
    a, b = (np.exp(draw(logs)) * 1e-3 for _ in range(2))
    return a.tolist(), b.tolist()


@given(sides())
def test_the_inverse_has_the_opposite_log_and_the_same_deviation(both: Sides) -> None:
    a, b = both
    there, back = log_ratio(a, b), log_ratio(b, a)
    assert back.mean == pytest.approx(-there.mean, abs=1e-9)
    assert back.deviation == pytest.approx(there.deviation)


@given(sides(), st.floats(0.01, 100.0), st.floats(0.01, 100.0))
def test_a_side_that_is_scaled_scales_the_ratio(both: Sides, by_a: float, by_b: float) -> None:
    a, b = both
    plain = log_ratio(a, b)
    scaled = log_ratio([by_a * time for time in a], [by_b * time for time in b])
    assert scaled.mean == pytest.approx(plain.mean + math.log(by_a / by_b), abs=1e-9)
    assert scaled.deviation == pytest.approx(plain.deviation)


@given(
    st.integers(0, DRAWS - 1), st.integers(0, 13), st.floats(0.001, 1000.0), st.sampled_from("ab")
)
def test_one_wild_slice_of_fourteen_moves_little(
    draw: int, where: int, factor: float, side: str
) -> None:
    a, b = (values[draw].tolist() for values in against_itself("building", 14, DRAWS, 1))
    before = log_ratio(a, b)
    (a if side == "a" else b)[where] *= factor
    after = log_ratio(a, b)
    assert abs(after.mean - before.mean) < 2.0 * before.deviation + 0.03


def test_pairs_that_happen_to_agree_are_not_exact() -> None:
    few, many = log_ratio([1.0] * 3, [1.1] * 3), log_ratio([1.0] * 28, [1.1] * 28)
    assert few.mean == pytest.approx(-math.log(1.1)) and few.deviation > 0.01
    assert 0.0 < many.deviation < few.deviation


def test_drift_within_a_measurement_cancels() -> None:
    drift = np.linspace(1.0, 3.0, 14)
    found = log_ratio(list(1.1 * drift), list(drift))
    assert found.low < 1.1 < found.high
    assert found.ratio == pytest.approx(1.1, rel=0.01)


def test_the_interval_is_that_of_the_ratio() -> None:
    pair = LogRatio(math.log(0.5), 0.1, 14)
    assert pair.ratio == pytest.approx(0.5)
    assert pair.low * pair.high == pytest.approx(0.25)
    assert math.log(pair.high / pair.ratio) == pytest.approx(0.196)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0])])
def test_what_cannot_be_paired_is_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(MeasureError):
        log_ratio(a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounds", ROUNDS)
def test_deviations_hold_what_they_claim(kind: str, rounds: int) -> None:
    """About 68 % within one and 95 % within 1.96, up to three standard errors of a share."""
    means, deviations = drawn(kind, rounds)
    within = np.abs(means) / deviations
    for limit, least, most in ((1.0, 0.66, 0.74), (1.96, 0.92, 0.96)):
        slack = 3.0 * math.sqrt(least * (1.0 - least) / DRAWS)
        assert least - slack < (within < limit).mean() < most + slack


@pytest.mark.parametrize("kind", KINDS)
def test_fourteen_rounds_see_two_percent(kind: str) -> None:
    means, _ = drawn(kind, 14)
    assert np.quantile(np.abs(means), 0.9) < 0.02
    assert abs(means.mean()) < 3.0 * means.std() / math.sqrt(DRAWS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_median_of_the_rounds_scatters_more(kind: str) -> None:
    a, b = against_itself(kind, 14, DRAWS, 1)
    plain = np.median(np.log(a / b), axis=1)
    means, _ = drawn(kind, 14)
    assert (means**2).mean() < 0.85 * (plain**2).mean()


def drawn(kind: str, rounds: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Means and deviations of so many draws."""
    a, b = against_itself(kind, rounds, DRAWS, 1)
    pairs = [log_ratio(*both) for both in zip(a.tolist(), b.tolist(), strict=True)]
    return np.array([pair.mean for pair in pairs]), np.array([pair.deviation for pair in pairs])
