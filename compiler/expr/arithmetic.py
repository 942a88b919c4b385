"""Emission of the functions that take more than one instruction.

Integer arithmetic wraps and never traps: x / 0 is 0, as in the meaning of tensor expressions.
"""

from __future__ import annotations

from tunefarm.compiler.expr.instructions import Emit, Instructions
from tunefarm.compiler.types.dtypes import DType


def negate_integer(m: Instructions, x: str) -> str:
    """0 - x, which wraps."""
    return m.emit("sub", m.constant(0), x)


def integer_magnitude(m: Instructions, x: str) -> str:
    """The magnitude of an integer; that of the smallest one wraps to itself."""
    if not m.dtype.is_signed:
        return x
    negated = negate_integer(m, x)
    return m.select(m.compare("lt", x, m.constant(0)), negated, x)


def sign(m: Instructions, x: str) -> str:
    """-1, 0 or 1; of NaN NaN."""
    zero, one = m.constant(0), m.constant(1)
    positive = m.compare("gt", x, zero)
    if not m.dtype.is_signed:
        return m.select(positive, one, zero)
    negative = m.compare("lt", x, zero)
    # NaN is neither positive nor negative and stays what it is.
    below = m.select(negative, m.constant(-1), x if m.dtype.is_float else zero)
    return m.select(positive, one, below)


def reciprocal(m: Instructions, x: str) -> str:
    """1 / x."""
    return m.emit("fdiv", m.constant(1), x)


def reciprocal_root(m: Instructions, x: str) -> str:
    """1 / sqrt(x)."""
    return reciprocal(m, m.call("llvm.sqrt", x))


def softplus(m: Instructions, x: str) -> str:
    """max(x, 0) + log(1 + e^-|x|), which does not overflow."""
    zero = m.constant(0)
    tail = m.libm("log1p", m.libm("exp", m.emit("fneg", m.call("llvm.fabs", x))))
    return m.emit("fadd", m.select(m.compare("gt", x, zero), x, zero), tail)


def extreme(intrinsic: str, relation: str) -> Emit:
    """The operand that is `relation` than the other; a NaN on either side stays.

    Against a literal, compare and select do: a CPU has one instruction for that.
    """

    def emit(m: Instructions, a: str, b: str) -> str:
        if m.dtype.is_float:
            if m.is_computed(a) and m.is_computed(b):
                return m.call(intrinsic, a, b, flags="" if m.fixed_rounding else "nsz ")
            if not m.is_computed(a):
                a, b = b, a
        return m.select(m.compare(relation, b, a), b, a)

    return emit


def floor_quotient(m: Instructions, a: str, b: str) -> str:
    """Of floats, rounded toward minus infinity."""
    return m.call("llvm.floor", m.emit("fdiv", a, b))


def float_remainder(m: Instructions, a: str, b: str) -> str:
    """The remainder with the dividend's sign, which is exact.

    A quotient may be rounded up to the next integer, so that the remainder has the wrong sign; one
    that is too large for its integer part to be known goes through libm.
    """
    if not m.has_fma:
        return m.libm("fmod", a, b)
    quotient = m.emit("fdiv", a, b)
    whole = m.call("llvm.trunc", quotient)
    remainder = m.call("llvm.fma", m.emit("fneg", whole), b, a)
    zero, step = m.constant(0), m.call("llvm.copysign", b, a)
    towards_a = m.call("llvm.copysign", m.constant(1), a)
    is_beyond = m.compare("lt", m.emit("fmul", remainder, towards_a), zero)
    remainder = m.select(is_beyond, m.emit("fadd", remainder, step), remainder)
    remainder = m.call("llvm.copysign", remainder, a)
    limit = m.constant(2.0 ** (22 if m.dtype is DType.F32 else 51))
    unknown = m.of(DType.BOOL).emit(
        "or",
        m.compare("uge", m.call("llvm.fabs", quotient), limit),
        m.compare("uno", remainder, b),  # a product of 0 and infinity
    )
    return m.rarely(unknown, remainder, lambda: m.libm("fmod", a, b))


def float_modulo(m: Instructions, a: str, b: str) -> str:
    """The remainder with the divisor's sign."""
    remainder = float_remainder(m, a, b)
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
    return _zero_where_undefined(m, _quotient(m, a, _divisor(m, a, b)), b)


