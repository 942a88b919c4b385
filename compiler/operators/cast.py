"""Conversions between element types, as ONNX's Cast has them."""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Expr, add, all_of, binary, cast, const, select, unary
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.registry import REQUIRED, OperatorDefinition, Pattern, register
from tunefarm.compiler.operators.rules import check
from tunefarm.compiler.operators.use import Attributes, Types, Use
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import TensorType

ROUNDINGS = ("", "up", "down", "nearest")
"""How powers of two (f8e8m0) are chosen, "": the nearest, as for other types."""

_DIGITS = 23  # of f32's mantissa
_HALF = 1 << (_DIGITS - 1)


def _infer(attributes: Attributes, types: Types) -> TensorType:
    to = DType(attributes.choice("to", list(DType)))
    rounding = attributes.choice("rounding", ROUNDINGS)
    check(not rounding or to is DType.F8E8M0, f"{to} is not rounded {rounding}")
    check(not attributes.flag("saturate") or to.is_float, f"{to} does not saturate")
    return TensorType(to, types.present(0).shape)


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


register(
    OperatorDefinition(
        "cast",
        Pattern.ELEMENTWISE,
        1,
        _infer,
        _cast,
        {"to": REQUIRED, "saturate": False, "rounding": ""},
        cheap=True,
        identity_if_same_type=True,
        stored=True,
    )
)
