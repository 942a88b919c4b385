"""Emission of f32 functions as vector polynomials.

Coefficients are weighted least-squares fits, iterated towards minimax, over the reduced interval.
Largest errors, in units in the last place of the result: exp 1.1, log 0.9, tanh 1.4, sigmoid 2.4,
erf 2.5; denormals, infinities, NaN and the sign of zero come out as they should
(tests/compiler/llvm/test_scalar_ops.py). Other functions, and f64, call libm.
"""

from __future__ import annotations

from compiler.expr.instructions import Instructions
from compiler.types.dtypes import DType

# exp(r) = 1 + r + r^2 p(r), |r| <= ln(2)/2
_EXP = (0.5, 0.166665181517601, 0.04166620224714279, 0.008368969894945621, 0.0013950627762824297)
# tanh(x) = x + x z p(z), z = x^2, |x| <= 0.625
_TANH = (
    -0.3333328366279602,
    0.13331490755081177,
    -0.05374349281191826,
    0.020650576800107956,
    -0.0057170335203409195,
)
# erf(x) = x p(x^2), |x| <= 1
_ERF_SMALL = (
    1.1283791065216064,
    -0.3761262595653534,
    0.11283600330352783,
    -0.026854444295167923,
    0.005189535208046436,
    -0.0008020841050893068,
    7.889118569437414e-05,
)
# erf(x) = 1 - exp(p(x)), 1 <= x <= 4
_ERF_LARGE = (
    0.00020436030172277242,
    -1.129661202430725,
    -0.6330395936965942,
    -0.10863900184631348,
    0.025373561307787895,
    -0.0042823851108551025,
    0.00046378871775232255,
    -2.5314921003882773e-05,
    2.513346260002436e-07,
)
# log(1 + f) = f - f^2/2 + f^3 p(f), sqrt(1/2) <= 1 + f <= sqrt(2)
_LOG = (
    0.33333316445350647,
    -0.25000810623168945,
    0.2000228613615036,
    -0.16624553501605988,
    0.14181196689605713,
    -0.13128772377967834,
    0.128816157579422,
    -0.07859525829553604,
)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4


def _fma(m: Instructions, a: str, b: str, c: str) -> str:
    if m.has_fma:
        return m.call("llvm.fma", a, b, c)
    return m.emit("fadd", m.emit("fmul", a, b), c)


def _polynomial(m: Instructions, x: str, coefficients: tuple[float, ...]) -> str:
    """Horner's scheme; coefficients from the constant term up."""
    result = m.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = _fma(m, result, x, m.constant(coefficient))
    return result


def _to_int(m: Instructions, x: str) -> str:
    return m.of(DType.I32).emit("freeze", m.convert("fptosi", x, DType.I32))


def _power_of_two(m: Instructions, exponent: str) -> str:
    i = m.of(DType.I32)
    bits = i.emit("shl", i.emit("add", exponent, i.constant(127)), i.constant(23))
    return i.convert("bitcast", bits, DType.F32)


def exp(m: Instructions, x: str) -> str:
    """e^x: x = n ln2 + r, a polynomial in r, and 2^n in two factors for the denormal range."""
    low, high = m.constant(-104.0), m.constant(89.0)
    x = m.select(m.compare("gt", low, x), low, x)
    x = m.select(m.compare("lt", high, x), high, x)
    p, exponent = _exp_parts(m, x)
    i = m.of(DType.I32)
    half = i.emit("ashr", exponent, i.constant(1))
    rest = i.emit("sub", exponent, half)
    return m.emit("fmul", m.emit("fmul", p, _power_of_two(m, half)), _power_of_two(m, rest))


def _normal_exp(m: Instructions, x: str) -> str:
    """e^x for |x| <= 87 or NaN, where the result is neither denormal nor infinite."""
    p, exponent = _exp_parts(m, x)
    return m.emit("fmul", p, _power_of_two(m, exponent))


