"""x^y of floats as vector code.

A constant y whose quadruple is a small integer takes multiplications, a reciprocal and roots: y is
2, -1 or 1/2 right to the last bit, else within 5 ulp. Any other power of f32 is 2^(y log2 |x|) with
the logarithm in f64, so that its error times y stays below that of f32: 1.2 ulp. Infinities, NaN
and signs are as C's pow has them. Other powers of f64 call libm.
"""

from __future__ import annotations

from tunefarm.compiler.expr.instructions import Instructions
from tunefarm.compiler.expr.logarithms import split
from tunefarm.compiler.expr.polynomials import (
    at_least,
    at_most,
    bits_of,
    from_bits,
    horner,
    integers,
    magnitude,
    square_root,
)
from tunefarm.compiler.types.dtypes import DType

_MOST_MULTIPLIED = 8
# log2(1 + f) = s p(s^2), s = f / (2 + f), |s| <= 1/5: 2^-35.5, in f64
_LOG2 = (
    2.8853900818357596,
    0.9617966218173308,
    0.5770923446080946,
    0.41120603025490376,
    0.3484000252422399,
)
# 2^r = 1 + r p(r), |r| <= 1/2: 2^-32.5
_EXP2 = (
    0.6931471824645996,
    0.24022650718688965,
    0.055504050105810165,
    0.009618086740374565,
    0.001333796069957316,
    0.00015452173829544336,
    1.4324592484626919e-05,
)
_INFINITY = float("inf")
_LARGEST_EXPONENT = 160.0  # of two: zero or infinite on either side


def power(m: Instructions, x: str, y: str) -> str:
    """x^y."""
    constant = m.number(y)
    if constant is not None and abs(constant) <= _MOST_MULTIPLIED and 4 * constant % 1 == 0:
        return _constant_power(m, x, constant)
    if m.dtype is not DType.F32:
        return m.libm("pow", x, y)
    a = magnitude(m, x)
    result = _power_of_positive(m, a, y)
    return _with_special_values(m, x, a, y, result)


# --- constant exponents -------------------------------------------------------------------------


def _constant_power(m: Instructions, x: str, exponent: float) -> str:
    """Of quarters. A reciprocal is raised rather than a power inverted, as that may overflow."""
    whole, quarters = divmod(round(4 * abs(exponent)), 4)
    if quarters:
        # As pow has it, and unlike a root: (-0)^y = 0, (-inf)^y = inf.
        lowest = m.compare("eq", x, m.constant(-_INFINITY))
        x = m.select(lowest, m.constant(_INFINITY), m.emit("fadd", x, m.constant(0.0)))
    factors = []
    if whole:
        base = x if exponent > 0 else m.emit("fdiv", m.constant(1.0), x)
        factors.append(_integer_power(m, base, whole))
    if quarters:
        root = _root(m, x, quarters)
        factors.append(root if exponent > 0 else m.emit("fdiv", m.constant(1.0), root))
    if not factors:
        return m.constant(1.0)
    return factors[0] if len(factors) == 1 else m.emit("fmul", *factors)


def _integer_power(m: Instructions, x: str, exponent: int) -> str:
    """By squaring."""
    result = ""
    while exponent:
        if exponent & 1:
            result = m.emit("fmul", result, x) if result else x
        exponent >>= 1
        if exponent:
            x = m.emit("fmul", x, x)
    return result


def _root(m: Instructions, x: str, quarters: int) -> str:
    """x^(quarters / 4), 0 < quarters < 4."""
    root = square_root(m, x)
    if quarters == 2:
        return root
    fourth = square_root(m, root)
    return fourth if quarters == 1 else m.emit("fmul", root, fourth)


# --- any exponent -------------------------------------------------------------------------------


def _power_of_positive(m: Instructions, a: str, y: str) -> str:
    """a^y for a > 0; for 0 and infinity too, unless y is 0."""
    f, e = split(m, a)
    infinity = m.constant(_INFINITY)
    e = m.select(m.compare("eq", a, infinity), infinity, e)
    e = m.select(m.compare("eq", a, m.constant(0.0)), m.constant(-_INFINITY), e)
    wide = m.of(DType.F64)
    f, e, y = (m.convert("fpext", operand, DType.F64) for operand in (f, e, y))
    s = wide.emit("fdiv", f, wide.emit("fadd", f, wide.constant(2.0)))
    logarithm = wide.fma(s, horner(wide, wide.emit("fmul", s, s), _LOG2), e)
    exponent = wide.emit("fmul", y, logarithm)
    exponent = at_least(wide, -_LARGEST_EXPONENT, at_most(wide, _LARGEST_EXPONENT, exponent))
    nearest = wide.call("llvm.rint", exponent)
    r = wide.convert("fptrunc", wide.emit("fsub", exponent, nearest), DType.F32)
    n = wide.convert("fptrunc", nearest, DType.F32)
    p = horner(m, r, (1.0, *_EXP2))
    if m.has_avx512:
        return m.avx512("scalef", p, n)
    i = integers(m)
    count = i.emit("freeze", m.convert("fptosi", n, DType.I32))
    half = i.emit("ashr", count, i.constant(1))
    first, second = (
        from_bits(m, i.emit("shl", i.emit("add", part, i.constant(127)), i.constant(23)))
        for part in (half, i.emit("sub", count, half))
    )
    return m.emit("fmul", m.emit("fmul", p, first), second)


def _with_special_values(m: Instructions, x: str, a: str, y: str, result: str) -> str:
    """The sign of odd powers; NaN; one for 1^y, x^0 and (-1)^inf; no powers of negative numbers
    but whole ones."""
    truth = m.of(DType.BOOL)
    zero, one, infinity = m.constant(0.0), m.constant(1.0), m.constant(_INFINITY)
    is_odd, is_fraction = _kind_of_exponent(m, y)
    has_sign = integers(m).compare("lt", bits_of(m, x), integers(m).constant(0))
    flips = truth.emit("and", has_sign, is_odd)
    result = m.select(flips, m.emit("fneg", result), result)
    finite = m.compare("ne", a, infinity)
    undefined = truth.emit("and", m.compare("lt", x, zero), is_fraction)
    undefined = truth.emit("and", undefined, finite)
    undefined = truth.emit("or", undefined, m.compare("uno", x, y))
    result = m.select(undefined, m.constant(float("nan")), result)
    endless = m.compare("eq", magnitude(m, y), infinity)
    is_one = truth.emit("and", endless, m.compare("eq", a, one))
    is_one = truth.emit("or", is_one, m.compare("eq", x, one))
    return m.select(truth.emit("or", is_one, m.compare("eq", y, zero)), one, result)


def _kind_of_exponent(m: Instructions, y: str) -> tuple[str, str]:
    """Whether y is an odd integer, and whether it is none."""
    half = m.emit("fmul", y, m.constant(0.5))
    is_fraction = m.compare("ne", m.call("llvm.trunc", y), y)
    half_is_fraction = m.compare("ne", m.call("llvm.trunc", half), half)
    truth = m.of(DType.BOOL)
    is_whole = truth.emit("xor", is_fraction, truth.constant(1))
    return truth.emit("and", half_is_fraction, is_whole), is_fraction
