"""Vector functions round e^x. Largest errors in ulp: see each function (of f64 too: 2.5).

e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln(2)/2. n is found by adding a number
whose last bit is 1: it is in the sum's lowest bits, from where a shift takes it into an exponent.
"""

from __future__ import annotations

from typing import NamedTuple

from tunefarm.compiler.expr.instructions import Instructions
from tunefarm.compiler.expr.polynomials import (
    MANTISSA,
    at_least,
    at_most,
    bits_of,
    from_bits,
    horner,
    integers,
    magnitude,
    odd,
    rounding,
    taylor,
    with_sign_of,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

# e^r = 1 + r + r^2 p(r), |r| <= ln(2)/2: 2^-28.2
_EXP = (
    0.4999999403953552,
    0.1666652113199234,
    0.04166826605796814,
    0.008368677459657192,
    0.001382073387503624,
)
# The same for functions that are within 3.5 ulp anyway: 2^-23.2
_SHORT_EXP = (
    0.499992311000824,
    0.16667115688323975,
    0.041890256106853485,
    0.008312467485666275,
)
_LOG2_E = 1.4426950408889634
# log(1 + e) = e p(e), 0 <= e <= 1: 2^-27.5
_LOG_ONE_PLUS = (
    1.0,
    -0.4999993145465851,
    0.3333047032356262,
    -0.24958156049251556,
    0.19693182408809662,
    -0.15349021553993225,
    0.10669798403978348,
    -0.0575585775077343,
    0.020148349925875664,
    -0.003306016093119979,
)
# erf(x) = 1 - 2^(x p(x)), 0 <= x <= 3.95: 2^-27.4
_ERF = (
    -1.6279070377349854,
    -0.9184474349021912,
    -0.14827924966812134,
    0.02764146402478218,
    0.00021197441674303263,
    -0.002383988816291094,
    0.000900785846170038,
    -0.00016614183550700545,
    1.2939789485244546e-05,
)
# 2^r = 1 + r p(r), |r| <= 1/2: 2^-26.2 of r p(r)
_EXP2 = (
    0.6931471824645996,
    0.24022649228572845,
    0.05550367385149002,
    0.009618307463824749,
    0.001338740810751915,
    0.00015383744903374463,
)
# tanh(x) = x p(x^2) / q(x^2), 0 <= x <= 9: 2^-25.5
_TANH_ABOVE = (
    1.0,
    0.13383980095386505,
    0.0034989966079592705,
    2.0661271264543757e-05,
    1.3419833244654455e-08,
)
_TANH_BELOW = (
    1.0,
    0.4671730101108551,
    0.025890208780765533,
    0.00032910390291363,
    7.804733854754886e-07,
)
# sinh(x) = x + x^3 p(x^2), |x| <= 1: 2^-24.8
_SINH = (0.16666732728481293, 0.00832962617278099, 0.0002042697014985606)


@frozen
class _Format:
    """What differs between element types.

    e^x is 0 below `tiniest` and infinite beyond `largest`; sigmoid and tanh are 1 from `ones` on.
    `below`: 2^-below more takes normal numbers to all denormals. n times `ln2_high` is exact.
    """

    bias: int
    tiniest: float
    largest: float
    below: int
    ln2_high: float
    ln2_low: float
    exp: tuple[float, ...]
    sigmoid_exp: tuple[float, ...]
    sinh: tuple[float, ...]
    ones: tuple[float, float]


_FORMATS = {
    DType.F32: _Format(
        bias=127,
        tiniest=-104.0,
        largest=89.0,
        below=24,
        ln2_high=0.693359375,
        ln2_low=-2.12194440e-4,
        exp=_EXP,
        sigmoid_exp=_SHORT_EXP,
        sinh=_SINH,
        ones=(18.0, 9.1),
    ),
    DType.F64: _Format(
        bias=1023,
        tiniest=-746.0,
        largest=710.0,
        below=54,
        ln2_high=6.93147180369123816490e-01,
        ln2_low=1.90821492927058770002e-10,
        exp=taylor(2, 12),
        sigmoid_exp=taylor(2, 12),
        sinh=taylor(3, 9, 2),
        ones=(40.0, 19.1),
    ),
}


def _format(m: Instructions) -> _Format:
    return _FORMATS[m.dtype]


class _Reduced(NamedTuple):
    """x = n ln 2 + r; `bits` has n in its lowest bits and zeros in the next."""

    n: str
    bits: str
    r: str


def _reduce(m: Instructions, x: str, scale: float = 1.0) -> _Reduced:
    """x, which is `scale` times the argument, reduced; NaN has an r that is NaN."""
    format = _format(m)
    biased = m.fma(x, m.constant(_LOG2_E * scale), rounding(m))
    n = m.emit("fsub", biased, rounding(m))
    argument = x if scale == 1 else m.emit("fmul", x, m.constant(scale))
    r = m.fma(n, m.constant(-format.ln2_high), argument)
    return _Reduced(n, bits_of(m, biased), m.fma(n, m.constant(-format.ln2_low), r))


def _exp_of_rest_minus_one(m: Instructions, r: str) -> str:
    return m.fma(m.emit("fmul", r, r), horner(m, r, _format(m).exp), r)


def _power_of_two(m: Instructions, bits: str, offset: str) -> str:
    """2^n, times two to the offset in bits of an exponent."""
    i = integers(m)
    return from_bits(m, i.emit("add", i.emit("shl", bits, i.constant(MANTISSA[m.dtype])), offset))


def _offset(m: Instructions, exponent: int) -> str:
    return integers(m).constant((_format(m).bias + exponent) << MANTISSA[m.dtype])


def exp(m: Instructions, x: str) -> str:
    """e^x; 1.2 ulp."""
    return _scaled_exp(m, x)


def _scaled_exp(m: Instructions, x: str, halvings: int = 0) -> str:
    """e^x 2^-halvings.

    AVX-512 needs no bound above: however wrong, p stays positive, and 2^n makes it infinite; below,
    p itself could be that.
    """
    format = _format(m)
    x = at_least(m, format.tiniest, x)
    if not m.has_avx512:
        x = at_most(m, format.largest + halvings, x)
    reduced = _reduce(m, x)
    p = horner(m, reduced.r, (1.0, 1.0, *format.exp))
    if m.has_avx512:
        n = reduced.n
        if halvings:
            n = m.emit("fsub", n, m.constant(halvings))
        return m.avx512("scalef", p, n)
    # In two steps, as no f32 is 2^-150 or 2^128: either the second is 2^-24, or it is 2.
    i = integers(m)
    negative = i.compare("lt", bits_of(m, x), i.constant(0))  # what instructions choose by
    offsets = [_offset(m, exponent - halvings) for exponent in (format.below, -1)]
    first = _power_of_two(m, reduced.bits, i.select(negative, *offsets))
    second = m.select(negative, m.constant(2.0**-format.below), m.constant(2.0))
    return m.emit("fmul", m.emit("fmul", p, first), second)


def _moderate_exp(m: Instructions, x: str, coefficients: tuple[float, ...]) -> str:
    """e^x for x <= 70 or NaN."""
    format = _format(m)
    x = at_least(m, format.tiniest, x)
    reduced = _reduce(m, x)
    p = horner(m, reduced.r, (1.0, 1.0, *coefficients))
    if m.has_avx512:
        return m.avx512("scalef", p, reduced.n)
    scaled = m.emit("fmul", p, _power_of_two(m, reduced.bits, _offset(m, format.below)))
    return m.emit("fmul", scaled, m.constant(2.0**-format.below))


def _moderate_exp_minus_one(m: Instructions, x: str, scale: float = 1.0) -> str:
    """e^(scale x) - 1 for scale x in -80..80, or NaN; exact where it is next to nothing."""
    reduced = _reduce(m, x, scale)
    power = _power_of_two(m, reduced.bits, _offset(m, 0))
    less = m.emit("fsub", power, m.constant(1.0))
    return m.fma(power, _exp_of_rest_minus_one(m, reduced.r), less)


def exp_nonpositive(m: Instructions, x: str) -> str:
    """e^x for x <= 80 or NaN, of f32; 1.2 ulp, but 0 where that is below the normal numbers.

    2^-127, as what an exponent of no bits stands for, is 0.
    """
    if m.has_avx512:
        return exp(m, x)
    reduced = _reduce(m, at_least(m, -88.0, x))
    p = horner(m, reduced.r, (1.0, 1.0, *_EXP))
    return m.emit("fmul", p, _power_of_two(m, reduced.bits, _offset(m, 0)))


def exp_minus_one(m: Instructions, x: str) -> str:
    """e^x - 1; 1.5 ulp. As twice the half, since 2^128 is no float; tiny x are their own."""
    reduced = _reduce(m, at_least(m, -40.0, at_most(m, _format(m).largest, x)))
    power = _power_of_two(m, reduced.bits, _offset(m, -1))
    less = m.emit("fsub", power, m.constant(0.5))
    half = m.fma(power, _exp_of_rest_minus_one(m, reduced.r), less)
    is_tiny = m.compare("lt", magnitude(m, x), m.constant(1e-30))
    return m.select(is_tiny, x, m.emit("fadd", half, half))


def sigmoid(m: Instructions, x: str) -> str:
    """1 / (1 + e^-x) as e^x / (1 + e^x), which is 1 from 18 on; 3.5 ulp."""
    format = _format(m)
    e = _moderate_exp(m, at_most(m, format.ones[0], x), format.sigmoid_exp)
    return m.emit("fdiv", e, m.emit("fadd", e, m.constant(1.0)))


def softplus(m: Instructions, x: str) -> str:
    """log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), of f32; 2.4 ulp."""
    e = _moderate_exp(m, m.emit("fneg", magnitude(m, x)), _EXP)
    tail = m.emit("fmul", e, horner(m, e, _LOG_ONE_PLUS))
    return m.emit("fadd", at_least(m, 0.0, x), tail)


def tanh(m: Instructions, x: str) -> str:
    """(e^2x - 1) / (e^2x + 1), which is 1 from 9.1 on; 2.4 ulp."""
    bounded = at_most(m, _format(m).ones[1], magnitude(m, x))
    e = _moderate_exp_minus_one(m, bounded, 2.0)
    quotient = m.emit("fdiv", e, m.emit("fadd", e, m.constant(2.0)))
    return with_sign_of(m, quotient, x)


def tanh_rational(m: Instructions, x: str) -> str:
    """x p(x^2) / q(x^2), of f32, at most 1; 5.4 ulp, in half of the time where e^x takes long."""
    bounded = at_most(m, 9.0, at_least(m, -9.0, x))
    square = m.emit("fmul", bounded, bounded)
    above = m.emit("fmul", bounded, horner(m, square, _TANH_ABOVE))
    quotient = m.emit("fdiv", above, horner(m, square, _TANH_BELOW))
    return at_most(m, 1.0, at_least(m, -1.0, quotient))


def sinh(m: Instructions, x: str) -> str:
    """(e^x - e^-x) / 2; a polynomial below 1; 1.8 ulp."""
    a = magnitude(m, x)
    half = _half_exp(m, a)
    large = m.emit("fsub", half, m.emit("fdiv", m.constant(0.25), half))
    small = odd(m, a, m.emit("fmul", a, a), _format(m).sinh)
    result = m.select(m.compare("gt", a, m.constant(1.0)), large, small)
    return with_sign_of(m, result, x)


def cosh(m: Instructions, x: str) -> str:
    """(e^x + e^-x) / 2; 1.6 ulp."""
    half = _half_exp(m, magnitude(m, x))
    return m.emit("fadd", half, m.emit("fdiv", m.constant(0.25), half))


def _half_exp(m: Instructions, a: str) -> str:
    """e^a / 2 for a >= 0, which is finite for longer than e^a."""
    return _scaled_exp(m, a, halvings=1)


def erf(m: Instructions, x: str) -> str:
    """1 - 2^(x p(x)) where |x| < 3.95, 1 beyond, of f32; 2.5 ulp.

    To the base 2 the constant term of p is nearly an f32, -1.6279070, and no product is subtracted.
    """
    a = at_most(m, 3.95, magnitude(m, x))
    exponent = m.emit("fmul", a, horner(m, a, _ERF))
    biased = m.emit("fadd", exponent, rounding(m))
    r = m.emit("fsub", exponent, m.emit("fsub", biased, rounding(m)))
    power = _power_of_two(m, bits_of(m, biased), _offset(m, 0))
    beside_one = m.emit("fmul", r, horner(m, r, _EXP2))
    more = m.emit("fsub", m.constant(1.0), power)
    result = m.fma(m.emit("fneg", power), beside_one, more)
    return with_sign_of(m, result, x)
