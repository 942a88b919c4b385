"""Paired comparison and scatter: what is declared, and what is not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.paired import compare_paired
from tunefarm.compiler.errors import MeasureError
from tunefarm.measure.compare import LogRatio, pooled


def noisy(rng: np.random.Generator, scale: float, pairs: int) -> list[float]:
    return list(scale * np.exp(rng.normal(0.0, 0.01, pairs)))


def test_five_percent_slower_is_detected() -> None:
    found = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        result = compare_paired(noisy(rng, 1.0, 9), noisy(rng, 1.05, 9), resamples=1000)
        found += result.a_is_faster(effect=0.02)
    assert found >= 36


def test_equal_candidates_have_no_winner() -> None:
    winners = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        result = compare_paired(noisy(rng, 1.0, 9), noisy(rng, 1.0, 9), resamples=1000)
        winners += result.a_is_faster(effect=0.02) or result.b_is_faster(effect=0.02)
    assert winners <= 5


def test_drift_shared_by_a_pair_cancels() -> None:
    drift = np.linspace(1.0, 3.0, 9)
    result = compare_paired(list(drift), list(1.1 * drift))
    assert result.ratio == pytest.approx(1 / 1.1)
    assert result.low == pytest.approx(result.high)
    assert result.a_is_faster(effect=0.02) and not result.b_is_faster()


def test_comparison_is_the_inverse_with_sides_swapped() -> None:
    rng = np.random.default_rng(3)
    a, b = noisy(rng, 1.0, 11), noisy(rng, 1.2, 11)
    assert compare_paired(b, a).ratio == pytest.approx(1 / compare_paired(a, b).ratio)
    assert compare_paired(b, a).b_is_faster(effect=0.02)


@pytest.mark.parametrize(("a", "b"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0])])
def test_what_cannot_be_paired_is_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(MeasureError):
        compare_paired(a, b)


def test_ratios_of_several_runs_weigh_by_their_certainty() -> None:
    found = pooled([LogRatio(0.0, 0.01, 5), LogRatio(0.01, 0.02, 7)])
    assert found.mean == pytest.approx(0.002) and found.pairs == 12
    assert found.deviation == pytest.approx(0.02 / 5**0.5)
    alone = pooled([LogRatio(0.3, 0.1, 5)])
    assert (alone.mean, alone.deviation) == pytest.approx((0.3, 0.1))


def test_runs_that_contradict_each_other_leave_more_doubt() -> None:
    agreeing = pooled([LogRatio(0.0, 0.01, 5), LogRatio(0.001, 0.01, 5)])
    assert pooled([LogRatio(0.0, 0.01, 5), LogRatio(0.1, 0.01, 5)]).deviation > (
        5 * agreeing.deviation
    )
    with pytest.raises(MeasureError, match="no ratio"):
        pooled([])
