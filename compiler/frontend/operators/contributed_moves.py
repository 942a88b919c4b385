"""onnxruntime's own variants of ONNX's operators: by another name, layout, or with a bit more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.frontend.converter import Converter, converter, find_converter
from tunefarm.compiler.frontend.data_sizes import all_there
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.fused import DOMAIN, channels_last
from tunefarm.compiler.frontend.operators.quantise import dynamically_quantised
from tunefarm.compiler.frontend.operators.recurrent import IntegerWeights, recurrent_layer
from tunefarm.compiler.frontend.structured_values import Entity
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import whole
from tunefarm.compiler.types.tensor_type import Array

# What has the meaning of ONNX's operator of that name, or of another one, in this version.
_ALIKE: dict[str, tuple[str, int]] = {
    "GatherND": ("GatherND", 11),
    "GridSample": ("GridSample", 16),
    "Pad": ("Pad", 13),
    "Trilu": ("Trilu", 14),
}


def as_onnx(node: OnnxNode, operator: str, version: int) -> tuple[OnnxNode, Converter]:
    """The node as one of ONNX's, and its converter."""
    convert = find_converter("", operator, version)
    if convert is None:
        raise node.unsupported(f"the ONNX operator {operator}, which it is based on,")
    return replace(node, domain="", operator=operator, version=version, opset=version), convert


def _alike(name: str, operator: str, version: int) -> None:
    @converter(name, 1, domain=DOMAIN)
    def convert(node: OnnxNode, graph: GraphBuilder) -> Entity | Sequence[Entity]:
        found, convert = as_onnx(node, operator, version)
        return convert(found, graph)


for _name, (_operator, _version) in _ALIKE.items():
    _alike(_name, _operator, _version)


@converter("Range", 1, domain=DOMAIN)
def range_(node: OnnxNode, graph: GraphBuilder) -> Entity | Sequence[Entity]:
    """The step may be absent, and is 1 then."""
    found, convert = as_onnx(node, "Range", 11)
    step = node.optional(2) or graph.scalar(1, node.input(0).dtype)
    return convert(replace(found, inputs=(*node.inputs[:2], step)), graph)