def _exp_parts(m: Instructions, x: str) -> tuple[str, str]:
    """p and the integer n with e^x = p 2^n."""
    n = m.call("llvm.rint", m.emit("fmul", x, m.constant(1.4426950408889634)))
    r = _fma(m, n, m.constant(-_LN2_HIGH), x)
    r = _fma(m, n, m.constant(-_LN2_LOW), r)
    p = _fma(m, m.emit("fmul", r, r), _polynomial(m, r, _EXP), r)
    return m.emit("fadd", p, m.constant(1.0)), _to_int(m, n)


def sigmoid(m: Instructions, x: str) -> str:
    """1 / (1 + e^-x), for x < 0 as e^x / (1 + e^x), which does not overflow."""
    magnitude = m.call("llvm.fabs", x)
    e = exp(m, m.emit("fneg", magnitude))
    one = m.constant(1.0)
    numerator = m.select(m.compare("lt", x, m.constant(0.0)), e, one)
    return m.emit("fdiv", numerator, m.emit("fadd", e, one))


def tanh(m: Instructions, x: str) -> str:
    z = m.emit("fmul", x, x)
    small = _fma(m, m.emit("fmul", x, z), _polynomial(m, z, _TANH), x)
    magnitude = m.call("llvm.fabs", x)
    ten = m.constant(10.0)  # from here on tanh is 1
    clamped = m.select(m.compare("gt", magnitude, ten), ten, magnitude)
    e = _normal_exp(m, m.emit("fadd", clamped, clamped))
    quotient = m.emit("fdiv", m.constant(2.0), m.emit("fadd", e, m.constant(1.0)))
    large = m.emit("fsub", m.constant(1.0), quotient)
    is_small = m.compare("ule", magnitude, m.constant(0.625))
    return m.call("llvm.copysign", m.select(is_small, small, large), x)


def erf(m: Instructions, x: str) -> str:
    magnitude = m.call("llvm.fabs", x)
    small = m.emit("fmul", x, _polynomial(m, m.emit("fmul", x, x), _ERF_SMALL))
    four = m.constant(4.0)
    clamped = m.select(m.compare("gt", magnitude, four), four, magnitude)
    e = _normal_exp(m, _polynomial(m, clamped, _ERF_LARGE))
    large = m.call("llvm.copysign", m.emit("fsub", m.constant(1.0), e), x)
    return m.select(m.compare("ule", magnitude, m.constant(1.0)), small, large)


def log(m: Instructions, x: str) -> str:
    """log x: x = 2^n c with c in [sqrt(1/2), sqrt(2)), a polynomial in c - 1."""
    i = m.of(DType.I32)
    tiny = m.compare("lt", x, m.constant(1.1754943508222875e-38))
    scaled = m.select(tiny, m.emit("fmul", x, m.constant(2.0**25)), x)
    bits = m.convert("bitcast", scaled, DType.I32)
    # The exponent of c's interval, rounded so that c >= sqrt(1/2).
    n = i.emit("ashr", i.emit("sub", bits, i.constant(0x3F3504F3)), i.constant(23))
    c_bits = i.emit("sub", bits, i.emit("shl", n, i.constant(23)))
    c = i.convert("bitcast", c_bits, DType.F32)
    f = m.emit("fsub", c, m.constant(1.0))
    e = i.convert("sitofp", n, DType.F32)
    e = m.select(tiny, m.emit("fsub", e, m.constant(25.0)), e)
    f2 = m.emit("fmul", f, f)
    y = m.emit("fmul", m.emit("fmul", f2, f), _polynomial(m, f, _LOG))
    y = _fma(m, e, m.constant(_LN2_LOW), y)
    y = _fma(m, f2, m.constant(-0.5), y)
    y = m.emit("fadd", f, y)
    y = _fma(m, e, m.constant(_LN2_HIGH), y)
    infinity = m.constant(float("inf"))
    y = m.select(m.compare("eq", x, infinity), infinity, y)
    zero = m.constant(0.0)
    y = m.select(m.compare("eq", x, zero), m.constant(float("-inf")), y)
    return m.select(m.compare("ult", x, zero), m.constant(float("nan")), y)
