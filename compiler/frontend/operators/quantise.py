"""Linear quantisation, and products of quantised integers."""

from __future__ import annotations

import numpy as np

from compiler.frontend.converter import converter
from compiler.frontend.element_types import dtype_of
from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.frontend.onnx_node import OnnxNode
from compiler.frontend.operators.conv import conv_value
from compiler.frontend.operators.matmul import matmul_value
from compiler.types.dtypes import DType


def _aligned(
    node: OnnxNode, parameter: Value, data: Value, axis: int, graph: GraphBuilder
) -> Value:
    """A scale or zero point (scalar, per axis, or blocked) shaped to broadcast over the data."""
    block = node.integer("block_size", 0)
    if parameter.type.size == 1 and not block:
        return graph.reshape(parameter, ())
    axis = node.axis(axis, data.rank)
    if not block:
        if parameter.shape != (data.shape[axis],):
            raise node.bad_shape(f"{parameter.type} does not fit axis {axis} of {data.type}")
        return graph.reshape(parameter, (*parameter.shape, *(1,) * (data.rank - axis - 1)))
    blocks = -(-data.shape[axis] // block)
    if parameter.shape != (*data.shape[:axis], blocks, *data.shape[axis + 1 :]):
        raise node.bad_shape(f"{parameter.type} does not fit blocks of {block} in {data.type}")
    before, after = parameter.shape[: axis + 1], parameter.shape[axis + 1 :]
    spread = graph.reshape(parameter, (*before, 1, *after))
    spread = graph.emit("expand", spread, shape=(*before, block, *after))
    whole = graph.reshape(spread, (*before[:-1], blocks * block, *after))
    return graph.part(whole, axis, 0, data.shape[axis])


def _quantised(
    scaled: Value, zero_point: Value | None, target: DType, graph: GraphBuilder
) -> Value:
    """saturate(round(scaled) + zero_point), in the arithmetic of `scaled`, as `target`."""
    rounded = graph.emit("round", scaled)
    if zero_point is not None:
        rounded = graph.emit("add", rounded, graph.cast(zero_point, rounded.dtype))
    limits = np.iinfo(target.numpy)
    clipped = graph.emit("clip", rounded, min=float(limits.min), max=float(limits.max))
    return graph.emit("cast", clipped, to=str(target))


def _result_type(node: OnnxNode, default: DType) -> DType:
    number = node.integer("output_dtype", 0)
    return dtype_of(number, f"{node.label}: the result") if number else default


@converter("QuantizeLinear", 10, 13, 19, 21, 23, 24, 25, 28)
def quantize_linear(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, scale, zero_point = node.input(0), node.input(1), node.optional(2)
    target = _result_type(node, DType.U8 if zero_point is None else zero_point.dtype)
    if target.is_float or target.bytes > 2:
        raise node.unsupported(f"quantisation to {target}")
    axis = node.integer("axis", 1)
    work = DType.F64 if DType.F64 in (data.dtype, scale.dtype) else DType.F32
    scale = graph.cast(_aligned(node, scale, data, axis, graph), work)
    if zero_point is not None:
        zero_point = _aligned(node, zero_point, data, axis, graph)
    scaled = graph.emit("div", graph.cast(data, work), scale)
    return _quantised(scaled, zero_point, target, graph)


@converter("DequantizeLinear", 10, 13, 19, 21, 23, 24, 25, 28)
def dequantize_linear(node: OnnxNode, graph: GraphBuilder) -> Value:
    """(x - zero_point) * scale."""
    data, scale, zero_point = node.input(0), node.input(1), node.optional(2)
    result = _result_type(node, scale.dtype)
    axis = node.integer("axis", 1)
    centred = graph.cast(data, result)
    if zero_point is not None:
        offset = graph.cast(_aligned(node, zero_point, data, axis, graph), result)
        centred = graph.emit("sub", centred, offset)
    factor = graph.cast(_aligned(node, scale, data, axis, graph), result)
    return graph.emit("mul", centred, factor)


def _widened(value: Value, zero_point: Value | None, graph: GraphBuilder) -> Value:
    """value - zero_point as i32; a zero point of all zeros is left out."""
    wide = graph.cast(value, DType.I32)
    if zero_point is None:
        return wide
    if zero_point.array is not None and not zero_point.array.any():
        return wide
    return graph.emit("sub", wide, graph.cast(zero_point, DType.I32))


def _row_parameter(
    node: OnnxNode, parameter: Value | None, data: Value, graph: GraphBuilder
) -> Value | None:
    """The left operand's scale or zero point: a scalar, or one per row."""
    if parameter is None or parameter.rank == 0:
        return parameter
    if parameter.type.size == 1:
        return graph.reshape(parameter, ())
    if parameter.rank > 1 or data.rank < 2:
        return parameter
    if parameter.shape != (data.shape[-2],):
        raise node.bad_shape(f"{parameter.type} has not one entry per row of {data.type}")
    return graph.reshape(parameter, (*parameter.shape, 1))


@converter("MatMulInteger", 10)
def matmul_integer(node: OnnxNode, graph: GraphBuilder) -> Value:
    left, right = node.input(0), node.input(1)
    offset = _row_parameter(node, node.optional(2), left, graph)
    a = _widened(left, offset, graph)
    b = _widened(right, node.optional(3), graph)
    return matmul_value(node, a, b, graph)


@converter("ConvInteger", 10)
def conv_integer(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, weight = node.input(0), node.input(1)
    a = _widened(data, _scalar(node, node.optional(2), graph), graph)
    b = _widened(weight, _per_output_channel(node.optional(3), weight, graph), graph)
    return conv_value(node, a, b, None, graph)


def _scalar(node: OnnxNode, parameter: Value | None, graph: GraphBuilder) -> Value | None:
    if parameter is None:
        return None
    if parameter.type.size != 1:
        raise node.bad_shape(f"{parameter.type} should be a scalar")
    return graph.reshape(parameter, ())


def _per_output_channel(
    parameter: Value | None, weight: Value, graph: GraphBuilder
) -> Value | None:
    if parameter is None or parameter.type.size == 1:
        return None if parameter is None else graph.reshape(parameter, ())
    return graph.reshape(parameter, (*parameter.shape, *(1,) * (weight.rank - 1)))


def _requantised(
    total: Value, scales: tuple[Value, Value, Value], zero_point: Value, graph: GraphBuilder
) -> Value:
    """total * a_scale * b_scale / y_scale, rounded; computed in f64, which holds any i32."""
    a_scale, b_scale, y_scale = (graph.cast(scale, DType.F64) for scale in scales)
    factor = graph.emit("div", graph.emit("mul", a_scale, b_scale), y_scale)
    scaled = graph.emit("mul", graph.cast(total, DType.F64), factor)
    return _quantised(scaled, zero_point, zero_point.dtype, graph)


@converter("QLinearMatMul", 10, 21)
def qlinear_matmul(node: OnnxNode, graph: GraphBuilder) -> Value:
    left, a_scale, a_zero, right, b_scale, b_zero, y_scale, y_zero = (
        node.input(position) for position in range(8)
    )
    a = _widened(left, _row_parameter(node, a_zero, left, graph), graph)
    b = _widened(right, b_zero, graph)
    total = matmul_value(node, a, b, graph)
    row_scale = _row_parameter(node, a_scale, left, graph) or a_scale
    return _requantised(total, (row_scale, b_scale, y_scale), y_zero, graph)


@converter("QLinearConv", 10)
def qlinear_conv(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, a_scale, a_zero, weight, b_scale, b_zero, y_scale, y_zero = (
        node.input(position) for position in range(8)
    )
    a = _widened(data, _scalar(node, a_zero, graph), graph)
    b = _widened(weight, _per_output_channel(b_zero, weight, graph), graph)
    total = conv_value(node, a, b, node.optional(8), graph)
    scale = b_scale
    if b_scale.type.size > 1:
        scale = graph.reshape(b_scale, (*b_scale.shape, *(1,) * (data.rank - 2)))
    return _requantised(total, (a_scale, scale, y_scale), y_zero, graph)
