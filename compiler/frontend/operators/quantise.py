"""Linear quantisation, and products of quantised integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.conv import conv_value
from tunefarm.compiler.frontend.operators.matmul import matmul_value
from tunefarm.compiler.operators.quantise import QUANTISED, QUANTISED_FLOATS
from tunefarm.compiler.types.dtypes import EIGHT_BIT_FLOATS, DType
from tunefarm.compiler.types.tensor_type import Attribute


@dataclass(frozen=True, slots=True)
class Parameters:
    """A scale and a zero point as operands of `quantize` and `dequantize`."""

    scale: Value
    zero_point: Value | None
    axis: int
    block: int

    @staticmethod
    def of(
        node: OnnxNode,
        data: Value,
        parameters: tuple[Value, Value | None],
        graph: GraphBuilder,
        axis: int = 1,
    ) -> Parameters:
        """Those of a node: scalars, one pair for each position of `axis`, or for each block of it.

        A zero point of zeros is left out. Raises `ImportModelError` for a scale that is not finite,
        `ShapeError` for parameters that do not fit the data.
        """
        scale, zero_point = parameters
        axis, block = node.integer("axis", axis), node.integer("block_size", 0)
        check_scale(node, scale)
        if zero_point is not None and zero_point.array is not None and not zero_point.array.any():
            zero_point = None

        def aligned(parameter: Value) -> Value:
            if parameter.type.size == 1 and not block:
                return graph.reshape(parameter, ())
            where = node.axis(axis, data.rank)
            if block:
                return parameter
            if parameter.shape != (data.shape[where],):
                raise node.bad_shape(f"{parameter.type} does not fit axis {where} of {data.type}")
            return graph.reshape(parameter, (*parameter.shape, *(1,) * (data.rank - where - 1)))

        placed = None if zero_point is None else aligned(zero_point)
        where = node.axis(axis, data.rank) if block else 0
        return Parameters(aligned(scale), placed, where, block)

    def emit(
        self,
        operator: str,
        data: Value,
        to: DType,
        graph: GraphBuilder,
        further: Mapping[str, Attribute] = MappingProxyType({}),
    ) -> Value:
        """`quantize` or `dequantize` with these parameters, and `further` attributes."""
        attributes = dict(further)
        if self.block:
            attributes |= {"axis": self.axis, "block": self.block}
        return graph.emit(operator, data, self.scale, self.zero_point, to=str(to), **attributes)


def check_scale(node: OnnxNode, scale: Value, divides: bool = False) -> None:
    """Raise `ImportModelError` for a constant scale that is not finite, or that `divides` by 0.

    Pruned channels have a scale of 0, and onnxruntime gives a block of weights the sign of its
    largest one. QuantizeLinear saturates quotients of 0; what computes with integers divides them
    by the scale of the result.
    """
    if scale.array is None:
        return
    numbers = scale.array.astype(np.float64).reshape(-1)
    wrong = numbers[~np.isfinite(numbers) | (divides & (numbers == 0))]
    if wrong.size:
        name = node.name_of(scale)
        raise node.invalid(f"the scale {name!r} has {wrong[0]:g}, which nothing can be scaled by")


def _result_type(node: OnnxNode, default: DType) -> DType:
    number = node.integer("output_dtype", 0)
    return dtype_of(number, f"{node.label}: the result") if number else default


@converter("QuantizeLinear", 1, domain="com.microsoft")
@converter("QuantizeLinear", 10, 13, 19, 21, 23, 24, 25, 28)
def quantize_linear(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, scale, zero_point = node.input(0), node.input(1), node.optional(2)
    target = _result_type(node, DType.U8 if zero_point is None else zero_point.dtype)
    if target not in QUANTISED | QUANTISED_FLOATS:
        raise node.unsupported(f"quantisation to {target}")
    if target in EIGHT_BIT_FLOATS:
        zero_point = None  # it is 0
    parameters = Parameters.of(node, data, (scale, zero_point), graph)
    further: dict[str, Attribute] = {}
    if target.is_float:
        further["saturate"] = bool(node.integer("saturate", 1))
    elif (precision := _precision(node, data, scale)) in (DType.F16, DType.BF16):
        further["precision"] = str(precision)
    if _may_be_zero(scale):
        further["zero_scales"] = True
    return parameters.emit("quantize", data, target, graph, further)


def _may_be_zero(scale: Value) -> bool:
    """Whether some scale is 0 in a run, as denormal ones are."""
    if scale.array is None:
        return True
    return bool((np.abs(scale.array.astype(np.float64)) < np.finfo(np.float32).tiny).any())


def _precision(node: OnnxNode, data: Value, scale: Value) -> DType:
    """The type that quotients are rounded to: as given, or what data and scale have in common."""
    number = node.integer("precision", 0)
    if number:
        return dtype_of(number, f"{node.label}: the quotient")
    return scale.dtype if data.dtype is scale.dtype else DType.F32


@converter("DequantizeLinear", 1, domain="com.microsoft")
@converter("DequantizeLinear", 10, 13, 19, 21, 23, 24, 25, 28)
def dequantize_linear(node: OnnxNode, graph: GraphBuilder) -> Value:
    """(x - zero_point) * scale."""
    data, scale, zero_point = node.input(0), node.input(1), node.optional(2)
    if data.dtype in EIGHT_BIT_FLOATS:
        zero_point = None  # it is 0
    parameters = Parameters.of(node, data, (scale, zero_point), graph)
    return parameters.emit("dequantize", data, _result_type(node, scale.dtype), graph)


@converter("DynamicQuantizeLinear", 11)
def dynamic_quantize_linear(node: OnnxNode, graph: GraphBuilder) -> list[Value]:
    """Bytes, with a scale and a zero point of the data's own range, which 0 is a part of.

    Where all of the data is 0 the scale is 1, as onnxruntime has it: what is divided by it is then
    no infinity.
    """
    return list(dynamically_quantised(node.input(0), graph))


def dynamically_quantised(data: Value, graph: GraphBuilder) -> tuple[Value, Value, Value]:
    """What DynamicQuantizeLinear gives of data."""
    zero = graph.scalar(0, DType.F32)
    axes = tuple(range(data.rank))
    low = graph.emit("min", graph.emit("reduce_min", data, axes=axes, keepdims=False), zero)
    high = graph.emit("max", graph.emit("reduce_max", data, axes=axes, keepdims=False), zero)
    span = graph.emit("sub", high, low)
    spread = graph.emit("div", span, graph.scalar(255, DType.F32))
    is_zero = graph.emit("equal", span, zero)
    scale = graph.emit("where", is_zero, graph.scalar(1, DType.F32), spread)
    middle = graph.emit("sub", zero, graph.emit("div", low, scale))
    rounded = graph.emit("round", graph.emit("clip", middle, min=0.0, max=255.0))
    zero_point = graph.cast(rounded, DType.U8)
    return graph.emit("quantize", data, scale, zero_point, to=str(DType.U8)), scale, zero_point


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
    """total * (a_scale * b_scale / y_scale) + zero_point, rounded.

    As ONNX's reference evaluator computes it: the factor is a float of the scales' type, the
    product one of 64 bits, and what is rounded has the zero point in it already.
    """
    a_scale, b_scale, y_scale = scales
    factor = graph.emit("div", graph.emit("mul", a_scale, b_scale), y_scale)
    value = graph.emit("mul", graph.cast(total, DType.F64), graph.cast(factor, DType.F64))
    if zero_point.array is None or zero_point.array.any():
        value = graph.emit("add", value, graph.cast(zero_point, DType.F64))
    limits = np.iinfo(zero_point.dtype.numpy)
    rounded = graph.emit("round", value)
    clipped = graph.emit("clip", rounded, min=float(limits.min), max=float(limits.max))
    return graph.cast(clipped, zero_point.dtype)


@converter("QLinearMatMul", 10, 21)
def qlinear_matmul(node: OnnxNode, graph: GraphBuilder) -> Value:
    left, a_scale, a_zero, right, b_scale, b_zero, y_scale, y_zero = (
        node.input(position) for position in range(8)
    )
    for scale in (a_scale, b_scale, y_scale):
        check_scale(node, scale, divides=scale is y_scale)
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
    for given in (a_scale, b_scale, y_scale):
        check_scale(node, given, divides=given is y_scale)
    a = _widened(data, _scalar(node, a_zero, graph), graph)
    b = _widened(weight, _per_output_channel(b_zero, weight, graph), graph)
    total = conv_value(node, a, b, node.optional(8), graph)
    scale = b_scale
    if b_scale.type.size > 1:
        scale = graph.reshape(b_scale, (*b_scale.shape, *(1,) * (data.rank - 2)))
    return _requantised(total, (a_scale, scale, y_scale), y_zero, graph)
