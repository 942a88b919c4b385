"""Errors of vector functions over all floats: each within the bound that it is documented with."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.llvm.pointwise import SPECIAL, Values, float32_samples, pairs, run_pointwise
from tunefarm.compiler.expr.nodes import binary, const, unary
from tunefarm.compiler.types.dtypes import DType


def error_in_ulps(actual: Values, exact: Values) -> tuple[float, Values]:
    """Largest error where both are finite; the mask of entries whose kind of number differs."""
    rounded = exact.astype(np.float32)
    smallest_normal = np.finfo(np.float32).tiny
    ulp = np.spacing(np.maximum(np.abs(rounded), smallest_normal)).astype(np.float64)
    finite = np.isfinite(rounded) & np.isfinite(actual)
    error = np.abs(actual[finite].astype(np.float64) - exact[finite]) / ulp[finite]
    same = finite | (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    return float(error.max()), ~same


_erf = np.frompyfunc(math.erf, 1, 1)

FUNCTIONS: dict[str, tuple[Callable[[Values], Values], float]] = {
    "exp": (np.exp, 1.2),
    "expm1": (np.expm1, 1.5),
    "log": (np.log, 1.0),
    "tanh": (np.tanh, 2.4),
    "tanh_rational": (np.tanh, 5.4),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3.5),
    "softplus": (lambda x: np.logaddexp(x, 0), 2.4),
    "erf": (lambda x: np.asarray(_erf(x)).astype(np.float64), 2.5),
    "sin": (np.sin, 2.0),
    "cos": (np.cos, 2.0),
    "tan": (np.tan, 3.0),
    "asin": (np.arcsin, 2.4),
    "acos": (np.arccos, 1.3),
    "atan": (np.arctan, 1.5),
    "sinh": (np.sinh, 1.8),
    "cosh": (np.cosh, 1.6),
    "asinh": (np.arcsinh, 3.5),
    "acosh": (np.arccosh, 2.5),
    "atanh": (np.arctanh, 1.4),
}


@pytest.mark.parametrize("target", ["host", "shorter", "narrow", "wide"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_vector_functions_are_within_their_documented_error(function: str, target: str) -> None:
    exact_function, bound = FUNCTIONS[function]
    x = float32_samples()
    actual = run_pointwise([x], lambda v: unary(function, v), target)
    with np.errstate(all="ignore"):
        exact = exact_function(x.astype(np.float64))
        error, wrong = error_in_ulps(actual, exact)
    assert not wrong.any(), (x[wrong][:5], actual[wrong][:5])
    assert error <= bound
    zeros = exact == 0
    np.testing.assert_array_equal(np.signbit(actual[zeros]), np.signbit(exact[zeros]))


@pytest.mark.parametrize("target", ["host", "shorter", "narrow", "wide"])
def test_a_power_of_e_that_is_below_the_normal_numbers_may_be_zero(target: str) -> None:
    samples = float32_samples()
    x = samples[~(samples > 0)]
    actual = run_pointwise([x], lambda v: unary("exp_nonpositive", v), target)
    exact = np.exp(x.astype(np.float64))
    normal = exact >= np.finfo(np.float32).tiny
    error, wrong = error_in_ulps(actual[normal], exact[normal])
    assert not wrong.any() and error <= 1.2
    assert np.isnan(actual[np.isnan(x)]).all()
    tiny = exact < np.finfo(np.float32).tiny
    assert ((actual[tiny] >= 0) & (actual[tiny] <= np.finfo(np.float32).tiny)).all()


@pytest.mark.parametrize("target", ["host", "shorter", "narrow", "wide"])
def test_a_tanh_by_a_quotient_is_never_beyond_one(target: str) -> None:
    x = float32_samples()
    actual = run_pointwise([x], lambda v: unary("tanh_rational", v), target)
    assert (np.abs(actual[~np.isnan(x)]) <= 1).all()


DOUBLE_FUNCTIONS: dict[str, tuple[Callable[[Values], Values], float]] = {
    "exp": (np.exp, 1.2),
    "expm1": (np.expm1, 2.0),
    "log": (np.log, 1.0),
    "tanh": (np.tanh, 2.5),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 2.4),
    "sin": (np.sin, 2.0),
    "cos": (np.cos, 2.0),
    "sinh": (np.sinh, 1.8),
    "cosh": (np.cosh, 1.6),
}


@pytest.mark.skipif(
    bool(np.finfo(np.longdouble).eps > 1e-18),
    reason="nothing more precise to compare with",
)
@pytest.mark.parametrize("target", ["host", "shorter", "narrow"])
@pytest.mark.parametrize("function", DOUBLE_FUNCTIONS)
def test_vector_functions_of_doubles_are_within_their_error(function: str, target: str) -> None:
    exact_function, bound = DOUBLE_FUNCTIONS[function]
    patterns = np.random.default_rng(0).integers(0, 1 << 64, 50_000, np.uint64).view(np.float64)
    lines = [(-760, 760, 50_001), (-3, 3, 100_001), (0.5, 2, 50_001), (-5e4, 5e4, 20_001)]
    x = np.concatenate(
        [
            np.array([*SPECIAL, 5e-324, -1e-310, 1e308]),
            patterns,
            *(np.linspace(low, high, count) for low, high, count in lines),
            np.arange(-3000, 3000) * (np.pi / 4),
        ]
    )
    actual = run_pointwise([x], lambda v: unary(function, v), target)
    with np.errstate(all="ignore"):
        exact = exact_function(x.astype(np.longdouble))
        rounded = exact.astype(np.float64)
        ulp = np.spacing(np.maximum(np.abs(rounded), np.finfo(np.float64).tiny))
        finite = np.isfinite(rounded) & np.isfinite(actual)
        error = np.abs(actual[finite] - exact[finite]) / ulp[finite]
    np.testing.assert_array_equal(actual[~finite], rounded[~finite])
    assert error.max() <= bound
    zeros = exact == 0
    np.testing.assert_array_equal(np.signbit(actual[zeros]), np.signbit(exact[zeros]))


def largest_power_error(actual: Values, x: Values, y: Values) -> float:
    """In ulp; the kinds of all results are right, and the signs of zeros."""
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
        error, wrong = error_in_ulps(actual, exact)
        zeros = exact.astype(np.float32) == 0
    assert not wrong.any(), (x[wrong][:5], y[wrong][:5], actual[wrong][:5])
    np.testing.assert_array_equal(np.signbit(actual[zeros]), np.signbit(exact[zeros]))
    return error


@pytest.mark.parametrize("target", ["host", "shorter", "narrow"])
def test_any_power_is_within_its_documented_error(target: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1 << 32, 100_000, np.uint32).view(np.float32)
    near_one = np.exp2(rng.uniform(-126, 127, 100_000)).astype(np.float32)
    with np.errstate(all="ignore"):
        y = (rng.uniform(-151, 129, 100_000) / np.log2(np.abs(x))).astype(np.float32)
    y_near = (rng.uniform(-150, 128, 100_000) / np.log2(near_one)).astype(np.float32)
    whole = np.round(rng.uniform(-9, 9, 100_000)).astype(np.float32)
    signed = rng.uniform(-9, 9, 100_000).astype(np.float32)
    edges = np.array([*SPECIAL, 0.5, -0.5, 2, -2, 3, -3, 1e9, 2**25, 1 + 2**-23], np.float32)
    left, right = pairs(edges)
    base = np.concatenate([x, near_one, signed, left])
    exponent = np.concatenate([y, y_near, whole, right])
    actual = run_pointwise([base, exponent], lambda a, b: binary("pow", a, b), target)
    assert largest_power_error(actual, base, exponent) <= 1.2


CONSTANT_POWERS = [-3, -2, -1.5, -1, -0.75, -0.5, 0, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.2, 3, 4, 7, 9]


@pytest.mark.parametrize("exponent", CONSTANT_POWERS)
def test_constant_powers_need_no_logarithm_and_are_powers_all_the_same(exponent: float) -> None:
    x = float32_samples()[:700_000:3]
    literal = const(exponent, DType.F32)
    actual = run_pointwise([x], lambda v: binary("pow", v, literal))
    bound = 0.51 if exponent in (-1, 0, 0.5, 1, 2) else 5.0
    power = np.full_like(x, exponent)
    assert largest_power_error(actual, x, power) <= bound
