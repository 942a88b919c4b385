"""Linear quantisation: floats as integers with a scale and a zero point, and back.

    quantize(x) = saturate(round(x / scale) + zero point), ties to even
    dequantize(q) = (q - zero point) * scale
    saturate(x) = quantize(x), divided by the scale already, the zero point being a float

Scale and zero point broadcast to the data. With the attribute `block` each of their entries along
`axis` stands for so many elements of the data, the last one for what remains. 8-bit floats are
quantised to without rounding to integers; with `saturate` False what is too large for them is as a
conversion has it. `precision` is the 16-bit float that quotients are rounded to first. With
`zero_scales`, where scales may be 0, 0 / 0 is the lowest integer, as in onnxruntime.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.expr.nodes import Expr, binary, cast, const, integer, mul, select, sub, unary
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Axes,
    OperatorDefinition,
    Pattern,
    Required,
    broadcast_along,
    register,
)
from tunefarm.compiler.operators.rules import (
    broadcast_load,
    broadcast_shapes,
    check,
    check_dtype,
)
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.types.dtypes import FLOATS, INTEGERS, SIGNED, DType
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

QUANTISED = frozenset(dtype for dtype in DType if dtype.is_integer and dtype.bytes <= 2)
"""Integers that floats are quantised to."""
QUANTISED_FLOATS = frozenset(dtype for dtype in DType if dtype.is_float and dtype.bits <= 8) - {
    DType.F8E8M0
}
"""Floats that others are quantised to: divided by their scale, and rounded."""
SCALES = FLOATS | {DType.F8E8M0}


PRECISIONS = ("", DType.F16.value, DType.BF16.value)


def _check_parameters(attributes: Attributes, types: Types, quantised: DType) -> None:
    """Raise `ShapeError` unless scale and zero point fit the data."""
    data, scale, zero_point = types.present(0), types.present(1), types.optional(2)
    check_dtype(scale, SCALES, "the scale")
    if zero_point is not None:
        fits = zero_point.dtype in (quantised, _to(attributes))
        check(fits, f"the zero point {zero_point} is not of the quantised type {quantised}")
    block = attributes.integer("block")
    check(block >= 0, f"the block {block} must not be negative")
    for position, parameter in ((1, scale), (2, zero_point)):
        if parameter is None:
            continue
        types.require_all_whole(position, "an axis of scales")
        if not block:
            whole = broadcast_shapes(data.shape, parameter.shape)
            check(whole == data.shape, f"{parameter} does not broadcast to {data}")
            continue
        shape, axis = list(data.shape), attributes.axis("axis", len(data.shape))
        shape[axis] = -(-shape[axis] // block)
        check(parameter.shape == tuple(shape), f"{parameter} has no entry per block of {data}")


def _element(
    attributes: Attributes, parameter: Tensor, indices: Sequence[Expr], shape: Sequence[int]
) -> Expr:
    """The entry of a scale or zero point for one element of data of this shape."""
    block = attributes.integer("block")
    if not block:
        return broadcast_load(parameter, indices, shape)
    chosen, axis = list(indices), attributes.integer("axis")
    chosen[axis] = binary("floordiv", chosen[axis], integer(block))
    return parameter[tuple(chosen)]


def _to(attributes: Attributes) -> DType:
    return DType(attributes.choice("to", list(DType)))


def _infer_quantize(attributes: Attributes, types: Types) -> TensorType:
    data, to = types.present(0), _to(attributes)
    check_dtype(data, SIGNED, "the data")
    check(to in QUANTISED | QUANTISED_FLOATS, f"{to} is no type of quantised data")
    attributes.flag("saturate")
    attributes.flag("zero_scales")
    precision = attributes.choice("precision", PRECISIONS)
    check(not precision or to in QUANTISED, f"quotients are not rounded before they are {to}")
    _check_parameters(attributes, types, to)
    return TensorType.of(to, data.dims)


def _quantize(attributes: Attributes, use: Use) -> Tensor:
    data, scale, zero_point = use.input(0), use.input(1), use.optional(2)
    work = DType.F64 if DType.F64 in (data.dtype, scale.dtype) else DType.F32
    precision = attributes.choice("precision", PRECISIONS)

    def body(indices: tuple[Expr, ...]) -> Expr:
        divisor = cast(work, _element(attributes, scale, indices, use.shape))
        value = binary("div", cast(work, data[indices]), divisor)
        if precision:
            value = cast(work, cast(DType(precision), value))
        if attributes.flag("zero_scales") and use.dtype in QUANTISED:
            value = select(unary("isnan", value), const(-work.largest, work), value)
        if use.dtype in QUANTISED:
            value = unary("round", value)
        if zero_point is not None:
            offset = _element(attributes, zero_point, indices, use.shape)
            value = binary("add", value, cast(work, offset))
        saturates = use.dtype in QUANTISED or attributes.flag("saturate")
        return _saturated(value, use.dtype) if saturates else cast(use.dtype, value)

    return use.pointwise("quantize", body)


def _saturated(value: Expr, to: DType) -> Expr:
    """A float as the nearest number of a type of at most 2 bytes; integers if it is one."""
    least, most = (-to.largest, to.largest) if to.is_float else to.limits
    raised = binary("max", value, const(least, value.dtype))
    return cast(to, binary("min", raised, const(most, value.dtype)))


def _infer_dequantize(attributes: Attributes, types: Types) -> TensorType:
    data, to = types.present(0), _to(attributes)
    check_dtype(data, INTEGERS | QUANTISED | QUANTISED_FLOATS, "the data")
    check(to in FLOATS, f"the result of dequantize is a float of 16 bits or more, not {to}")
    _check_parameters(attributes, types, data.dtype)
    return TensorType.of(to, data.dims)


def _dequantize(attributes: Attributes, use: Use) -> Tensor:
    data, scale, zero_point = use.input(0), use.input(1), use.optional(2)

    def body(indices: tuple[Expr, ...]) -> Expr:
        centred = cast(use.dtype, data[indices])
        if zero_point is not None:
            offset = _element(attributes, zero_point, indices, use.shape)
            centred = sub(centred, cast(use.dtype, offset))
        return mul(centred, cast(use.dtype, _element(attributes, scale, indices, use.shape)))

    return use.pointwise("dequantize", body)


def _infer_saturate(attributes: Attributes, types: Types) -> TensorType:
    data, to, zero = types.present(0), _to(attributes), types.optional(1)
    check_dtype(data, FLOATS, "the data")
    check(to in QUANTISED, f"{to} is no type of quantised data")
    if zero is not None:
        check(zero.dtype is data.dtype, f"the zero point {zero} is none of {data.dtype}")
        types.broadcast_to(0, 1, otherwise=f"the zero point {zero} does not broadcast to {data}")
    return TensorType.of(to, types.broadcast(*types.positions()))


def _saturate(attributes: Attributes, use: Use) -> Tensor:
    data, zero = use.input(0), use.optional(1)

    def body(indices: tuple[Expr, ...]) -> Expr:
        rounded = unary("round", data[indices])
        if zero is not None:
            rounded = binary("add", rounded, broadcast_load(zero, indices, use.shape))
        return _saturated(rounded, use.dtype)

    return use.pointwise("saturate", body)


_ATTRIBUTES: dict[str, Attribute | Required] = {"to": REQUIRED, "axis": 0, "block": 0}
_OF_QUANTIZE = {**_ATTRIBUTES, "saturate": True, "precision": "", "zero_scales": False}


def _along(attributes: Attributes, types: Types, axis: int) -> Axes | None:
    if not attributes.integer("block"):
        return broadcast_along(types, axis)
    return None if axis == attributes.integer("axis") else (axis,) * len(types)


register(
    OperatorDefinition(
        "quantize",
        Pattern.ELEMENTWISE,
        (2, 3),
        _infer_quantize,
        _quantize,
        _OF_QUANTIZE,
        along=_along,
        dynamic=True,
    ),
    OperatorDefinition(
        "dequantize",
        Pattern.ELEMENTWISE,
        (2, 3),
        _infer_dequantize,
        _dequantize,
        _ATTRIBUTES,
        along=_along,
        cheap=True,
        folds_late=True,
        dynamic=True,
    ),
    OperatorDefinition(
        "saturate",
        Pattern.ELEMENTWISE,
        (1, 2),
        _infer_saturate,
        _saturate,
        {"to": REQUIRED},
        cheap=True,
        dynamic=True,
    ),
)
