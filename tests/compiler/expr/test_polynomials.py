"""Coefficients of power series."""

from __future__ import annotations

import math

import pytest

from tunefarm.compiler.expr.polynomials import taylor


@pytest.mark.parametrize("x", [-1.0, -0.3, 0.0, 0.7])
def test_series_approach_their_functions(x: float) -> None:
    def of(coefficients: tuple[float, ...], power: float) -> float:
        return sum(c * power**i for i, c in enumerate(coefficients))

    assert of(taylor(0, 14), x) == pytest.approx(math.exp(x))
    assert x * of(taylor(1, 8, step=2, sign=-1), x * x) == pytest.approx(-math.sin(x))
    assert of(taylor(0, 8, step=2, sign=-1), x * x) == pytest.approx(-math.cos(x))
