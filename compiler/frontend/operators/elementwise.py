"""Pointwise operators: activations, arithmetic, comparison, logic, bits and casts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from onnx import TensorProto

from tunefarm.compiler.errors import UnsupportedOperatorError
from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.structured_values import Entity
from tunefarm.compiler.types.dtypes import EIGHT_BIT_FLOATS, DType
from tunefarm.compiler.types.sizes import bounds_of
from tunefarm.compiler.types.tensor_type import Array

Default: TypeAlias = int | float | bool

# ONNX operator -> the graph's operator on the same operands, versions, attributes' defaults.
PLAIN: dict[str, tuple[str, tuple[int, ...], Mapping[str, Default]]] = {
    "Abs": ("abs", (1, 6, 13), {}),
    "Acos": ("acos", (7, 22), {}),
    "Acosh": ("acosh", (9, 22), {}),
    "Add": ("add", (7, 13, 14), {}),
    "And": ("and", (7,), {}),
    "Asin": ("asin", (7, 22), {}),
    "Asinh": ("asinh", (9, 22), {}),
    "Atan": ("atan", (7, 22), {}),
    "Atanh": ("atanh", (9, 22), {}),
    "BitwiseAnd": ("bitwise_and", (18,), {}),
    "BitwiseNot": ("bitwise_not", (18,), {}),
    "BitwiseOr": ("bitwise_or", (18,), {}),
    "BitwiseXor": ("bitwise_xor", (18,), {}),
    "Ceil": ("ceil", (1, 6, 13), {}),
    "Celu": ("celu", (12, 28), {"alpha": 1.0}),
    "Cos": ("cos", (7, 22), {}),
    "Cosh": ("cosh", (9, 22), {}),
    "Div": ("div", (7, 13, 14), {}),
    "Elu": ("elu", (1, 6, 22), {"alpha": 1.0}),
    "Equal": ("equal", (7, 11, 13, 19), {}),
    "Erf": ("erf", (9, 13), {}),
    "Exp": ("exp", (1, 6, 13), {}),
    "Floor": ("floor", (1, 6, 13), {}),
    "Greater": ("greater", (7, 9, 13), {}),
    "GreaterOrEqual": ("greater_equal", (12, 16), {}),
    "HardSigmoid": ("hard_sigmoid", (1, 6, 22), {"alpha": 0.2, "beta": 0.5}),
    "HardSwish": ("hard_swish", (14, 22), {}),
    "IsInf": ("isinf", (10, 20), {"detect_negative": True, "detect_positive": True}),
    "IsNaN": ("isnan", (9, 13, 20), {}),
    "LeakyRelu": ("leaky_relu", (1, 6, 16), {"alpha": 0.01}),
    "Less": ("less", (7, 9, 13), {}),
    "LessOrEqual": ("less_equal", (12, 16), {}),
    "Log": ("log", (1, 6, 13), {}),
    "Mish": ("mish", (18, 22), {}),
    "Mul": ("mul", (7, 13, 14), {}),
    "Neg": ("neg", (1, 6, 13), {}),
    "Not": ("not", (1,), {}),
    "Or": ("or", (7,), {}),
    "PRelu": ("prelu", (7, 9, 16), {}),
    "Pow": ("pow", (7, 12, 13, 15), {}),
    "Reciprocal": ("reciprocal", (1, 6, 13), {}),
    "Relu": ("relu", (1, 6, 13, 14), {}),
    "Round": ("round", (11, 22), {}),
    "Shrink": ("shrink", (9,), {"lambd": 0.5, "bias": 0.0}),
    "Sigmoid": ("sigmoid", (1, 6, 13), {}),
    "Sign": ("sign", (9, 13), {}),
    "Sin": ("sin", (7, 22), {}),
    "Sinh": ("sinh", (9, 22), {}),
    "Softplus": ("softplus", (1, 22), {}),
    "Softsign": ("softsign", (1, 22), {}),
    "Sqrt": ("sqrt", (1, 6, 13), {}),
    "Sub": ("sub", (7, 13, 14), {}),
    "Swish": ("swish", (24,), {"alpha": 1.0}),
    "Tan": ("tan", (7, 22), {}),
    "Tanh": ("tanh", (1, 6, 13), {}),
    "ThresholdedRelu": ("thresholded_relu", (1, 10, 22), {"alpha": 1.0}),
    "Where": ("where", (9, 16), {}),
    "Xor": ("xor", (7,), {}),
}

# Before opset 7 broadcasting had to be asked for, and was aligned by an attribute.
_WITH_AXIS = {
    (1, 6): ("Add", "Div", "Mul", "Sub"),
    (1,): ("And", "Equal", "Greater", "Less", "Or", "Pow", "Xor"),
}

_VARIADIC: dict[str, tuple[str, tuple[int, ...]]] = {
    "Max": ("max", (1, 6, 8, 12, 13)),
    "Min": ("min", (1, 6, 8, 12, 13)),
    "Sum": ("add", (1, 6, 8, 13)),
}


def _register(
    operator: str, target: str, versions: tuple[int, ...], defaults: Mapping[str, Default]
) -> None:
    """The graph's operator `target` on all inputs; attributes are of their defaults' types."""

    @converter(operator, *versions)
    def convert(node: OnnxNode, graph: GraphBuilder) -> Value:
        given = {name: _attribute(node, name, default) for name, default in defaults.items()}
        return graph.emit(target, *node.present_inputs(), **given)


def _attribute(node: OnnxNode, name: str, default: Default) -> Default:
    if isinstance(default, float):
        return node.floating(name, default)
    value = node.integer(name, int(default))
    return bool(value) if isinstance(default, bool) else value


def _register_binary_with_axis(operator: str, versions: tuple[int, ...], target: str) -> None:
    @converter(operator, *versions)
    def convert(node: OnnxNode, graph: GraphBuilder) -> Value:
        left, right = node.input(0), node.input(1)
        if left.shape != right.shape and not node.integer("broadcast", 0):
            raise node.bad_shape(
                f"the shapes {list(left.shape)} and {list(right.shape)} differ, and broadcast is 0"
            )
        if node.has("axis"):
            axis = node.axis(node.integer("axis"), left.rank)
            trailing = left.rank - axis - right.rank
            if trailing < 0:
                raise node.bad_shape(f"axis {axis} leaves no room for {right.type}")
            right = graph.emit("reshape", right, shape=right.shape + (1,) * trailing)
        return graph.emit(target, left, right)


def _register_variadic(operator: str, versions: tuple[int, ...], target: str) -> None:
    @converter(operator, *versions)
    def convert(node: OnnxNode, graph: GraphBuilder) -> Value:
        return graph.fold(target, node.present_inputs())


for _operator, (_target, _versions, _defaults) in PLAIN.items():
    _register(_operator, _target, _versions, _defaults)
for _versions, _operators in _WITH_AXIS.items():
    for _operator in _operators:
        _register_binary_with_axis(_operator, _versions, PLAIN[_operator][0])
for _operator, (_target, _versions) in _VARIADIC.items():
    _register_variadic(_operator, _versions, _target)


@converter("Mean", 1, 6, 8, 13)
def mean(node: OnnxNode, graph: GraphBuilder) -> Value:
    """The sum of the inputs by their number."""
    values = node.present_inputs()
    total = graph.fold("add", values)
    return graph.emit("mul", total, graph.scalar(1 / len(values), total.dtype))


@converter("Mod", 10, 13, 28)
def mod(node: OnnxNode, graph: GraphBuilder) -> Value:
    """fmod=1 has the sign of the dividend, fmod=0 (integers) that of the divisor."""
    return graph.emit("fmod" if node.integer("fmod", 0) else "mod", node.input(0), node.input(1))


@converter("BitShift", 11, 28)
def bit_shift(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Signed integers are shifted as the unsigned integers of the same bits.

    An arithmetic right shift of a negative number is ~(~x >> n); negative counts become large
    ones, which shift all bits out.
    """
    direction = node.choice("direction", "", ("LEFT", "RIGHT")).lower()
    data, count = node.input(0), node.input(1)
    signed = data.dtype
    if not signed.is_signed:
        return graph.emit("bit_shift", data, count, direction=direction)
    unsigned = str(signed).replace("i", "u")
    amount = graph.emit("cast", count, to=unsigned)

    def shifted(value: Value) -> Value:
        bits = graph.emit("cast", value, to=unsigned)
        moved = graph.emit("bit_shift", bits, amount, direction=direction)
        return graph.emit("cast", moved, to=str(signed))

    if direction == "left":
        return shifted(data)
    negative = graph.emit("less", data, graph.scalar(0, signed))
    inverted = graph.emit("bitwise_not", shifted(graph.emit("bitwise_not", data)))
    return graph.emit("where", negative, inverted, shifted(data))


