"""Conversions of floats of 16 bits and fewer from f32 and to it, exact for every bit pattern.

Values of these types are integers to LLVM, which would otherwise call a library for each element
where a CPU has no instruction for it. Rounding in integers: add half of the last digit that is
kept, less one where that digit is even, and cut (Giesen, float to half, 2012).
"""

from __future__ import annotations

from enum import Enum

from tunefarm.compiler.expr.instructions import Instructions
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

_F32_BIAS = 127
_F32_DIGITS = 23
_F32_INFINITY = 0x7F800000
_F32_QUIET_NAN = 0x7FC00000


class _Beyond(Enum):
    """What a format has for what is beyond its numbers."""

    INFINITY = "infinity, and NaN, as IEEE 754 has them"
    NAN = "NaN: all bits but the sign"
    ONE_NAN = "one NaN, instead of -0"
    NOTHING = "its largest number, and 0 for NaN"


@frozen
class _Format:
    """A sign, an exponent and `digits` of a mantissa."""

    exponent: int  # bits
    digits: int
    bias: int
    beyond: _Beyond

    @property
    def sign(self) -> int:
        """The bit of the sign."""
        return 1 << (self.exponent + self.digits)

    @property
    def cut(self) -> int:
        """Digits of f32's mantissa that are lost."""
        return _F32_DIGITS - self.digits

    @property
    def smallest_normal(self) -> int:
        """The bits of f32's number that is the smallest normal one here."""
        return (_F32_BIAS - self.bias + 1) << _F32_DIGITS

    @property
    def overflow(self) -> int:
        """The first bits, without a sign, that are no number."""
        if self.beyond is _Beyond.INFINITY:
            return ((1 << self.exponent) - 1) << self.digits
        return self.sign - 1 if self.beyond is _Beyond.NAN else self.sign

    @property
    def nan(self) -> int:
        if self.beyond is _Beyond.INFINITY:
            return self.overflow | 1 << (self.digits - 1)
        return 0 if self.beyond is _Beyond.NOTHING else self.overflow

    @property
    def too_large(self) -> int:
        """The bits of what is too large."""
        return self.overflow - 1 if self.beyond is _Beyond.NOTHING else self.overflow


_FORMATS = {
    DType.F16: _Format(5, 10, 15, _Beyond.INFINITY),
    DType.F8E4M3FN: _Format(4, 3, 7, _Beyond.NAN),
    DType.F8E4M3FNUZ: _Format(4, 3, 8, _Beyond.ONE_NAN),
    DType.F8E5M2: _Format(5, 2, 15, _Beyond.INFINITY),
    DType.F8E5M2FNUZ: _Format(5, 2, 16, _Beyond.ONE_NAN),
    DType.F4E2M1: _Format(2, 1, 1, _Beyond.NOTHING),
}
_NATIVE = {DType.F16: "half", DType.BF16: "bfloat"}


def to_f32(m: Instructions, x: str) -> str:
    """Numbers of the narrow type that `m` is of, as f32: exact."""
    if m.converts_natively and m.dtype is DType.F16:
        return m.convert_as(_NATIVE[m.dtype], "fpext", x, DType.F32)
    bits = m.of(DType.U32)
    wide = m.convert("zext", x, DType.U32)
    if m.dtype is DType.BF16:
        result = bits.emit("shl", wide, bits.constant(16))
    elif m.dtype is DType.F8E8M0:
        result = _power_of_two(bits, wide)
    else:
        result = _extended(bits, wide, _FORMATS[m.dtype])
    return bits.convert("bitcast", result, DType.F32)


def _power_of_two(bits: Instructions, x: str) -> str:
    """2 to the power of x - 127; 255 is NaN, and 0 is a power that f32 has no normal number for."""
    result = bits.emit("shl", x, bits.constant(_F32_DIGITS))
    smallest = bits.constant(1 << (_F32_DIGITS - 1))
    result = bits.select(bits.compare("eq", x, bits.constant(0)), smallest, result)
    is_nan = bits.compare("eq", x, bits.constant(255))
    return bits.select(is_nan, bits.constant(_F32_QUIET_NAN), result)


def _extended(bits: Instructions, x: str, format: _Format) -> str:
    """The bits of f32 for those of a format."""
    magnitude = bits.emit("and", x, bits.constant(format.sign - 1))
    aligned = bits.emit("shl", magnitude, bits.constant(format.cut))
    normal = bits.emit("add", aligned, bits.constant((_F32_BIAS - format.bias) << _F32_DIGITS))
    result = bits.select(
        bits.compare("lt", magnitude, bits.constant(1 << format.digits)),
        _subnormal(bits, aligned, format),
        normal,
    )
    if format.beyond is _Beyond.INFINITY:
        kept = bits.emit("or", aligned, bits.constant(_F32_INFINITY))
        beyond = bits.compare("ge", magnitude, bits.constant(format.overflow))
        result = bits.select(beyond, kept, result)
    elif format.beyond is _Beyond.NAN:
        beyond = bits.compare("ge", magnitude, bits.constant(format.overflow))
        result = bits.select(beyond, bits.constant(_F32_QUIET_NAN), result)
    elif format.beyond is _Beyond.ONE_NAN:
        beyond = bits.compare("eq", x, bits.constant(format.sign))
        result = bits.select(beyond, bits.constant(_F32_QUIET_NAN), result)
    sign = bits.emit("and", x, bits.constant(format.sign))
    shift = bits.constant(31 - format.exponent - format.digits)
    return bits.emit("or", result, bits.emit("shl", sign, shift))


