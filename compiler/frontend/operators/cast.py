"""Conversions between element types."""

from __future__ import annotations

from onnx import TensorProto

from tunefarm.compiler.errors import UnsupportedOperatorError
from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.types.dtypes import EIGHT_BIT_FLOATS, DType


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


# --- Converter of BitCast ------------------------------------------------------------------------


@converter("BitCast", 26)
def bit_cast(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, to = node.input(0), dtype_of(node.integer("to"), f"{node.label}: the result")
    return data if data.dtype is to else graph.emit("bit_cast", data, to=str(to))
