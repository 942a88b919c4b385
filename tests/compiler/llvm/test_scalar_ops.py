"""Scalar and vector arithmetic of generated code against NumPy: functions, operators, casts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from compiler.expr.nodes import Expr, binary, cast, const, unary
from compiler.kernels.kernel import FusedKernel, KernelBuilder
from compiler.schedule.spaces import default_schedule, naive_schedule
from compiler.target import Target, host_target
from compiler.types.dtypes import DType
from compiler.types.tensor_type import TensorType
from tests.compiler.schedule.guarded_run import run_guarded, targets

Values: TypeAlias = npt.NDArray[Any]

FLOATS = (DType.F32, DType.F64)
INTEGERS = tuple(dtype for dtype in DType if dtype.is_integer)
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-45, -1e-45, 1.2e-38, 3.4e38)


def machines() -> dict[str, Target]:
    """Targets of several vector widths, and this CPU without AVX-512, which has its own code."""
    host = host_target()
    features = tuple(name for name in host.features if not name.startswith("avx512"))
    shorter = replace(host, features=features, vector_bytes=min(host.vector_bytes, 32))
    return {**targets(), "shorter": shorter}


def run_pointwise(
    arrays: Sequence[Values], body: Callable[..., Expr], target: str = "host"
) -> Values:
    """`body(element, …)` of one-dimensional arrays; vectors and scalar code must agree."""
    builder = KernelBuilder()
    extent = len(arrays[0])
    inputs = [
        builder.input(TensorType(DType.from_numpy(array.dtype), array.shape)) for array in arrays
    ]
    builder.stage("out", [("i0", extent)], lambda i: body(*(tensor[i] for tensor in inputs)))
    kernel = FusedKernel("out", tuple(builder.inputs), tuple(builder.stages), "out")
    values = {f"in{i}": array for i, array in enumerate(arrays)}
    machine = machines()[target]
    vector = run_guarded(kernel, default_schedule(kernel, machine), values, machine).output
    scalar = run_guarded(kernel, naive_schedule(), values, machine).output
    np.testing.assert_array_equal(vector, scalar)
    return vector


def float32_samples() -> Values:
    """Every 8191st bit pattern, which covers all exponents; dense where the functions bend."""
    patterns = np.arange(0, 1 << 32, 8191, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = [(-12, 12, 300_001), (-105, 95, 100_001), (0.5, 2, 100_001), (-1, 1, 100_001)]
    lines: list[Values] = [np.linspace(low, high, count) for low, high, count in dense]
    lines.append(np.arange(-3000, 3000) * (np.pi / 4))
    return np.concatenate([np.array(SPECIAL, np.float32), patterns, *map(np.float32, lines)])


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


NUMPY_UNARY: dict[str, Callable[[Values], Values]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sign": np.sign,
    "isnan": np.isnan,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "erf": lambda x: np.asarray(_erf(x)).astype(x.dtype),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}


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


@pytest.mark.parametrize("op", ["fmod", "mod"])
def test_remainders_of_floats_are_exact(op: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 1 << 32, 50_000, np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        b = (a * np.exp2(rng.uniform(-30, 3, a.shape))).astype(np.float32)
    near = rng.uniform(-100, 100, 50_000).astype(np.float32)
    left = np.concatenate([a, near, np.round(near)])
    right = np.concatenate([b, rng.uniform(-5, 5, 50_000), rng.integers(-9, 9, 50_000)])
    right = right.astype(np.float32)
    with np.errstate(all="ignore"):
        expected = FLOAT_BINARY[op](left, right)
    actual = run_pointwise([left, right], lambda x, y: binary(op, x, y))
    np.testing.assert_allclose(actual, expected, rtol=1e-6 if op == "mod" else 0, atol=0)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ["div", "mod", "fmod"])
def test_division_of_many_integers(op: str, dtype: DType) -> None:
    """Quotients next to a whole number, which floats must not round up to it."""
    limits = np.iinfo(dtype.numpy)
    rng = np.random.default_rng(0)
    b = rng.integers(limits.min, limits.max, 3000, dtype.numpy)
    b[::2] = rng.integers(1, 12, b[::2].shape)
    whole = rng.integers(limits.min, limits.max, b.shape, dtype.numpy) // np.where(b == 0, 1, b)
    a = whole * b + rng.integers(0, 3, b.shape, dtype.numpy)
    exact = [
        _wrapped(INTEGER_BINARY[op](int(x), int(y), 8 * dtype.bytes), dtype)
        for x, y in zip(a, b, strict=True)
    ]
    actual = run_pointwise([a, b], lambda x, y: binary(op, x, y))
    np.testing.assert_array_equal(actual, np.array(exact, dtype.numpy))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", NUMPY_UNARY)
def test_float_functions(op: str, dtype: DType) -> None:
    x = np.concatenate([SPECIAL, np.linspace(-3.5, 3.5, 29), np.linspace(-20, 20, 7)])
    x = x.astype(dtype.numpy)
    with np.errstate(all="ignore"):
        expected = NUMPY_UNARY[op](x)
    relative = 4 * float(np.finfo(dtype.numpy).eps)
    np.testing.assert_allclose(
        run_pointwise([x], lambda v: unary(op, v)), expected, rtol=relative, atol=1e-45
    )


def edges(dtype: DType) -> Values:
    """Values at which integer arithmetic goes wrong."""
    limits = np.iinfo(dtype.numpy)
    near_zero = [value for value in (-7, -3, -2, -1, 0, 1, 2, 3, 7) if value >= limits.min]
    ends = [limits.min, limits.min + 1, limits.max - 1, limits.max]
    return np.array(sorted({*near_zero, *ends}), dtype.numpy)


def pairs(values: Values) -> tuple[Values, Values]:
    left, right = np.meshgrid(values, values, indexing="ij")
    return left.reshape(-1), right.reshape(-1)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ["neg", "abs", "sign", "not"])
def test_integer_functions(op: str, dtype: DType) -> None:
    x = edges(dtype)
    if op == "neg":
        expected = np.zeros((), x.dtype) - x
    else:
        functions = {"abs": np.abs, "sign": np.sign, "not": np.invert}
        expected = functions[op](x).astype(x.dtype)
    np.testing.assert_array_equal(run_pointwise([x], lambda v: unary(op, v)), expected)


def _wrapped(value: int, dtype: DType) -> int:
    bits = 8 * dtype.bytes
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.is_signed and value >> (bits - 1) else value


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0


def _shifted(a: int, count: int, bits: int, left: bool) -> int:
    """A count that is negative or too large leaves what is shifted in."""
    count = count if 0 <= count < bits else 2 * bits
    return a << count if left else a >> count


INTEGER_BINARY: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, _: a + b,
    "sub": lambda a, b, _: a - b,
    "mul": lambda a, b, _: a * b,
    "div": lambda a, b, _: _truncated(a, b),
    "floordiv": lambda a, b, _: a // b if b else 0,
    "mod": lambda a, b, _: a % b if b else 0,
    "fmod": lambda a, b, _: a - b * _truncated(a, b) if b else 0,
    "max": lambda a, b, _: max(a, b),
    "min": lambda a, b, _: min(a, b),
    "and": lambda a, b, _: a & b,
    "or": lambda a, b, _: a | b,
    "xor": lambda a, b, _: a ^ b,
    "shl": lambda a, b, bits: _shifted(a, b, bits, True),
    "shr": lambda a, b, bits: _shifted(a, b, bits, False),
}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", INTEGER_BINARY)
def test_integer_operators_wrap_and_never_trap(op: str, dtype: DType) -> None:
    left, right = pairs(edges(dtype))
    exact = [
        _wrapped(INTEGER_BINARY[op](int(a), int(b), 8 * dtype.bytes), dtype)
        for a, b in zip(left, right, strict=True)
    ]
    actual = run_pointwise([left, right], lambda a, b: binary(op, a, b))
    np.testing.assert_array_equal(actual, np.array(exact, dtype.numpy))


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64])
@pytest.mark.parametrize("divisor", [-5, -1, 0, 1, 8, (1 << 31) - 1])
@pytest.mark.parametrize("op", ["div", "floordiv", "mod", "fmod"])
def test_division_by_a_literal(op: str, divisor: int, dtype: DType) -> None:
    values = np.concatenate([edges(dtype), np.arange(-20, 20).astype(dtype.numpy)])
    bits = 8 * dtype.bytes
    exact = [_wrapped(INTEGER_BINARY[op](int(a), divisor, bits), dtype) for a in values]
    actual = run_pointwise([values], lambda a: binary(op, a, const(divisor, dtype)))
    np.testing.assert_array_equal(actual, np.array(exact, dtype.numpy))


@pytest.mark.parametrize("to", [DType.U8, DType.I8, DType.I16, DType.I32, DType.I64])
def test_casts_of_what_is_clipped(to: DType) -> None:
    x = np.concatenate([float32_samples()[::50], np.arange(-300, 300, 0.25).astype(np.float32)])
    x = x[~np.isnan(x)]

    def clipped(v: Expr) -> Expr:
        low = binary("max", v, const(0.0, DType.F32))
        return cast(to, binary("min", low, const(120.0, DType.F32)))

    expected = np.clip(x, 0, 120).astype(to.numpy)
    np.testing.assert_array_equal(run_pointwise([x], clipped), expected)


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64, DType.U8])
def test_integer_powers(dtype: DType) -> None:
    base, exponent = pairs(np.array([0, 1, 2, 3, 5, *((-1, -2) if dtype.is_signed else ())]))
    keep = (exponent >= 0) | (np.abs(base) == 1)
    base, exponent = base[keep].astype(dtype.numpy), exponent[keep].astype(dtype.numpy)
    exact = [
        _wrapped(int(float(a) ** float(b)), dtype) for a, b in zip(base, exponent, strict=True)
    ]
    actual = run_pointwise([base, exponent], lambda a, b: binary("pow", a, b))
    np.testing.assert_array_equal(actual, np.array(exact, dtype.numpy))


FLOAT_BINARY: dict[str, Callable[[Values, Values], Values]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "fmod": np.fmod,
    "mod": np.mod,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", FLOAT_BINARY)
def test_float_operators(op: str, dtype: DType) -> None:
    values = np.array([*SPECIAL, 2.5, -2.5, 7.25, -0.3, 1e10]).astype(dtype.numpy)
    left, right = pairs(values)
    with np.errstate(all="ignore"):
        expected = FLOAT_BINARY[op](left, right)
    actual = run_pointwise([left, right], lambda a, b: binary(op, a, b))
    # The remainder of a denormal divisor depends on how it is computed; pow is libm's.
    relative = 4 * float(np.finfo(dtype.numpy).eps) if op in ("pow", "mod") else 0
    np.testing.assert_allclose(actual, expected, rtol=relative, atol=0, strict=True)


@pytest.mark.parametrize("op", ["max", "min"])
def test_a_nan_stays_in_the_maximum_with_a_literal(op: str) -> None:
    x = np.array(SPECIAL, np.float32)
    literal = const(0.5, DType.F32)
    expected = FLOAT_BINARY[op](x, np.array(0.5, np.float32))
    for body in (lambda v: binary(op, v, literal), lambda v: binary(op, literal, v)):
        np.testing.assert_array_equal(run_pointwise([x], body), expected)


@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("dtype", [DType.I8, DType.U8, DType.U64, DType.I64, DType.BOOL])
def test_comparisons_know_the_sign(op: str, dtype: DType) -> None:
    values = np.array([False, True]) if dtype is DType.BOOL else edges(dtype)
    left, right = pairs(values)
    expected = FLOAT_BINARY[op](left, right)
    actual = run_pointwise([left, right], lambda a, b: binary(op, a, b))
    np.testing.assert_array_equal(actual, expected, strict=True)


@pytest.mark.parametrize("op", ["and", "or", "xor", "not"])
def test_truth_values(op: str) -> None:
    left, right = pairs(np.array([False, True]))
    if op == "not":
        np.testing.assert_array_equal(run_pointwise([left], lambda a: unary("not", a)), ~left)
        return
    functions: dict[str, Callable[[Values, Values], Values]] = {
        "and": np.logical_and,
        "or": np.logical_or,
        "xor": np.logical_xor,
    }
    actual = run_pointwise([left, right], lambda a, b: binary(op, a, b))
    np.testing.assert_array_equal(actual, functions[op](left, right), strict=True)


@pytest.mark.parametrize("to", DType)
@pytest.mark.parametrize("source", DType)
def test_casts(source: DType, to: DType) -> None:
    if source is DType.BOOL:
        x: Values = np.array([False, True] * 9)
    elif source.is_float and not to.is_float:
        top = 250.0 if to is not DType.I8 else 120.0
        low = 0.0 if not to.is_signed else -100.75
        x = np.array([0.0, -0.0, 0.9, 1.5, 2.5, 99.99, top, low], source.numpy)
        if to is DType.BOOL:
            x = np.array([0.0, -0.0, 0.1, -2.0, math.inf, math.nan, 1e-45], source.numpy)
    elif source.is_float:
        x = np.array([*SPECIAL, 1e300, 0.1], np.float64)
        with np.errstate(over="ignore"):
            x = x.astype(source.numpy)
    else:
        x = edges(source)
    with np.errstate(all="ignore"):
        expected = x.astype(to.numpy)
    actual = run_pointwise([x], lambda v: cast(to, v))
    np.testing.assert_array_equal(actual, expected, strict=True)


@pytest.mark.parametrize("target", ["host", "shorter"])
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("to", [DType.I32, DType.I64, DType.U64])
def test_floats_beyond_an_integers_range_saturate(to: DType, source: DType, target: str) -> None:
    limits = np.iinfo(to.numpy)
    beyond = [math.inf, 1e30, -math.inf, -1e30, math.nan]
    inside = [0.0, 1.9, 2.0**30, 2.0**31 - 128, 3.0]  # a vector with some of each
    x = np.array([*beyond, *inside, *range(30)], source.numpy)
    actual = run_pointwise([x], lambda v: cast(to, v), target)
    ends = [limits.max, limits.max, limits.min, limits.min, 0]
    expected = np.array([*ends, *map(int, inside), *range(30)], to.numpy)
    np.testing.assert_array_equal(actual, expected)
