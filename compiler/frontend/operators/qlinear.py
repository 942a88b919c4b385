"""onnxruntime's own operators on integers: dequantised, computed in floats, quantised again.

What is decomposed here is folded into integer arithmetic by
`tunefarm.compiler.graph.fold_quantised`.
"""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.frontend.converter import Converter, converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.matmul import matmul_value
from tunefarm.compiler.frontend.operators.pool import average_value
from tunefarm.compiler.frontend.operators.quantise import Parameters, check_scale
from tunefarm.compiler.frontend.operators.softmax import over_matrix
from tunefarm.compiler.types.dtypes import DType

_DOMAIN = "com.microsoft"


def _dequantized(node: OnnxNode, first: int, graph: GraphBuilder) -> Value:
    """Inputs `first`, its scale and its zero point as floats."""
    return _floats(
        node, (node.input(first), node.input(first + 1), node.optional(first + 2)), graph
    )


def _floats(
    node: OnnxNode, given: tuple[Value, Value, Value | None], graph: GraphBuilder, axis: int = 0
) -> Value:
    data, scale, zero = given
    parameters = Parameters.of(node, data, (scale, zero), graph, axis)
    return parameters.emit("dequantize", data, DType.F32, graph)


def _quantized(
    node: OnnxNode, value: Value, first: int, graph: GraphBuilder, like: int = 0
) -> Value:
    """A float in the scale and zero point that are inputs `first` and the next one.

    Without a zero point it has the type of the input `like`.
    """
    scale, zero = node.input(first), node.optional(first + 1)
    check_scale(node, scale, divides=True)
    target = node.input(like).dtype if zero is None else zero.dtype
    parameters = Parameters.of(node, value, (scale, zero), graph, 0)
    return parameters.emit("quantize", value, target, graph)


def _binary(operator: str) -> Converter:
    def convert(node: OnnxNode, graph: GraphBuilder) -> Value:
        operands = (_dequantized(node, 0, graph), _dequantized(node, 3, graph))
        return _quantized(node, graph.emit(operator, *operands), 6, graph)

    return convert


converter("QLinearAdd", 1, domain=_DOMAIN)(_binary("add"))
converter("QLinearMul", 1, domain=_DOMAIN)(_binary("mul"))


@converter("QLinearSigmoid", 1, domain=_DOMAIN)
def qlinear_sigmoid(node: OnnxNode, graph: GraphBuilder) -> Value:
    return _quantized(node, graph.emit("sigmoid", _dequantized(node, 0, graph)), 3, graph)


@converter("QLinearLeakyRelu", 1, domain=_DOMAIN)
def qlinear_leaky_relu(node: OnnxNode, graph: GraphBuilder) -> Value:
    alpha = node.floating("alpha", 0.01)
    value = graph.emit("leaky_relu", _dequantized(node, 0, graph), alpha=alpha)
    return _quantized(node, value, 3, graph)


