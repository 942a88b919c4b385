"""Linear quantisation, and operators on quantised data and weights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from tunefarm.compiler.frontend.converter import Converter, converter
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.conv import conv_value
from tunefarm.compiler.frontend.operators.matmul import matmul_value
from tunefarm.compiler.frontend.operators.normalise import over_matrix
from tunefarm.compiler.frontend.operators.pool import average_value
from tunefarm.compiler.operators.quantise import QUANTISED, QUANTISED_FLOATS
from tunefarm.compiler.types.dtypes import EIGHT_BIT_FLOATS, DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.tensor_type import Array, Attribute


@frozen
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


# onnxruntime's own operators on integers: dequantised, computed in floats, quantised again.
#
# What is decomposed here is folded into integer arithmetic by
# `tunefarm.compiler.graph.fold_quantised`.


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


# --- MatMulNBits of onnxruntime's own operators: a product with weights of a few bits each -------


_TYPES = {2: DType.U2, 4: DType.U4, 8: DType.U8}


@converter("MatMulNBits", 1, domain="com.microsoft")
def matmul_nbits(node: OnnxNode, graph: GraphBuilder) -> Value:
    """x * dequantised weights^T + bias: these are [N, K] in blocks along K, low bits first.

    `g_idx` has the block of each of the K. Where blocks are equally large, data and weights are put
    in their order, so that weights stay as narrow as they are.
    """
    rows, inner, bits = node.integer("N"), node.integer("K"), node.integer("bits", 4)
    block = node.integer("block_size")
    if bits not in _TYPES:
        raise node.unsupported(f"weights of {bits} bits")
    if rows < 1 or inner < 1 or block < 1 or block * bits % 8:
        raise node.invalid(f"N {rows}, K {inner} and block_size {block} make no matrix of bytes")
    data, blocks = node.input(0), -(-inner // block)
    if data.shape[-1:] != (inner,):
        raise node.bad_shape(f"{data.type} has not {inner} columns")
    check_scale(node, node.input(2))
    packed = node.constant(1, "weights")
    if packed.dtype != np.uint8 or packed.size != rows * blocks * block * bits // 8:
        raise node.bad_shape(f"{packed.dtype}{list(packed.shape)} are no {rows}x{inner} weights")
    weights = _unpacked(packed.reshape(rows, -1), bits)[:, :inner]
    data = _matrix(data, graph)
    groups = _groups(node, inner, block)
    order = np.argsort(groups, kind="stable")
    if not np.array_equal(groups[order], np.arange(inner) // block):
        weight = graph.constant(
            _weights_as_floats(node, weights, blocks, groups, graph), data.dtype
        )
        return _with_bias_of_rows(node, graph.emit("matmul", data, weight, transpose_b=True), graph)
    if not np.array_equal(order, np.arange(inner)):
        weights = weights[:, order]
        data = graph.emit("gather", data, graph.constant(order), axis=data.rank - 1)
    return _with_bias_of_rows(node, _by_blocks(node, data, weights, block, graph), graph)


def _by_blocks(
    node: OnnxNode, data: Value, weights: Array, block: int, graph: GraphBuilder
) -> Value:
    """The product with integers in blocks that follow each other.

    Zero points z that are floats are a product of their own, m being the middle of the integers:
    x (w - z) s = x (w - m) s - (the sum of x over each block) (z - m) s.
    """
    (rows, inner), bits = weights.shape, node.integer("bits", 4)
    blocks, last = -(-inner // block), data.rank - 1
    scale = graph.reshape(node.input(2), (rows, blocks))
    zero, middle = _zero_points(node, rows, blocks), 1 << (bits - 1)
    stored = np.full((rows, blocks), middle, np.uint8) if zero.dtype == np.float32 else zero
    weight = graph.emit(
        "dequantize",
        graph.constant(np.ascontiguousarray(weights)),
        scale,
        graph.constant(stored.astype(_TYPES[bits].numpy)),
        to=str(data.dtype),
        axis=1,
        block=block,
    )
    result = graph.emit("matmul", data, weight, transpose_b=True)
    if zero.dtype != np.float32:
        return result
    wide, missing = graph.cast(data, DType.F32), blocks * block - inner
    if missing:
        wide = graph.emit("pad", wide, pads=(*(0,) * (data.rank + last), missing))
    wide = graph.reshape(wide, (*data.shape[:-1], blocks, block))
    sums = graph.emit("reduce_sum", wide, axes=(last + 1,), keepdims=False)
    distance = graph.constant(np.subtract(zero, np.float32(middle)))
    factor = graph.emit("mul", distance, graph.cast(scale, DType.F32))
    shifted = graph.emit("matmul", sums, factor, transpose_b=True)
    return graph.cast(graph.emit("sub", graph.cast(result, DType.F32), shifted), data.dtype)


def _matrix(data: Value, graph: GraphBuilder) -> Value:
    return data if data.rank > 1 else graph.reshape(data, (1, *data.shape))


def _with_bias_of_rows(node: OnnxNode, result: Value, graph: GraphBuilder) -> Value:
    """The product plus the bias, with as many axes as the data has."""
    if node.optional(5) is not None:
        result = graph.emit("add", result, node.input(5))
    return result if node.input(0).rank > 1 else graph.reshape(result, result.shape[1:])


def _zero_points(node: OnnxNode, rows: int, blocks: int) -> Array:
    """[N, blocks] as u8, the middle of the range where there are none, or as f32."""
    bits = node.integer("bits", 4)
    if node.optional(3) is None:
        return np.full((rows, blocks), 1 << (bits - 1), np.uint8)
    given = node.constant(3, "zero points")
    if given.dtype != np.uint8:
        if given.size != rows * blocks or not np.isfinite(given.astype(np.float32)).all():
            raise node.bad_shape(
                f"{given.size} zero points for {rows}x{blocks} blocks, or no numbers"
            )
        return given.astype(np.float32).reshape(rows, blocks)
    bytes_of_row = -(-blocks * bits // 8)
    if given.size != rows * bytes_of_row:
        raise node.bad_shape(f"{given.size} bytes are no zero points of {rows}x{blocks} blocks")
    return _unpacked(given.reshape(rows, -1), bits)[:, :blocks].astype(np.uint8)


def _unpacked(packed: Array, bits: int) -> Array:
    """Rows of bytes as rows of integers of a few bits, the lowest bits of each byte first."""
    fields = np.empty((*packed.shape, 8 // bits), np.uint8)
    for place in range(8 // bits):
        np.right_shift(packed, np.uint8(place * bits), out=fields[..., place])
    fields &= np.uint8((1 << bits) - 1)
    return fields.reshape(packed.shape[0], -1).view(_TYPES[bits].numpy)


def _groups(node: OnnxNode, inner: int, block: int) -> Array:
    """The block of each column."""
    if node.optional(4) is None:
        return np.arange(inner) // block
    groups = node.constant(4, "groups").reshape(-1)[:inner].astype(np.int64)
    if groups.shape != (inner,) or groups.min() < 0 or groups.max() >= -(-inner // block):
        raise node.bad_shape(f"{groups.size} groups for {inner} columns of blocks of {block}")
    return groups


def _weights_as_floats(
    node: OnnxNode, weights: Array, blocks: int, groups: Array, graph: GraphBuilder
) -> Array:
    """The weights as f32, by the block of each column."""
    rows = weights.shape[0]
    graph.check_array(weights.shape, 4)
    scale = node.constant(2, "scales").astype(np.float32).reshape(rows, blocks)
    zero = _zero_points(node, rows, blocks).astype(np.float32)
    numbers: Array = (weights.astype(np.float32) - zero[:, groups]) * scale[:, groups]
    return numbers


_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""What the 16 codes of a weight stand for, in parts of the largest number of its block."""