def _subnormal(bits: Instructions, aligned: str, format: _Format) -> str:
    """f32 of a number without a leading digit: with one, less what that digit is worth."""
    smallest = bits.constant(format.smallest_normal)
    with_digit = bits.convert("bitcast", bits.emit("or", aligned, smallest), DType.F32)
    floats = bits.of(DType.F32)
    worth = bits.convert("bitcast", smallest, DType.F32)
    return floats.convert("bitcast", floats.emit("fsub", with_digit, worth), DType.U32)


def from_f32(m: Instructions, x: str, to: DType) -> str:
    """f32 rounded to a narrow type, ties to even; where it overflows as `converted` says.

    A CPU's own instruction for bf16 takes f32's subnormal numbers for 0.
    """
    if to in _NATIVE and m.of(to).converts_natively:
        return m.convert_as(_NATIVE[to], "fptrunc", x, to)
    bits = m.of(DType.U32)
    pattern = m.convert("bitcast", x, DType.U32)
    if to is DType.BF16:
        result = _as_bf16(m, bits, x, pattern)
    elif to is DType.F8E8M0:
        result = _exponent(bits, pattern)
    else:
        result = _rounded(m, bits, pattern, _FORMATS[to])
    return bits.convert("trunc", result, to)


def _as_bf16(m: Instructions, bits: Instructions, x: str, pattern: str) -> str:
    cut = bits.emit("lshr", pattern, bits.constant(16))
    even = bits.emit("and", cut, bits.constant(1))
    half = bits.emit("add", even, bits.constant(0x7FFF))
    rounded = bits.emit("lshr", bits.emit("add", pattern, half), bits.constant(16))
    quiet = bits.emit("or", cut, bits.constant(0x40))
    return bits.select(m.compare("uno", x, x), quiet, rounded)


def _exponent(bits: Instructions, pattern: str) -> str:
    """The nearest power of two, the larger one on ties; what is no positive number is NaN."""
    half = bits.emit("add", pattern, bits.constant(1 << (_F32_DIGITS - 1)))
    rounded = bits.emit("lshr", half, bits.constant(_F32_DIGITS))
    # The smallest power is a subnormal number, with a bit of the mantissa for its digit.
    smallest = bits.compare("lt", pattern, bits.constant(3 << (_F32_DIGITS - 2)))
    rounded = bits.select(smallest, bits.constant(0), rounded)
    nothing = bits.emit("sub", pattern, bits.constant(1))
    number = bits.compare("lt", nothing, bits.constant(_F32_INFINITY - 1))
    return bits.select(number, rounded, bits.constant(255))


def _rounded(m: Instructions, bits: Instructions, pattern: str, format: _Format) -> str:
    magnitude = bits.emit("and", pattern, bits.constant(0x7FFFFFFF))
    last = bits.emit("lshr", magnitude, bits.constant(format.cut))
    even = bits.emit("and", last, bits.constant(1))
    # Another bias of the exponent, and just less than half of the last digit.
    bias = ((format.bias - _F32_BIAS) << _F32_DIGITS) + (1 << (format.cut - 1)) - 1
    moved = bits.emit("add", magnitude, bits.constant(bias % (1 << 32)))
    normal = bits.emit("lshr", bits.emit("add", moved, even), bits.constant(format.cut))
    small = bits.compare("lt", magnitude, bits.constant(format.smallest_normal))
    result = bits.select(small, _rounded_subnormal(m, bits, magnitude, format), normal)
    beyond = bits.compare("ge", result, bits.constant(format.overflow))
    result = bits.select(beyond, bits.constant(format.too_large), result)
    is_nan = bits.compare("gt", magnitude, bits.constant(_F32_INFINITY))
    shift = bits.constant(31 - format.exponent - format.digits)
    sign = bits.emit("and", bits.emit("lshr", pattern, shift), bits.constant(format.sign))
    if format.beyond is _Beyond.ONE_NAN:  # no sign of 0, nor of NaN
        is_number = bits.compare("ne", result, bits.constant(0))
        sign = bits.select(is_number, sign, bits.constant(0))
        result = bits.emit("or", result, sign)
        return bits.select(is_nan, bits.constant(format.nan), result)
    result = bits.select(is_nan, bits.constant(format.nan), result)
    return bits.emit("or", result, sign)


def _rounded_subnormal(m: Instructions, bits: Instructions, magnitude: str, format: _Format) -> str:
    """By adding the power of two whose last digit is the format's smallest number."""
    power = (_F32_BIAS - format.bias + format.cut + 1) << _F32_DIGITS
    floats = bits.convert("bitcast", magnitude, DType.F32)
    worth = bits.convert("bitcast", bits.constant(power), DType.F32)
    total = m.convert("bitcast", m.emit("fadd", floats, worth), DType.U32)
    return bits.emit("sub", total, bits.constant(power))


def f32_of_f64(m: Instructions, x: str) -> str:
    """f64 as f32 with the last bit set where anything was lost: rounding that again is exact."""
    nearest = m.convert("fptrunc", x, DType.F32)
    floats, bits = m.of(DType.F32), m.of(DType.U32)
    back = floats.convert("fpext", nearest, DType.F64)
    pattern = floats.convert("bitcast", nearest, DType.U32)
    larger = m.compare("gt", m.call("llvm.fabs", back), m.call("llvm.fabs", x))
    pattern = bits.select(larger, bits.emit("sub", pattern, bits.constant(1)), pattern)
    lost = m.compare("one", back, x)
    pattern = bits.select(lost, bits.emit("or", pattern, bits.constant(1)), pattern)
    return bits.convert("bitcast", pattern, DType.F32)
