"""Conversions between element types, as ONNX's Cast has them."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import (
    Expr,
    add,
    all_of,
    binary,
    cast,
    const,
    mul,
    select,
    sub,
    unary,
)
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Pattern,
    define,
)
from tunefarm.compiler.operators.rules import check, check_dtype
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.types.dtypes import ALL, DType
from tunefarm.compiler.types.tensor_type import TensorType

# --- The bits of elements, taken for elements of another type of the same width ------------------
#
# Of f32 and f64 they are at hand; those of 16-bit floats are told from the f32 of equal value,
# where a NaN that signals becomes one that does not.


TYPES = ALL | {DType.I2, DType.I4, DType.U2, DType.U4}

_SIGN = 1 << 15
_SHIFT = 13  # mantissa digits that f32 has and f16 has not
_EXPONENT = 0x1F << 10  # of f16
_BIAS = 112 << 23  # of f32's exponent over that of f16
_SMALLEST = 2.0**-24  # subnormal number of f16


def width(dtype: DType) -> int:
    """Bits of an element as ONNX counts them: a bool has 8."""
    return 8 if dtype is DType.BOOL else dtype.bits


def _infer_bit_cast(attributes: Attributes, types: Types) -> TensorType:
    data, to = types.present(0), DType(attributes.choice("to", list(DType)))
    check_dtype(data, TYPES)
    check_dtype(TensorType(to, ()), TYPES, "the result")
    check(
        width(data.dtype) == width(to),
        f"elements of {data.dtype} have {width(data.dtype)} bits, those of {to} {width(to)}",
    )
    return TensorType.of(to, data.dims)


def _bit_cast(attributes: Attributes, use: Use) -> Tensor:
    data = use.input(0)
    return use.pointwise("bit_cast", lambda indices: _as(use.dtype, _integer(data[indices])))


def _integer(value: Expr) -> Expr:
    """The bits of a float as an integer; other elements as they are."""
    dtype = value.dtype
    if dtype is DType.F32:
        return unary("bits", value)
    if dtype is DType.F64:
        return unary("bits64", value)
    if dtype is DType.BF16:
        return binary("shr", unary("bits", cast(DType.F32, value)), _number(16))
    return _of_half(cast(DType.F32, value)) if dtype is DType.F16 else value


def _as(to: DType, bits: Expr) -> Expr:
    """An integer's bits as an element of a type of its width."""
    if to is DType.F32:
        return unary("of_bits", cast(DType.I32, bits))
    if to is DType.F64:
        return unary("of_bits64", cast(DType.I64, bits))
    if to is DType.BF16:
        shifted = binary("shl", cast(DType.I32, bits), _number(16))
        return cast(to, unary("of_bits", shifted))
    if to is DType.F16:
        return cast(to, _half(binary("and", cast(DType.I32, bits), _number(0xFFFF))))
    return _narrow(to, bits) if to.bits < 8 and to is not DType.BOOL else cast(to, bits)


def _narrow(to: DType, value: Expr) -> Expr:
    """An integer of few bits as the other one of so many."""
    whole = cast(DType.I8, value)
    if to.is_signed:
        negative = binary("gt", whole, const(to.limits[1], DType.I8))
        return cast(to, select(negative, sub(whole, const(1 << to.bits, DType.I8)), whole))
    return cast(to, binary("and", whole, const(to.limits[1], DType.I8)))


def _of_half(value: Expr) -> Expr:
    """The bits of the f16 that has the value of an f32, as an i32."""
    bits = unary("bits", value)
    sign = binary("and", binary("shr", bits, _number(16)), _number(_SIGN))
    magnitude = binary("and", bits, _number((1 << 31) - 1))
    digits = binary("shr", magnitude, _number(_SHIFT))
    units = cast(DType.I32, mul(unary("abs", value), const(1 / _SMALLEST, DType.F32)))
    normal = sub(digits, _number(_BIAS >> _SHIFT))
    special = binary("or", binary("and", digits, _number(0x3FF)), _number(_EXPONENT))
    is_tiny = binary("lt", magnitude, _number(_BIAS + (1 << 23)))
    is_finite = binary("lt", magnitude, _number(_BIAS + (31 << 23)))
    found = select(is_tiny, units, select(is_finite, normal, special))
    return binary("or", sign, found)