@converter("ExpandDims", 1, domain=DOMAIN)
def expand_dims(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = node.input(0)
    axis = node.axis(node.constant_integer(1, "the axis"), data.rank + 1)
    return graph.reshape(data, (*data.shape[:axis], 1, *data.shape[axis:]))


@converter("UnfoldTensor", 1, domain=DOMAIN)
def unfold_tensor(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Windows of `size` along an axis, `step` apart, each as a new last axis."""
    data, size, step = node.input(0), node.integer("size"), node.integer("step", 1)
    axis = node.axis(node.integer("dim", -1), data.rank)
    if not 1 <= size <= data.shape[axis] or step < 1:
        raise node.bad_shape(f"windows of {size}, {step} apart, of {data.type}")
    count = (data.shape[axis] - size) // step + 1
    graph.check_array((count, size), 8)
    places = np.arange(count, dtype=np.int64)[:, None] * step + np.arange(size)
    picked = graph.emit("gather", data, graph.constant(places), axis=axis)
    others = (at for at in range(picked.rank) if at != axis + 1)
    return graph.transpose(picked, (*others, axis + 1))


@converter("CDist", 1, domain=DOMAIN)
def cdist(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Distances of rows: the root of |a|^2 + |b|^2 - 2 a b."""
    left, right = node.input(0), node.input(1)
    if left.rank != 2 or right.rank != 2:
        raise node.bad_shape(f"{left.type} and {right.type} are not two matrices")
    metric = node.choice("metric", "sqeuclidean", ("sqeuclidean", "euclidean"))

    def squares(value: Value) -> Value:
        square = graph.emit("mul", value, value)
        return graph.emit("reduce_sum", square, axes=(1,), keepdims=False)

    product = graph.emit("matmul", left, right, transpose_b=True)
    twice = graph.emit("mul", product, graph.scalar(-2.0, left.dtype))
    rows = graph.reshape(squares(left), (left.shape[0], 1))
    total = graph.fold("add", [twice, rows, squares(right)])
    total = graph.emit("max", total, graph.scalar(0.0, left.dtype))
    return total if metric == "sqeuclidean" else graph.emit("sqrt", total)


@converter("NhwcMaxPool", 1, domain=DOMAIN)
def nhwc_max_pool(node: OnnxNode, graph: GraphBuilder) -> Value:
    found, convert = as_onnx(node, "MaxPool", 12)
    return channels_last(found, graph, lambda turned, graph: _first(convert(turned, graph)))


def _first(result: Entity | Sequence[Entity]) -> Entity:
    return result[0] if isinstance(result, Sequence) else result


@converter("QLinearConv", 1, domain=DOMAIN)
def qlinear_conv(node: OnnxNode, graph: GraphBuilder) -> Entity | Sequence[Entity]:
    found, convert = as_onnx(node, "QLinearConv", 10)
    if not node.integer("channels_last", 0):
        return convert(found, graph)
    return channels_last(found, graph, convert)


@converter("ConvTransposeWithDynamicPads", 1, domain=DOMAIN)
def conv_transpose_with_pads(node: OnnxNode, graph: GraphBuilder) -> Entity | Sequence[Entity]:
    """ConvTranspose whose pads are an input."""
    found, convert = as_onnx(node, "ConvTranspose", 11)
    attributes = dict(node.attributes)
    if node.optional(2) is not None:
        attributes["pads"] = node.constant_integers(2, "the list of pads")
    inputs = (*node.inputs[:2], node.optional(3))
    return convert(replace(found, inputs=inputs, attributes=attributes), graph)


@converter("DynamicQuantizeLSTM", 1, domain=DOMAIN)
def dynamic_quantize_lstm(node: OnnxNode, graph: GraphBuilder) -> Entity | Sequence[Entity]:
    """An LSTM of integer weights: inputs are rounded to 8 bits by the range of them all, hidden
    states before each step's product by the range of that step's batch.

    That is what onnxruntime's kernel does with one thread; each of several takes the range of its
    own rows. On CPUs without VNNI its sums of two products of bytes saturate at 16 bits, unless its
    session has the entry `session.x64quantprecision`: that is not followed. Reversed rows of
    several lengths begin together there and end together here, and have ranges accordingly.
    """
    found, _ = as_onnx(node, "LSTM", 14)
    parameters = []
    for weight, *places in ((1, 8, 9), (2, 10, 11)):
        value = node.input(weight)
        if value.rank != 3:
            raise node.bad_shape(f"the weights {value.type} must have three axes")
        directions, _, gates = value.shape
        given = [node.input(at) for at in places]
        widths = {item.type.size for item in given}
        if len(widths) != 1 or not widths <= {directions, directions * gates}:
            kinds = "the scale {} and the zero point {}".format(*(item.type for item in given))
            raise node.bad_shape(f"{kinds} do not fit {value.type}")
        shape = (directions, widths.pop() // directions)
        parameters.append([graph.reshape(item, shape) for item in given])
    (scale, zero), (recurrent_scale, recurrent_zero) = parameters
    across = (directions, 1, recurrent_zero.shape[1])
    recurrent = _centred(node.input(2), graph.reshape(recurrent_zero, across), graph)
    turned = [graph.transpose(value, (0, 2, 1)) for value in (node.input(1), recurrent)]
    every = graph.emit("expand", recurrent_scale, shape=(directions, gates))
    parts = dynamically_quantised(node.input(0), graph)
    rounded = graph.emit("dequantize", *parts, to=str(DType.F32))
    inputs = (rounded, *turned, *(node.optional(position) for position in range(3, 8)))
    sums = None
    if recurrent.array is not None and recurrent.dtype is DType.I8:
        sums = graph.constant(recurrent.array.sum(axis=1, dtype=np.int32))
    weights = IntegerWeights(scale, zero, every, sums)
    return recurrent_layer(replace(found, inputs=inputs), graph, weights)


def _centred(value: Value, zero_point: Value, graph: GraphBuilder) -> Value:
    """Integer weights without their zero point, in the fewest bytes; floats of what a run gives."""
    if value.array is None or zero_point.array is None:
        operands = (graph.cast(item, DType.F32) for item in (value, zero_point))
        return graph.emit("sub", *operands)
    centred = value.array.astype(np.int16) - zero_point.array.astype(np.int16)
    narrow = centred.astype(np.int8)
    return graph.constant(narrow if np.array_equal(narrow, centred) else centred)


@converter("GatherBlockQuantized", 1, domain=DOMAIN)
def gather_block_quantized(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Rows of a table of few bits, in blocks with a scale each along the last axis."""
    table, indices, scale = node.input(0), node.input(1), node.input(2)
    bits, block = node.integer("bits", 4), node.integer("block_size", 128)
    if node.integer("gather_axis", 0) != 0 or table.rank != 2 or scale.rank != 2:
        raise node.unsupported("a table that is not a matrix, or another gather_axis,")
    if node.axis(node.integer("quantize_axis", 1), 2) != 1:
        raise node.unsupported("blocks along another axis than the last")
    values = _few_bits(node, 0, bits)
    rows, width = values.shape
    blocks = -(-width // block)
    if scale.shape != (rows, blocks):
        raise node.bad_shape(f"the scale {scale.type} is not one of {rows} x {blocks} blocks")
    if node.optional(3) is None:
        middle = 1 << (bits - 1) if table.dtype is DType.U8 else 0
        zero = np.full((rows, blocks), middle, np.uint8).astype(values.dtype)
    else:
        given = node.input(3)
        packed = -(-blocks * bits // 8) if given.dtype is DType.U8 else blocks
        if given.shape != (rows, packed):
            reason = f"the zero points {given.type} are not {rows} x {packed}"
            raise node.bad_shape(
                f"{reason}, those of {rows} x {blocks} blocks of {bits} bits",
                hint="export it with symmetric weights (the builder: int4_is_symmetric=true), or "
                "without a table that is shared with the last product",
            )
        zero = _few_bits(node, 3, bits)[:, :blocks]
    every = graph.reshape(all_there(indices, graph), (indices.type.size,))
    parts = [
        graph.emit("gather", part, every, axis=0)
        for part in (graph.constant(values), scale, graph.constant(np.ascontiguousarray(zero)))
    ]
    picked = graph.emit("dequantize", *parts, to=str(scale.dtype), axis=1, block=block)
    result = graph.reshape(picked, (*indices.shape, width))
    return graph.with_dims(result, (*indices.dims, whole(width)))


def _few_bits(node: OnnxNode, position: int, bits: int) -> Array:
    """A constant as it is, or, of bytes, their fields of `bits` bits, the lowest first."""
    given = node.constant(position, "the table")
    if given.dtype != np.uint8 or bits == 8:
        return given
    if bits not in (2, 4):
        raise node.unsupported(f"a table of {bits} bits")
    places = np.arange(0, 8, bits, dtype=np.uint8)
    fields = (given[..., None].view(np.uint8) >> places) & np.uint8((1 << bits) - 1)
    kind = {2: DType.U2, 4: DType.U4}[bits]
    return np.ascontiguousarray(fields.reshape(given.shape[0], -1)).view(kind.numpy)
