"""Vector functions of angles. Largest errors in ulp: see each function.

Angles are reduced by multiples k of pi/2 (Cody and Waite): pi/2 in parts, whose products with k are
exact or subtracted in one rounding. That serves to 10^5 with fused multiplication and 10^4 without;
a vector with a larger angle, which models hardly have, goes through libm.
"""

from __future__ import annotations

import math

from tunefarm.compiler.expr.instructions import Instructions
from tunefarm.compiler.expr.polynomials import (
    bits_of,
    from_bits,
    integers,
    magnitude,
    odd,
    rounding,
    square_root,
    taylor,
    with_sign_of,
)
from tunefarm.compiler.types.dtypes import DType

# sin(r) = r + r^3 p(r^2), |r| <= pi/2: 2^-27.3
_SIN = (
    -0.16666659712791443,
    0.008333069272339344,
    -0.00019809773948509246,
    2.606081807243754e-06,
)
# tan(r) = r + r^3 p(r^2), |r| <= pi/4: 2^-25.7
_TAN = (
    0.33333155512809753,
    0.1333884447813034,
    0.053407035768032074,
    0.02444656938314438,
    0.0030919783748686314,
    0.009402706287801266,
)
# asin(x) = x + x^3 p(x^2), |x| <= 1/2: 2^-27.6
_ASIN = (
    0.16666752099990845,
    0.0749531015753746,
    0.045469019562006,
    0.024185502901673317,
    0.04215701296925545,
)
# atan(x) = x + x^3 p(x^2), |x| <= 1: 2^-28.5
_ATAN = (
    -0.33333298563957214,
    0.1999853104352951,
    -0.14264051616191864,
    0.10951175540685654,
    -0.08400480449199677,
    0.05790668725967407,
    -0.031127188354730606,
    0.010887479409575462,
    -0.0017875764751806855,
)
# pi/2 in f32 parts, and in parts so short that 13 bits times one of them are exact. All have one
# sign, so that none takes away that of a zero.
_PARTS = (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15)
_SHORT_PARTS = (1.5703125, 0.0004837512969970703, 7.549533620476723e-08, 2.5633440682570896e-12)
# The same of f64.
_PARTS_OF_DOUBLES = (1.5707963267948966, 6.123233995736765e-17, 1.0828566739219139e-32)
_HALF_PI_HIGH, _HALF_PI_LOW = 1.5707963705062866, -4.371138828673793e-08


def _less(m: Instructions, x: str, multiple: str, unit: float) -> str:
    """x less a multiple of `unit` pi/2 (1 or 2)."""
    parts = _PARTS if m.has_fma else _SHORT_PARTS
    for part in _PARTS_OF_DOUBLES if m.dtype is DType.F64 else parts:
        x = m.fma(multiple, m.constant(-unit * part), x)
    return x


def _with_libm(m: Instructions, name: str, x: str, reduced: str) -> str:
    """`reduced`, or the C library's answer where angles are too large for that, or NaN."""
    limit = m.constant(1e5 if m.has_fma else 1e4)
    too_large = m.compare("ugt", magnitude(m, x), limit)
    return m.rarely(too_large, reduced, lambda: m.libm(name, x))


def _sine(m: Instructions, r: str, odd_bit: str) -> str:
    """sin r, negated where the lowest bit is set."""
    i = integers(m)
    coefficients = _SIN if m.dtype is DType.F32 else taylor(3, 10, 2, sign=-1)
    y = odd(m, r, m.emit("fmul", r, r), coefficients)
    flip = i.emit("shl", odd_bit, i.constant(8 * m.dtype.bytes - 1))
    return with_sign_of(m, y, from_bits(m, i.emit("xor", bits_of(m, r), flip)))


def sin(m: Instructions, x: str) -> str:
    """(-1)^k sin(x - k pi); 2.0 ulp."""
    if m.dtype is DType.F64 and not m.has_fma:
        return m.libm("sin", x)
    biased = m.fma(x, m.constant(1 / math.pi), rounding(m))
    k = m.emit("fsub", biased, rounding(m))
    return _with_libm(m, "sin", x, _sine(m, _less(m, x, k, 2.0), bits_of(m, biased)))


