"""Vector functions round log x. Largest errors in ulp: see each function.

log x = e ln 2 + log(1 + f) with x = 2^e (1 + f), 3/4 <= 1 + f < 3/2.
"""

from __future__ import annotations

from tunefarm.compiler.expr.instructions import Instructions
from tunefarm.compiler.expr.polynomials import (
    MANTISSA,
    bits_of,
    from_bits,
    horner,
    integers,
    magnitude,
    odd,
    rounding,
    square_root,
    with_sign_of,
)
from tunefarm.compiler.types.dtypes import DType

# log(1 + f) = f - f^2/2 + f^3 p(f), -1/4 <= f < 1/2: 2^-27.6
_LOG = (
    0.3333345055580139,
    -0.25000104308128357,
    0.19990819692611694,
    -0.1664699912071228,
    0.14478321373462677,
    -0.13163873553276062,
    0.10468878597021103,
    -0.04511205479502678,
)
# Both positive, so that infinite exponents do not cancel; e times the former is exact.
_LN2_HIGH, _LN2_LOW = 0.6931381225585938, 9.058001351559417e-06
# asinh(x) = x + x^3 p(x^2), |x| <= 1/2: 2^-29.6
_ASINH = (
    -0.1666664332151413,
    0.07498642802238464,
    -0.044383447617292404,
    0.028164224699139595,
    -0.013229708187282085,
)
# atanh(x) = x + x^3 p(x^2), |x| <= 1/2: 2^-29.4
_ATANH = (
    0.33333301544189453,
    0.2000245302915573,
    0.1422378569841385,
    0.11816386133432388,
    0.05160436034202576,
    0.1763785034418106,
)
# log(1 + f) = f - f^2/2 + s (f^2/2 + z p(z)), s = f / (2 + f), z = s^2: fdlibm's e_log.c, for f64
_LOG_OF_DOUBLES = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
_LN2_OF_DOUBLES = (6.93147180369123816490e-01, 1.90821492927058770002e-10)
# The bits of the smallest 1 + f: 3/4, and sqrt(1/2) of f64.
_LEAST = {DType.F32: 0x3F400000, DType.F64: 0x3FE6A09E667F3BCD}
_SMALLEST_NORMAL = {DType.F32: 2.0**-126, DType.F64: 2.0**-1022}
_SCALE = 54  # 2^54 times a denormal number is normal
_SQUARABLE = 2.0**40
_GETMANT = 0b1011  # a mantissa in [3/4, 3/2), NaN for what is negative


def log(m: Instructions, x: str) -> str:
    """log x; 1.0 ulp."""
    if m.dtype is DType.F64:
        return _with_special_values(m, x, _joined_doubles(m, *split(m, x)))
    if m.has_avx512:
        c = m.avx512("getmant", x, immediate=_GETMANT)
        e = m.avx512("getexp", x)  # of the mantissa in [1, 2)
        more = m.emit("fadd", e, m.constant(1.0))
        e = m.select(m.compare("lt", c, m.constant(1.0)), more, e)
        return _joined(m, m.emit("fsub", c, m.constant(1.0)), e)
    return _with_special_values(m, x, _joined(m, *split(m, x)))


def _with_special_values(m: Instructions, x: str, y: str) -> str:
    """y, but of infinity, zero and what is negative."""
    infinity, zero = m.constant(float("inf")), m.constant(0.0)
    y = m.select(m.compare("eq", x, infinity), infinity, y)
    y = m.select(m.compare("eq", x, zero), m.constant(float("-inf")), y)
    return m.select(m.compare("ult", x, zero), m.constant(float("nan")), y)


def split(m: Instructions, x: str) -> tuple[str, str]:
    """f and e of a positive number."""
    i, shift = integers(m), integers(m).constant(MANTISSA[m.dtype])
    tiny = m.compare("lt", x, m.constant(_SMALLEST_NORMAL[m.dtype]))
    scaled = m.select(tiny, m.emit("fmul", x, m.constant(2.0**_SCALE)), x)
    bits = bits_of(m, scaled)
    n = i.emit("ashr", i.emit("sub", bits, i.constant(_LEAST[m.dtype])), shift)
    c = from_bits(m, i.emit("sub", bits, i.emit("shl", n, shift)))
    if m.dtype is DType.F32:
        e = i.convert("sitofp", n, DType.F32)
    else:  # most CPUs convert no vectors of 64-bit integers
        biased = i.emit("add", n, bits_of(m, rounding(m)))
        e = m.emit("fsub", from_bits(m, biased), rounding(m))
    e = m.select(tiny, m.emit("fsub", e, m.constant(_SCALE)), e)
    return m.emit("fsub", c, m.constant(1.0)), e