@converter("QLinearSoftmax", 1, domain=_DOMAIN)
def qlinear_softmax(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Of the opset that an attribute says: before 13 all axes from `axis` on are one."""
    data, opset = _dequantized(node, 0, graph), node.integer("opset")
    if opset < 13:
        axis = node.axis(node.integer("axis", 1), data.rank, end=True)
        return _quantized(node, over_matrix("softmax", data, axis, graph), 3, graph)
    axis = node.axis(node.integer("axis", -1), data.rank)
    return _quantized(node, graph.emit("softmax", data, axis=axis), 3, graph)


@converter("QLinearAveragePool", 1, domain=_DOMAIN)
def qlinear_average_pool(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = _dequantized(node, 0, graph)
    if not node.integer("channels_last", 0):
        return _quantized(node, average_value(node, data, graph, counts_whole=True), 3, graph)
    last = data.rank - 1
    turned = graph.emit("transpose", data, perm=(0, last, *range(1, last)))
    average = average_value(node, turned, graph, counts_whole=True)
    back = graph.emit("transpose", average, perm=(0, *range(2, data.rank), 1))
    return _quantized(node, back, 3, graph)


@converter("QLinearReduceMean", 1, domain=_DOMAIN)
def qlinear_reduce_mean(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = _dequantized(node, 0, graph)
    axes = node.axes(node.integers("axes"), data.rank)
    keepdims = bool(node.integer("keepdims"))
    return _quantized(node, graph.emit("reduce_mean", data, axes=axes, keepdims=keepdims), 3, graph)


@converter("QLinearWhere", 1, domain=_DOMAIN)
def qlinear_where(node: OnnxNode, graph: GraphBuilder) -> Value:
    operands = (_dequantized(node, 1, graph), _dequantized(node, 4, graph))
    return _quantized(node, graph.emit("where", node.input(0), *operands), 7, graph, like=1)


@converter("MatMulIntegerToFloat", 1, domain=_DOMAIN)
def matmul_integer_to_float(node: OnnxNode, graph: GraphBuilder) -> Value:
    left, right = node.input(0), node.input(1)
    a = _floats(node, (left, node.input(2), node.optional(4)), graph, _lines(left))
    b = _floats(node, (right, node.input(3), node.optional(5)), graph, right.rank - 1)
    return _with_bias(matmul_value(node, a, b, graph), node.optional(6), graph)


@converter("DynamicQuantizeMatMul", 1, domain=_DOMAIN)
def dynamic_quantize_matmul(node: OnnxNode, graph: GraphBuilder) -> Value:
    """The left operand in u8, whose range, widened to hold 0, is that of its elements."""
    data, right = node.input(0), node.input(1)
    axes, zero = tuple(range(data.rank)), graph.scalar(0.0, DType.F32)
    low, high = (
        graph.emit(bound, graph.emit(f"reduce_{bound}", data, axes=axes, keepdims=False), zero)
        for bound in ("min", "max")
    )
    width = graph.emit("div", graph.emit("sub", high, low), graph.scalar(255.0, DType.F32))
    is_flat = graph.emit("equal", high, low)
    scale = graph.emit("where", is_flat, graph.scalar(1.0, DType.F32), width)
    lowest = graph.emit("round", graph.emit("div", graph.emit("neg", low), scale))
    middle = graph.cast(graph.emit("clip", lowest, min=0.0, max=255.0), DType.U8)
    quantised = graph.emit("quantize", data, scale, middle, to="u8")
    a = graph.emit("dequantize", quantised, scale, middle, to="f32")
    b = _floats(node, (right, node.input(2), node.optional(3)), graph, right.rank - 1)
    return _with_bias(matmul_value(node, a, b, graph), node.optional(4), graph)


def _lines(matrix: Value) -> int:
    """The axis of a left operand's rows."""
    return max(matrix.rank - 2, 0)


def _with_bias(product: Value, bias: Value | None, graph: GraphBuilder) -> Value:
    return product if bias is None else graph.emit("add", product, bias)


@converter("QLinearGlobalAveragePool", 1, domain=_DOMAIN)
def qlinear_global_average_pool(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = _dequantized(node, 0, graph)
    if node.integer("channels_last", 0):
        axes = tuple(range(1, data.rank - 1))
    else:
        axes = tuple(range(2, data.rank))
    return _quantized(node, graph.emit("reduce_mean", data, axes=axes, keepdims=True), 3, graph)


@converter("QLinearConcat", 1, domain=_DOMAIN)
def qlinear_concat(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Scale and zero point of the result come first, then each part with its own."""
    count = len(node.inputs) - 2
    if count < 3 or count % 3:
        raise node.invalid(f"{count} inputs are no parts with scale and zero point each")
    parts = []
    for first in range(2, len(node.inputs), 3):
        part = (node.input(first), node.input(first + 1), node.optional(first + 2))
        parts.append(_floats(node, part, graph, 0))
    joined = graph.concat(parts, node.axis(node.integer("axis"), parts[0].rank))
    return _quantized(node, joined, 0, graph, like=2)


@converter("QGemm", 1, domain=_DOMAIN)
def qgemm(node: OnnxNode, graph: GraphBuilder) -> Value:
    """alpha A' B' + C, C being i32 in units of the product; floats where no scale is given."""
    turned = bool(node.integer("transB", 0))
    left = _dequantized(node, 0, graph)
    weight = (node.input(3), node.input(4), node.optional(5))
    right = _floats(node, weight, graph, 0 if turned else 1)
    result = graph.emit(
        "matmul", left, right, transpose_a=bool(node.integer("transA", 0)), transpose_b=turned
    )
    alpha, bias = node.floating("alpha", 1.0), node.optional(6)
    if bias is not None:
        units = graph.emit("mul", graph.reshape(node.input(1), ()), node.input(4))
        step, steps = node.input(1).array, node.input(4).array
        if step is not None and steps is not None:
            units = graph.constant(np.multiply(step.reshape(()), steps), DType.F32)
        scale = graph.reshape(units, ()) if units.type.size == 1 else units
        result = graph.emit("add", result, graph.emit("dequantize", bias, scale, to="f32"))
    if alpha != 1:
        result = graph.emit("mul", result, graph.scalar(alpha, DType.F32))
    return result if node.optional(7) is None else _quantized(node, result, 7, graph)
