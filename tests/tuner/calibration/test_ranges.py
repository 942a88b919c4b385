"""Ranges of values: what each method keeps."""

from __future__ import annotations

import numpy as np
import pytest

from tunefarm.compiler.errors import SettingsError
from tunefarm.tuner.calibration.ranges import Method, ValueRange


def range_of(method: str, *arrays: np.ndarray) -> tuple[float, float]:
    found = ValueRange()
    for array in arrays:
        found.add(array)
    return found.range(Method.of(method))


def quantisation_error(values: np.ndarray, low: float, high: float) -> float:
    scale = (high - low) / 255
    rounded = np.rint(np.clip(values, low, high) / scale) * scale
    return float(np.square(rounded - values).mean())


def test_minmax_keeps_all_finite_values() -> None:
    arrays = np.array([0.5, -3.0, np.nan]), np.array([7.0, np.inf])
    assert range_of("minmax", *arrays) == (-3.0, 7.0)


def test_percentile_leaves_out_the_tails_on_both_sides() -> None:
    values = np.random.default_rng(0).standard_normal(50_000)
    low, high = range_of("percentile:99", values)
    assert low == pytest.approx(np.quantile(values, 0.005), abs=0.01)
    assert high == pytest.approx(np.quantile(values, 0.995), abs=0.01)


def test_growing_values_keep_what_was_counted() -> None:
    values = np.random.default_rng(1).standard_normal(20_000)
    both = range_of("percentile:90", values / 100, values * 10)
    assert both == pytest.approx(range_of("percentile:90", values * 10, values / 100), rel=1e-6)


@pytest.mark.parametrize("outlier", [3.0, 6.0, 60.0])
@pytest.mark.parametrize("least", [-np.inf, 0.0])
def test_mse_errs_no_more_than_the_others(outlier: float, least: float) -> None:
    values = np.maximum(np.random.default_rng(0).standard_normal(60_000), least)
    values[0] = outlier
    errors = {
        method: quantisation_error(values, *range_of(method, values))
        for method in ("mse", "minmax", "percentile")
    }
    assert errors["mse"] <= 1.02 * min(errors.values())


def test_mse_clips_what_costs_all_others_too_much() -> None:
    values = np.random.default_rng(0).standard_normal(60_000)
    values[0] = 6.5
    assert range_of("mse", np.tile(values, 2), values)[1] <= 6.5
    values[0] = 40.0
    low, high = range_of("mse", *[values[1:]] * 400, values)
    assert high < 40.0
    assert low > -6.0


@pytest.mark.parametrize("method", ["minmax", "percentile", "mse"])
@pytest.mark.parametrize(
    ("values", "expected"),
    [(np.zeros(5), (0.0, 0.0)), (np.array([]), (0.0, 0.0)), (np.full(3, -2.0), (-2.0, -2.0))],
)
def test_ranges_of_constant_values_are_finite(
    method: str, values: np.ndarray, expected: tuple[float, float]
) -> None:
    low, high = range_of(method, values)
    assert low <= high
    assert expected[0] <= low and (high <= expected[1] or method == "mse")


@pytest.mark.parametrize("text", ["entropy", "minmax:3", "percentile:x", "percentile:20", "mse:"])
def test_unknown_methods_are_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        Method.of(text)