def _joined_doubles(m: Instructions, f: str, e: str) -> str:
    """e ln 2 + log(1 + f) of f64."""
    s = m.emit("fdiv", f, m.emit("fadd", f, m.constant(2.0)))
    z, half = m.emit("fmul", s, s), m.emit("fmul", m.emit("fmul", f, f), m.constant(0.5))
    series = m.fma(z, horner(m, z, _LOG_OF_DOUBLES), half)
    high, low = _LN2_OF_DOUBLES
    small = m.fma(s, series, m.emit("fmul", e, m.constant(low)))
    rest = m.emit("fsub", m.emit("fsub", half, small), f)
    return m.fma(e, m.constant(high), m.emit("fneg", rest))


def _joined(m: Instructions, f: str, e: str) -> str:
    """e ln 2 + log(1 + f), the smallest terms first."""
    square = m.emit("fmul", f, f)
    y = m.emit("fmul", m.emit("fmul", square, f), horner(m, f, _LOG))
    y = m.fma(e, m.constant(_LN2_LOW), y)
    y = m.fma(square, m.constant(-0.5), y)
    return m.fma(e, m.constant(_LN2_HIGH), m.emit("fadd", f, y))


def _log_one_plus(m: Instructions, y: str) -> str:
    """log(1 + y) for finite y >= 0: what the sum lost is made good by the derivative."""
    total = m.emit("fadd", y, m.constant(1.0))
    lost = m.emit("fsub", y, m.emit("fsub", total, m.constant(1.0)))
    return m.emit("fadd", log(m, total), m.emit("fdiv", lost, total))


def asinh(m: Instructions, x: str) -> str:
    """log(|x| + sqrt(x^2 + 1)), a polynomial below 1/2; 3.5 ulp."""
    a = magnitude(m, x)
    square = m.emit("fmul", a, a)
    root = square_root(m, m.emit("fadd", square, m.constant(1.0)))
    large = _log_of_sum(m, a, root)
    small = odd(m, a, square, _ASINH)
    result = m.select(m.compare("gt", a, m.constant(0.5)), large, small)
    return with_sign_of(m, result, x)


def acosh(m: Instructions, x: str) -> str:
    """log(1 + t + sqrt(t^2 + 2 t)) with t = x - 1; 2.5 ulp."""
    t = m.emit("fsub", x, m.constant(1.0))
    t = m.select(m.compare("lt", t, m.constant(0.0)), m.constant(float("nan")), t)
    root = square_root(m, m.emit("fmul", t, m.emit("fadd", t, m.constant(2.0))))
    near = _log_one_plus(m, m.emit("fadd", t, root))
    return m.select(m.compare("gt", x, m.constant(_SQUARABLE)), _log_of_sum(m, x, x), near)


def _log_of_sum(m: Instructions, a: str, b: str) -> str:
    """log(a + b) where b is as large as a, or a is so large that it should be."""
    huge = m.compare("gt", a, m.constant(_SQUARABLE))
    y = log(m, m.select(huge, a, m.emit("fadd", a, b)))
    ln2 = m.constant(0.6931471805599453)
    return m.select(huge, m.emit("fadd", y, ln2), y)


def atanh(m: Instructions, x: str) -> str:
    """log((1 + x) / (1 - x)) / 2, a polynomial below 1/2; 1.4 ulp."""
    a, one = magnitude(m, x), m.constant(1.0)
    quotient = m.emit("fdiv", m.emit("fadd", one, a), m.emit("fsub", one, a))
    large = m.emit("fmul", log(m, quotient), m.constant(0.5))
    small = odd(m, a, m.emit("fmul", a, a), _ATANH)
    result = m.select(m.compare("gt", a, m.constant(0.5)), large, small)
    return with_sign_of(m, result, x)