def cos(m: Instructions, x: str) -> str:
    """(-1)^(k + 1) sin(x - (2 k + 1) pi/2); 2.0 ulp."""
    if m.dtype is DType.F64 and not m.has_fma:
        return m.libm("cos", x)
    middle = m.fma(x, m.constant(1 / math.pi), m.constant(-0.5))
    biased = m.emit("fadd", middle, rounding(m))
    k = m.emit("fsub", biased, rounding(m))
    odd_multiple = m.fma(k, m.constant(2.0), m.constant(1.0))
    i = integers(m)
    turned = i.emit("xor", bits_of(m, biased), i.constant(1))
    return _with_libm(m, "cos", x, _sine(m, _less(m, x, odd_multiple, 1.0), turned))


def tan(m: Instructions, x: str) -> str:
    """tan(x - k pi/2), or -1 over that for odd k; 3.0 ulp."""
    biased = m.fma(x, m.constant(2 / math.pi), rounding(m))
    k = m.emit("fsub", biased, rounding(m))
    r = _less(m, x, k, 1.0)
    t = odd(m, r, m.emit("fmul", r, r), _TAN)
    i = integers(m)
    lowest = i.emit("and", bits_of(m, biased), i.constant(1))
    is_even = i.compare("eq", lowest, i.constant(0))
    result = m.select(is_even, t, m.emit("fdiv", m.constant(-1.0), t))
    return _with_libm(m, "tan", x, result)


def asin(m: Instructions, x: str) -> str:
    """asin x; beyond 1/2 as pi/2 - 2 asin(sqrt((1 - x) / 2)); 2.4 ulp."""
    far, p = _asin_or_rest(m, x)
    rest = m.fma(m.constant(-2.0), p, m.constant(_HALF_PI_LOW))
    large = m.emit("fadd", m.constant(_HALF_PI_HIGH), rest)
    return with_sign_of(m, m.select(far, large, p), x)


def acos(m: Instructions, x: str) -> str:
    """pi/2 - asin x; beyond 1/2 as 2 asin(sqrt((1 - x) / 2)), pi less that below -1/2; 1.3 ulp."""
    far, p = _asin_or_rest(m, x)
    double = m.emit("fadd", p, p)
    opposite = m.emit("fsub", m.constant(2 * _HALF_PI_LOW), double)
    opposite = m.emit("fadd", m.constant(2 * _HALF_PI_HIGH), opposite)
    outer = m.select(m.compare("lt", x, m.constant(0.0)), opposite, double)
    middle = m.emit("fsub", m.constant(_HALF_PI_LOW), with_sign_of(m, p, x))
    middle = m.emit("fadd", m.constant(_HALF_PI_HIGH), middle)
    return m.select(far, outer, middle)


def _asin_or_rest(m: Instructions, x: str) -> tuple[str, str]:
    """Whether |x| > 1/2, and the arcsine: of |x|, or there of sqrt((1 - |x|) / 2)."""
    a = magnitude(m, x)
    far = m.compare("gt", a, m.constant(0.5))
    halved = m.fma(a, m.constant(-0.5), m.constant(0.5))
    square = m.select(far, halved, m.emit("fmul", a, a))
    argument = m.select(far, square_root(m, halved), a)
    return far, odd(m, argument, square, _ASIN)


def atan(m: Instructions, x: str) -> str:
    """atan x; beyond 1 as pi/2 - atan(1 / x); 1.5 ulp."""
    a, one = magnitude(m, x), m.constant(1.0)
    far = m.compare("gt", a, one)
    t = m.emit("fdiv", m.select(far, one, a), m.select(far, a, one))
    y = odd(m, t, m.emit("fmul", t, t), _ATAN)
    large = m.emit("fsub", m.constant(_HALF_PI_LOW), y)
    large = m.emit("fadd", m.constant(_HALF_PI_HIGH), large)
    return with_sign_of(m, m.select(far, large, y), x)
