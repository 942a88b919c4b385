"""Emission of the functions that take more than one instruction.

Integer arithmetic wraps and never traps: x / 0 is 0, as in the meaning of tensor expressions.
"""

from __future__ import annotations

from compiler.expr.instructions import Emit, Instructions
from compiler.types.dtypes import DType


def negate_integer(m: Instructions, x: str) -> str:
    return m.emit("sub", m.constant(0), x)


def integer_magnitude(m: Instructions, x: str) -> str:
    if not m.dtype.is_signed:
        return x
    negated = negate_integer(m, x)
    return m.select(m.compare("lt", x, m.constant(0)), negated, x)


def sign(m: Instructions, x: str) -> str:
    zero, one = m.constant(0), m.constant(1)
    positive = m.compare("gt", x, zero)
    if not m.dtype.is_signed:
        return m.select(positive, one, zero)
    negative = m.compare("lt", x, zero)
    # NaN is neither positive nor negative and stays what it is.
    below = m.select(negative, m.constant(-1), x if m.dtype.is_float else zero)
    return m.select(positive, one, below)


def reciprocal(m: Instructions, x: str) -> str:
    return m.emit("fdiv", m.constant(1), x)


def reciprocal_root(m: Instructions, x: str) -> str:
    return reciprocal(m, m.call("llvm.sqrt", x))


def sigmoid(m: Instructions, x: str) -> str:
    """1 / (1 + e^-x)."""
    exponential = m.libm("exp", m.emit("fneg", x))
    return reciprocal(m, m.emit("fadd", exponential, m.constant(1)))


def extreme(intrinsic: str, relation: str) -> Emit:
    """The operand that is `relation` than the other; a NaN on either side stays.

    Against a literal, compare and select do: a CPU has one instruction for that.
    """

    def emit(m: Instructions, a: str, b: str) -> str:
        if m.dtype.is_float:
            if m.is_computed(a) and m.is_computed(b):
                return m.call(intrinsic, a, b, flags="nsz ")
            if not m.is_computed(a):
                a, b = b, a
        return m.select(m.compare(relation, b, a), b, a)

    return emit


def floor_quotient(m: Instructions, a: str, b: str) -> str:
    """Of floats, rounded toward minus infinity."""
    return m.call("llvm.floor", m.emit("fdiv", a, b))


def float_modulo(m: Instructions, a: str, b: str) -> str:
    """The remainder with the divisor's sign."""
    remainder = m.libm("fmod", a, b)
    zero, truth = m.constant(0), m.of(DType.BOOL)
    below = m.compare("lt", remainder, zero)
    above = m.compare("gt", remainder, zero)
    negative = m.compare("lt", b, zero)
    positive = m.compare("gt", b, zero)
    low = truth.emit("and", below, positive)
    high = truth.emit("and", above, negative)
    differs = truth.emit("or", low, high)
    return m.select(differs, m.emit("fadd", remainder, b), remainder)


def truncated_quotient(m: Instructions, a: str, b: str) -> str:
    """Of integers, rounded toward zero."""
    quotient = m.emit("sdiv" if m.dtype.is_signed else "udiv", a, _divisor(m, a, b))
    return _zero_where_undefined(m, quotient, b)


def truncated_remainder(m: Instructions, a: str, b: str) -> str:
    """The remainder of integers with the dividend's sign."""
    return m.emit("srem" if m.dtype.is_signed else "urem", a, _divisor(m, a, b))


def integer_floor_quotient(m: Instructions, a: str, b: str) -> str:
    """Of integers, rounded toward minus infinity."""
    if not m.dtype.is_signed:
        return truncated_quotient(m, a, b)
    divisor = _divisor(m, a, b)
    _, differs = _remainder(m, a, divisor)
    quotient = m.emit("sdiv", a, divisor)
    lower = m.emit("sub", quotient, m.constant(1))
    return _zero_where_undefined(m, m.select(differs, lower, quotient), b)


def integer_modulo(m: Instructions, a: str, b: str) -> str:
    """The remainder of integers with the divisor's sign."""
    if not m.dtype.is_signed:
        return truncated_remainder(m, a, b)
    divisor = _divisor(m, a, b)
    remainder, differs = _remainder(m, a, divisor)
    return m.select(differs, m.emit("add", remainder, divisor), remainder)


def _remainder(m: Instructions, a: str, divisor: str) -> tuple[str, str]:
    """The remainder of a truncated division, and whether that of a floored one differs."""
    zero = m.constant(0)
    remainder = m.emit("srem", a, divisor)
    signs_differ = m.compare("lt", m.emit("xor", remainder, divisor), zero)
    inexact = m.compare("ne", remainder, zero)
    return remainder, m.of(DType.BOOL).emit("and", signs_differ, inexact)


def _is_safe_divisor(m: Instructions, b: str) -> bool:
    return m.literal(b) not in (None, 0, -1)


def _divisor(m: Instructions, a: str, b: str) -> str:
    """The divisor with one where a CPU traps: for x / 0, and the smallest integer / -1."""
    if _is_safe_divisor(m, b):
        return b
    traps = m.compare("eq", b, m.constant(0))
    if m.dtype.is_signed:
        truth = m.of(DType.BOOL)
        smallest = m.compare("eq", a, m.constant(-(1 << (m.dtype.bytes * 8 - 1))))
        negates = m.compare("eq", b, m.constant(-1))
        traps = truth.emit("or", traps, truth.emit("and", smallest, negates))
    return m.select(traps, m.constant(1), b)


def _zero_where_undefined(m: Instructions, quotient: str, b: str) -> str:
    if _is_safe_divisor(m, b):
        return quotient
    zero = m.constant(0)
    return m.select(m.compare("eq", b, zero), zero, quotient)


def shift(left: bool) -> Emit:
    """A shift; by the number of bits or more, what is shifted in is all that is left."""

    def emit(m: Instructions, a: str, b: str) -> str:
        bits = m.dtype.bytes * 8
        fits = m.compare("ult", b, m.constant(bits))
        count = m.select(fits, b, m.constant(bits - 1))
        if not left and m.dtype.is_signed:
            return m.emit("ashr", a, count)
        return m.select(fits, m.emit("shl" if left else "lshr", a, count), m.constant(0))

    return emit


def integer_power(m: Instructions, a: str, b: str) -> str:
    """a**b by squaring over the exponent's low 6 bits: larger powers of |a| > 1 overflow anyway."""
    one, zero = m.constant(1), m.constant(0)
    result, base = one, a
    for bit in range(6):
        low = m.emit("and", m.emit("lshr", b, m.constant(bit)), one)
        factor = m.select(m.compare("ne", low, zero), base, one)
        result = m.emit("mul", result, factor)
        base = m.emit("mul", base, base)
    if not m.dtype.is_signed:
        return result
    # A negative exponent leaves 1 and -1 as they are and takes everything else to 0.
    negative = m.compare("lt", b, zero)
    is_unit = m.compare("eq", m.emit("mul", a, a), one)
    return m.select(negative, m.select(is_unit, result, zero), result)