def _half(bits: Expr) -> Expr:
    """The f16 with these bits (an i32 of 0..65535), as an f32."""
    sign = binary("shl", binary("and", bits, _number(_SIGN)), _number(16))
    magnitude = binary("and", bits, _number(_SIGN - 1))
    digits = binary("shl", magnitude, _number(_SHIFT))
    tiny = unary("bits", mul(cast(DType.F32, magnitude), const(_SMALLEST, DType.F32)))
    normal, special = add(digits, _number(_BIAS)), add(digits, _number(2 * _BIAS))
    is_tiny = binary("lt", magnitude, _number(1 << 10))
    is_finite = binary("lt", magnitude, _number(_EXPONENT))
    found = select(is_tiny, tiny, select(is_finite, normal, special))
    return unary("of_bits", binary("or", sign, found))


def _number(value: int) -> Expr:
    return const(value, DType.I32)


define(
    "bit_cast",
    Pattern.ELEMENTWISE,
    1,
    _infer_bit_cast,
    _bit_cast,
    {"to": REQUIRED},
    cheap=True,
    stored=True,
    dynamic=True,
)


ROUNDINGS = ("", "up", "down", "nearest")
"""How powers of two (f8e8m0) are chosen, "": the nearest, as for other types."""

_DIGITS = 23  # of f32's mantissa
_HALF = 1 << (_DIGITS - 1)


def _infer(attributes: Attributes, types: Types) -> TensorType:
    to = DType(attributes.choice("to", list(DType)))
    rounding = attributes.choice("rounding", ROUNDINGS)
    check(not rounding or to is DType.F8E8M0, f"{to} is not rounded {rounding}")
    check(not attributes.flag("saturate") or to.is_float, f"{to} does not saturate")
    return TensorType.of(to, types.present(0).dims)


def _cast(attributes: Attributes, use: Use) -> Tensor:
    data, to = use.input(0), use.dtype
    rounding, saturate = attributes.choice("rounding", ROUNDINGS), attributes.flag("saturate")

    def body(indices: tuple[Expr, ...]) -> Expr:
        value = data[indices]
        if value.dtype is not to and rounding:
            value = _power_of_two(cast(DType.F32, value), rounding, saturate)
        elif value.dtype is not to and saturate:
            wide = value if value.dtype is DType.F64 else cast(DType.F32, value)
            value = binary("max", wide, const(-to.largest, wide.dtype))
            value = binary("min", value, const(to.largest, wide.dtype))
        return cast(to, value)

    return use.pointwise("cast", body)


def _power_of_two(value: Expr, rounding: str, saturate: bool) -> Expr:
    """The magnitude of an f32 as a power of two: its exponent, or the next one.

    As ONNX defines it, subnormal numbers have the exponent that stands for 2^-127, and half way to
    the next power goes up but for those; infinities stay.
    """
    bits = unary("bits", value)

    def number(value: int) -> Expr:
        return const(value, DType.I32)

    fraction = binary("and", bits, number((1 << _DIGITS) - 1))
    exponent = binary("and", binary("shr", bits, number(_DIGITS)), number(255))
    beyond = {"down": number(1 << _DIGITS), "up": number(0)}.get(rounding)
    if beyond is None:
        is_normal = binary("gt", exponent, number(0))
        beyond = select(is_normal, number(_HALF - 1), number(_HALF))
    last = number(253 if saturate else 254)
    upwards = all_of(binary("gt", fraction, beyond), binary("le", exponent, last))
    exponent = add(exponent, select(upwards, number(1), number(0)))
    smallest = binary("eq", exponent, number(0))
    power = select(smallest, number(_HALF), binary("shl", exponent, number(_DIGITS)))
    return unary("of_bits", power)


define(
    "cast",
    Pattern.ELEMENTWISE,
    1,
    _infer,
    _cast,
    {"to": REQUIRED, "saturate": False, "rounding": ""},
    cheap=True,
    identity_if_same_type=True,
    stored=True,
    dynamic=True,
)