def truncated_remainder(m: Instructions, a: str, b: str) -> str:
    """The remainder of integers with the dividend's sign."""
    divisor = _divisor(m, a, b)
    return _rest(m, a, divisor, _quotient(m, a, divisor))


def integer_floor_quotient(m: Instructions, a: str, b: str) -> str:
    """Of integers, rounded toward minus infinity."""
    if not m.dtype.is_signed:
        return truncated_quotient(m, a, b)
    divisor = _divisor(m, a, b)
    quotient = _quotient(m, a, divisor)
    differs = _differs(m, _rest(m, a, divisor, quotient), divisor)
    lower = m.emit("sub", quotient, m.constant(1))
    return _zero_where_undefined(m, m.select(differs, lower, quotient), b)


def integer_modulo(m: Instructions, a: str, b: str) -> str:
    """The remainder of integers with the divisor's sign."""
    if not m.dtype.is_signed:
        return truncated_remainder(m, a, b)
    divisor = _divisor(m, a, b)
    remainder = _rest(m, a, divisor, _quotient(m, a, divisor))
    differs = _differs(m, remainder, divisor)
    return m.select(differs, m.emit("add", remainder, divisor), remainder)


def _differs(m: Instructions, remainder: str, divisor: str) -> str:
    """Whether the remainder of a truncated division is not that of a floored one."""
    zero = m.constant(0)
    signs_differ = m.compare("lt", m.emit("xor", remainder, divisor), zero)
    inexact = m.compare("ne", remainder, zero)
    return m.of(DType.BOOL).emit("and", signs_differ, inexact)


def _rest(m: Instructions, a: str, divisor: str, quotient: str) -> str:
    return m.emit("sub", a, m.emit("mul", quotient, divisor))


def _quotient(m: Instructions, a: str, divisor: str) -> str:
    """Rounded toward zero; the divisor is neither 0 nor -1 below the smallest integer.

    CPUs divide vectors of floats only, which is exact where those have more digits than integers.
    """
    division = "sdiv" if m.dtype.is_signed else "udiv"
    if not m.is_vector or (m.dtype.bytes < 8 and m.literal(divisor) is not None):
        return m.emit(division, a, divisor)
    if m.dtype.bytes < 8:
        return _quotient_of_floats(m, a, divisor)
    small = _quotient_of_small(m, a, divisor)
    beyond = _is_beyond_small(m, a, divisor)
    return m.rarely(beyond, small, lambda: m.emit(division, a, divisor))


_SMALL = 1 << 30  # what 64-bit integers mostly are below


def _quotient_of_small(m: Instructions, a: str, divisor: str) -> str:
    """Of 64-bit integers that 32 bits hold as well: CPUs have no division of more."""
    narrow, known = m.of(DType.I32), m.literal(divisor)
    if known is None:
        parts = [m.convert("trunc", operand, DType.I32) for operand in (a, divisor)]
        quotient = _quotient_of_floats(narrow, *parts)
    elif abs(known) < _SMALL:
        part = m.convert("trunc", a, DType.I32)
        quotient = narrow.emit("sdiv", part, narrow.constant(known))
    else:
        return m.constant(0)
    return narrow.convert("sext", quotient, m.dtype)


def _is_beyond_small(m: Instructions, *operands: str) -> str:
    """Whether a computed one of these is, on either side of 0."""
    offset = m.constant(_SMALL if m.dtype.is_signed else 0)
    limit = m.constant(2 * _SMALL)
    found = [
        m.compare("uge", m.emit("add", operand, offset), limit)
        for operand in operands
        if m.is_computed(operand)
    ]
    return found[0] if len(found) == 1 else m.of(DType.BOOL).emit("or", *found)


def _quotient_of_floats(m: Instructions, a: str, divisor: str) -> str:
    wide = m.of(DType.F32 if m.dtype.bytes <= 2 else DType.F64)
    kind = "s" if m.dtype.is_signed else "u"
    operands = [m.convert(f"{kind}itofp", operand, wide.dtype) for operand in (a, divisor)]
    quotient = wide.emit("fdiv", *operands)
    if m.dtype.bytes == 4:
        return wide.convert(f"fpto{kind}i", quotient, m.dtype)
    whole = wide.convert("fptosi", quotient, DType.I32)
    return m.of(DType.I32).convert("trunc", whole, m.dtype)


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