@converter("Gelu", 20)
def gelu(node: OnnxNode, graph: GraphBuilder) -> Value:
    return graph.emit(
        "gelu", node.input(0), approximate=node.choice("approximate", "none", ("none", "tanh"))
    )


@converter("Selu", 1, 6, 22)
def selu(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Version 1 had the same constants with fewer digits."""
    old = node.version == 1
    return graph.emit(
        "selu",
        node.input(0),
        alpha=node.floating("alpha", 1.6732 if old else 1.67326319217681884765625),
        gamma=node.floating("gamma", 1.0507 if old else 1.05070102214813232421875),
    )


@converter("PRelu", 1, 6)
def prelu_by_channel(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Before opset 7 the slope had one element, or one per channel (axis 1)."""
    data, slope = node.input(0), node.input(1)
    if slope.type.size == 1:
        slope = graph.emit("reshape", slope, shape=())
    elif data.rank > 2:
        slope = graph.emit("reshape", slope, shape=(slope.type.size,) + (1,) * (data.rank - 2))
    return graph.emit("prelu", data, slope)


@converter("Clip", 1, 6)
def clip_by_attributes(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Before opset 11 the bounds were attributes; the defaults are float32's range."""
    largest = float(np.finfo(np.float32).max)
    low, high = node.floating("min", -largest), node.floating("max", largest)
    return graph.emit(
        "clip",
        node.input(0),
        min=None if low <= -largest else low,
        max=None if high >= largest else high,
    )


@converter("Clip", 11, 12, 13)
def clip(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Constant bounds become attributes; others take `max` and `min`."""
    data = node.input(0)
    bounds: dict[str, int | float | None] = {"min": None, "max": None}
    for position, name, operator in ((1, "min", "max"), (2, "max", "min")):
        bound = node.optional(position)
        if bound is None:
            continue
        if bound.type.size != 1:
            raise node.bad_shape(f"the bound {name} must be a scalar, not {bound.type}")
        if bound.array is None:
            data = graph.emit(operator, data, graph.emit("reshape", bound, shape=()))
            continue
        number = bound.array.reshape(-1)[0].item()
        if number != number:
            raise node.unsupported(f"a bound {name} that is not a number")
        bounds[name] = number
    if bounds["min"] is None and bounds["max"] is None:
        return data
    return graph.emit("clip", data, **bounds)


@converter("Identity", 1, 13, 14, 16, 19, 21, 23, 24, 25)
def identity(node: OnnxNode, graph: GraphBuilder) -> Entity:
    """Of sequences and optionals, too."""
    given = node.entity(0)
    return node.input(0) if given is None else given


# Operators of opsets 1 to 9 that later ones do not have: files of early converters have them.
#
# No schema describes them any more. They take and refuse what onnxruntime does.


_LAST_OPSET = 9

_Early: TypeAlias = Callable[[OnnxNode, GraphBuilder], Value]


def _early(operator: str) -> Callable[[_Early], _Early]:
    """Register the converter of an operator of floats that no opset behind the last one has."""

    def register(function: _Early) -> _Early:
        @converter(operator, 1)
        def convert(node: OnnxNode, graph: GraphBuilder) -> Value:
            if node.opset > _LAST_OPSET:
                raise node.unsupported(f"an operator of opsets 1 to {_LAST_OPSET} in {node.opset}")
            if not node.input(0).dtype.is_float:
                raise node.invalid(f"takes floats, not {node.input(0).dtype}")
            return function(node, graph)

        return function

    return register


def _number(value: float, like: Value, graph: GraphBuilder) -> Value:
    return graph.scalar(value, like.dtype)


@_early("ImageScaler")
def image_scaler(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Images times `scale`, plus a bias for each channel."""
    data, bias = _images(node), node.floats("bias")
    if len(bias) != data.shape[1]:
        raise node.bad_shape(f"{len(bias)} biases for the channels of {data.type}")
    scaled = graph.emit("mul", data, _number(node.floating("scale", 1.0), data, graph))
    column: Array = np.array(bias, data.dtype.numpy).reshape(-1, 1, 1)
    return graph.emit("add", scaled, graph.constant(column))


@_early("Crop")
def crop(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Images without a border (left, top, right, bottom), or the size `scale` from its corner."""
    data, border, size = _images(node), node.integers("border"), node.integers("scale", ())
    if len(border) != 4 or min(border) < 0:
        raise node.invalid(f"the border {list(border)} has not four widths")
    if size and (len(size) != 2 or min(size) < 0):
        raise node.invalid(f"the scale {list(size)} is no height and width")
    left, top, right, bottom = border
    if not size:
        if top + bottom > data.shape[2] or left + right > data.shape[3]:
            raise node.bad_shape(f"the border {list(border)} does not fit into {data.type}")
        around = (0, 0, -top, -left, 0, 0, -bottom, -right)
        return graph.emit("pad", data, pads=around, mode="constant")
    for axis, first, count in ((2, top, size[0]), (3, left, size[1])):
        if first + count > bounds_of(data.true_shape[axis])[0]:
            reason = f"{list(size)} behind the border {list(border)} may not fit into {data.type}"
            raise graph.refusal(reason, [data])
    shape = (*data.shape[:2], *size)
    return graph.emit("slice", data, starts=(0, 0, top, left), steps=(1,) * 4, shape=shape)


def _images(node: OnnxNode) -> Value:
    data = node.input(0)
    if data.rank != 4:
        raise node.bad_shape(f"{data.type} is no batch of images, [N, C, H, W]")
    return data


@_early("Affine")
def affine(node: OnnxNode, graph: GraphBuilder) -> Value:
    """alpha * x + beta."""
    data = node.input(0)
    scaled = graph.emit("mul", data, _number(node.floating("alpha", 1.0), data, graph))
    return graph.emit("add", scaled, _number(node.floating("beta", 0.0), data, graph))


@_early("Scale")
def scale(node: OnnxNode, graph: GraphBuilder) -> Value:
    """x * scale."""
    data = node.input(0)
    return graph.emit("mul", data, _number(node.floating("scale", 1.0), data, graph))


@_early("ScaledTanh")
def scaled_tanh(node: OnnxNode, graph: GraphBuilder) -> Value:
    """alpha * tanh(beta * x)."""
    return _scaled(node, "tanh", graph)


@_early("ParametricSoftplus")
def parametric_softplus(node: OnnxNode, graph: GraphBuilder) -> Value:
    """alpha * log(1 + exp(beta * x))."""
    return _scaled(node, "softplus", graph)


def _scaled(node: OnnxNode, operator: str, graph: GraphBuilder) -> Value:
    """alpha * operator(beta * x)."""
    data = node.input(0)
    inner = graph.emit("mul", data, _number(node.floating("beta"), data, graph))
    alpha = _number(node.floating("alpha"), data, graph)
    return graph.emit("mul", alpha, graph.emit(operator, inner))


# --- Conversions between element types -----------------------------------------------------------


@converter("Cast", 6, 9, 13, 19, 21, 23, 24, 25, 28)
def cast(node: OnnxNode, graph: GraphBuilder) -> Value:
    """`saturate` concerns 8-bit floats only, and `round_mode` those that are powers of two."""
    return _converted(node, graph, node.integer("to"))


@converter("Cast", 1)
def cast_by_name(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Before opset 6 the type was given by name."""
    name = node.string("to").upper()
    numbers = dict(TensorProto.DataType.items())
    if name not in numbers:
        raise UnsupportedOperatorError(f"{node.label}: there is no element type {name!r}")
    return _converted(node, graph, numbers[name])


def _converted(node: OnnxNode, graph: GraphBuilder, number: int) -> Value:
    target = dtype_of(number, f"{node.label}: the result")
    return _cast(node, graph, target)


@converter("CastLike", 15, 19, 21, 23, 24, 25)
def cast_like(node: OnnxNode, graph: GraphBuilder) -> Value:
    return _cast(node, graph, node.input(1).dtype)


def _cast(node: OnnxNode, graph: GraphBuilder, target: DType) -> Value:
    value = node.input(0)
    if value.dtype is not target and DType.STRING in (value.dtype, target):
        raise node.unsupported(f"{value.dtype} to {target}, which computes with strings")
    if value.dtype is target or target not in EIGHT_BIT_FLOATS:
        return graph.cast(value, target)
    saturate = bool(node.integer("saturate", 1))
    if target is not DType.F8E8M0:
        return graph.emit("cast", value, to=str(target), saturate=saturate)
    rounding = node.choice("round_mode", "up", ("up", "down", "nearest"))
    return graph.emit("cast", value, to=str(target), saturate=saturate, rounding=rounding)


@converter("BitCast", 26)
def bit_cast(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, to = node.input(0), dtype_of(node.integer("to"), f"{node.label}: the result")
    return data if data.dtype is to else graph.emit("bit_cast", data, to=str(to))
