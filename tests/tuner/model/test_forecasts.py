"""Forecasts against what they came to."""

from __future__ import annotations

import numpy as np
import pytest

from tunefarm.tuner.search.strategies.evolution import LAST, LEAST_FACTOR, Forecast, Forecasts


def told(process: float, model: float, deviation: float, count: int = 60) -> Forecasts:
    """Forecasts whose residuals have these deviations; the two together are the process's."""
    rng = np.random.default_rng(0)
    result = Forecasts()
    for number in range(count):
        off = process * float(rng.standard_normal())
        other = model * float(rng.standard_normal())
        result.expect(number, Forecast(5.0 + off, 5.0 + other, 5.0 + off, deviation))
        result.learn(number, 5.0)
    return result


def test_who_was_right_more_often_counts_more() -> None:
    assert told(0.1, 0.4, 0.1).model_share < 0.2 < 0.8 < told(0.4, 0.1, 0.1).model_share


def test_deviations_become_those_of_the_residuals() -> None:
    assert told(0.15, 0.15, 0.1).factor == pytest.approx(1.5, rel=0.15)
    assert told(0.08, 0.15, 0.1).factor == pytest.approx(0.8, rel=0.15)
    assert told(0.001, 0.001, 0.1, count=LAST).factor == LEAST_FACTOR


def test_what_was_not_expected_and_what_is_known_already_say_nothing() -> None:
    forecasts = Forecasts()
    forecasts.expect(1, Forecast(1.0, 0.0, 1.0, 0.1))
    forecasts.learn(2, 0.0)
    assert forecasts.factor == 1.0
    forecasts.learn(1, 1.0)
    share = forecasts.model_share
    forecasts.learn(1, 0.0)
    assert forecasts.model_share == share < Forecasts().model_share


def test_promises_that_were_not_kept_are_believed_less() -> None:
    kept, broken = Forecasts(), Forecasts()
    for _ in range(8):
        for forecasts, gained in ((kept, 0.3), (broken, 0.01)):
            forecasts.promise(0.2)
            forecasts.gain(gained)
    assert Forecasts().kept == kept.kept == 1.0
    assert broken.kept < 0.2