@converter("MatMulBnb4", 1, domain="com.microsoft")
def matmul_bnb4(node: OnnxNode, graph: GraphBuilder) -> Value:
    """x * weights^T: these are 4-bit codes of floats, [N, K] in blocks, high bits first."""
    rows, inner = node.integer("N"), node.integer("K")
    block, kind = node.integer("block_size"), node.integer("quant_type")
    data = node.input(0)
    if rows < 1 or inner < 1 or block < 1:
        raise node.invalid(f"N {rows}, K {inner} and block_size {block} make no matrix")
    if data.shape[-1:] != (inner,):
        raise node.bad_shape(f"{data.type} has not {inner} columns")
    if kind not in (0, 1):
        raise node.invalid(f"quant_type is {kind}, which is neither 0 (FP4) nor 1 (NF4)")
    if not node.integer("transB", 1):
        raise node.unsupported("weights that are not transposed (transB=0)")
    packed, largest = node.constant(1, "weights"), node.constant(2, "largest numbers")
    count = rows * inner
    if packed.dtype != np.uint8 or packed.size != -(-count // 2):
        raise node.bad_shape(f"{packed.dtype}{list(packed.shape)} are no {rows}x{inner} weights")
    if largest.size != -(-count // block):
        raise node.bad_shape(f"{largest.size} largest numbers for blocks of {block}")
    graph.check_array((rows, inner), 4)
    bytes_ = np.asarray(packed.reshape(-1), np.uint8)
    codes = np.stack([bytes_ >> 4, bytes_ & 15], axis=1).reshape(-1)[:count]
    table = np.array(_NF4 if kind else (*_FP4, *(-number for number in _FP4)), np.float32)
    each = largest.astype(np.float32).reshape(-1)[np.arange(count) // block]
    weight = graph.constant((table[codes] * each).reshape(rows, inner), data.dtype)
    data = _matrix(data, graph)
    return _with_bias_of_rows(node, graph.emit("matmul", data, weight, transpose_b=True), graph)
