"""Scalar and vector arithmetic of generated code against NumPy: functions, operators, casts."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.llvm.pointwise import SPECIAL, Values, float32_samples, pairs, run_pointwise
from tunefarm.compiler.expr.nodes import Expr, binary, cast, const, unary
from tunefarm.compiler.types.dtypes import WIDE, DType

FLOATS = (DType.F32, DType.F64)
INTEGERS = tuple(dtype for dtype in DType if dtype.is_integer and dtype.bits >= 8)

_erf = np.frompyfunc(math.erf, 1, 1)

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


@pytest.mark.parametrize("divisor", [-3, 5, 1 << 31, (1 << 32) + 2])
@pytest.mark.parametrize("op", ["floordiv", "mod"])
def test_division_of_what_is_never_negative(op: str, divisor: int) -> None:
    values = np.arange(-20, 20)
    places = const(7, DType.I64)
    actual = run_pointwise(
        [values], lambda a: binary(op, binary("mod", a, places), const(divisor, DType.I64))
    )
    exact = [INTEGER_BINARY[op](int(a) % 7, divisor, 64) for a in values]
    np.testing.assert_array_equal(actual, np.array(exact))


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


@pytest.mark.parametrize("to", sorted(WIDE))
@pytest.mark.parametrize("source", sorted(WIDE))
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
