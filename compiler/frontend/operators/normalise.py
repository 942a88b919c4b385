"""Normalisations: by batch statistics, layer, instance, group, norm, local response, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.fused import DOMAIN, silu_value
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import whole


@converter("BatchNormalization", 1, 6, 7, 9)
def batch_normalization_of_inputs(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """The statistics are inputs, unless outputs for new ones (or `is_test` 0) say training.

    Then the last two outputs are those of the data.
    """
    if node.version < 9 and not node.integer("spatial", 1):
        return [_of_each_element(node, graph)]
    wanted = any(node.wants(position) for position in range(1, 5))
    if wanted or (node.version < 7 and not node.integer("is_test", 0)):
        return _trained(node, graph)
    return [_batch_norm(node, graph, *_parameters(node, graph))]


@converter("BatchNormalization", 14, 15)
def batch_normalization(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """In training mode by the data's own statistics, which then move the running ones.

    Networks that standardise their weights are exported so.
    """
    if node.integer("training_mode", 0):
        return _trained(node, graph)[:3]
    if node.wants(1) or node.wants(2):
        raise node.unsupported("running statistics without training_mode")
    return [_batch_norm(node, graph, *_parameters(node, graph))]


def _of_each_element(node: OnnxNode, graph: GraphBuilder) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, each of a number for every element."""
    data = node.input(0)
    scale, bias, mean, variance = (node.input(position) for position in range(1, 5))
    for value in (scale, bias, mean, variance):
        if value.shape != data.shape[1:]:
            raise node.bad_shape(f"{value.type} has not one entry per element of {data.type}")
    training = node.version < 7 and not node.integer("is_test", 0)
    if training or any(node.wants(position) for position in range(1, 5)):
        raise node.unsupported("training with spatial=0")
    x, factor, moved, middle, spread = (
        Numbers(value, graph) for value in (data, scale, bias, mean, variance)
    )
    factor = factor / (spread + node.floating("epsilon", 1e-5)).apply("sqrt")
    return ((x - middle) * factor + moved).value


def _trained(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """The result, the statistics as the data moves them, and those of the data."""
    scale, bias, mean, variance = _parameters(node, graph)
    data, momentum = node.input(0), node.floating("momentum", 0.9)
    axes = tuple(axis for axis in range(data.rank) if axis != 1)
    of_data, spread = _moments(data, axes, graph)
    current = [graph.reshape(value, mean.shape) for value in (of_data, spread)]

    def running(before: Value, now: Value) -> Value:
        kept = graph.emit("mul", before, graph.scalar(momentum, before.dtype))
        added = graph.emit("mul", now, graph.scalar(1.0 - momentum, before.dtype))
        return graph.emit("add", kept, added)

    moved = [running(*pair) for pair in zip((mean, variance), current, strict=True)]
    statistics = [node.input(position).dtype for position in (3, 4)]
    outputs = [
        graph.cast(value, dtype)
        for value, dtype in zip((*moved, *current), statistics * 2, strict=True)
    ]
    return [_batch_norm(node, graph, scale, bias, *current), *outputs]


def _parameters(node: OnnxNode, graph: GraphBuilder) -> list[Value]:
    """Scale, bias, mean and variance in the data's type. Raises ShapeError for other shapes."""
    data = node.input(0)
    if data.rank < 2:
        raise node.bad_shape(f"{data.type} has no channel axis")
    parameters = [node.input(position) for position in range(1, 5)]
    for value in parameters:
        if value.shape != (data.shape[1],):
            raise node.bad_shape(f"{value.type} has not one entry per channel of {data.type}")
    return [graph.cast(value, data.dtype) for value in parameters]


def _batch_norm(node: OnnxNode, graph: GraphBuilder, *parameters: Value) -> Value:
    epsilon = node.floating("epsilon", 1e-5)
    return graph.emit("batch_norm", node.input(0), *parameters, epsilon=epsilon)


def _moments(value: Value, axes: tuple[int, ...], graph: GraphBuilder) -> tuple[Value, Value]:
    """The mean and the variance over the axes, which stay."""
    mean = graph.emit("reduce_mean", value, axes=axes, keepdims=True)
    centred = graph.emit("sub", value, mean)
    squares = graph.emit("mul", centred, centred)
    return mean, graph.emit("reduce_mean", squares, axes=axes, keepdims=True)


def statistics(
    value: Value, axes: tuple[int, ...], epsilon: float, graph: GraphBuilder
) -> tuple[Value, Value]:
    """The mean and 1 / sqrt(variance + epsilon) over the axes, which stay."""
    mean, variance = _moments(value, axes, graph)
    shifted = graph.emit("add", variance, graph.scalar(epsilon, value.dtype))
    return mean, graph.emit("reciprocal", graph.emit("sqrt", shifted))


@converter("LayerNormalization", 17)
def layer_normalization(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """The optional outputs are the mean and the reciprocal of the standard deviation."""
    data, scale, bias = node.input(0), node.input(1), node.optional(2)
    axis = node.axis(node.integer("axis", -1), data.rank)
    epsilon = node.floating("epsilon", 1e-5)
    operands = [
        None if operand is None else _broadcast(node, operand, data, axis, graph)
        for operand in (scale, bias)
    ]
    result = graph.emit("layer_norm", data, *operands, axis=axis, epsilon=epsilon)
    if not (node.wants(1) or node.wants(2)):
        return [result]
    axes = tuple(range(axis, data.rank))
    return [result, *statistics(data, axes, epsilon, graph)]


@converter("RMSNormalization", 23)
def rms_normalization(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, scale = node.input(0), node.input(1)
    axis = node.axis(node.integer("axis", -1), data.rank)
    operand = _broadcast(node, scale, data, axis, graph)
    return graph.emit("rms_norm", data, operand, axis=axis, epsilon=node.floating("epsilon", 1e-5))


def _broadcast(node: OnnxNode, value: Value, data: Value, axis: int, graph: GraphBuilder) -> Value:
    """A scale or bias in the shape of the data's axes from `axis` on."""
    shape, dims = data.shape[axis:], data.dims[axis:]
    if value.shape == shape:
        return value
    if value.rank > len(shape):
        if any(extent != 1 for extent in value.shape[: value.rank - len(shape)]):
            raise node.bad_shape(f"{value.type} does not broadcast to {list(shape)}")
        value = graph.reshape(value, value.shape[value.rank - len(shape) :])
    if value.padded is not None:  # a pointwise operator compares the sizes at run time
        graph.check_array(shape, value.dtype.bytes)
        zeros = graph.padded.begins(graph.constant(np.zeros(shape, value.dtype.numpy)), dims)
        value = graph.emit("where", graph.scalar(True, DType.BOOL), value, zeros)
    expanded = value if value.shape == shape else graph.emit("expand", value, shape=shape)
    if expanded.shape != shape:
        raise node.bad_shape(f"{value.type} does not broadcast to {list(shape)}")
    return expanded


@converter("InstanceNormalization", 1, 6, 22)
def instance_normalization(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, scale, bias = node.input(0), node.input(1), node.input(2)
    if data.rank < 3:
        raise node.bad_shape(f"{data.type} has no spatial axes")
    if scale.shape != (data.shape[1],) or bias.shape != (data.shape[1],):
        raise node.bad_shape(f"scale and bias need {data.shape[1]} entries")
    behind = (1,) * (data.rank - 2)
    operands = [graph.reshape(item, item.shape + behind) for item in (scale, bias)]
    epsilon = node.floating("epsilon", 1e-5)
    return graph.emit("layer_norm", data, *operands, axis=2, epsilon=epsilon)


@converter("GroupNormalization", 18, 21)
def group_normalization(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Version 18 has a scale and a bias per group, version 21 per channel."""
    data, scale, bias = node.input(0), node.input(1), node.input(2)
    groups = node.integer("num_groups")
    if data.rank < 2 or groups < 1 or data.shape[1] % groups:
        raise node.bad_shape(f"{data.type} has no {groups} groups of channels")
    batch, channels = data.shape[:2]
    wanted = groups if node.version == 18 else channels
    if scale.shape != (wanted,) or bias.shape != (wanted,):
        raise node.bad_shape(f"scale and bias need {wanted} entries")
    members = channels // groups
    grouped = graph.reshape(data, (batch, groups, members, math.prod(data.shape[2:])))
    operands = [graph.reshape(item, (groups, wanted // groups, 1)) for item in (scale, bias)]
    epsilon = node.floating("epsilon", 1e-5)
    normal = graph.emit("layer_norm", grouped, *operands, axis=2, epsilon=epsilon)
    return graph.reshape(normal, data.shape)


@converter("LpNormalization", 1, 22)
def lp_normalization(node: OnnxNode, graph: GraphBuilder) -> Value:
    """x / ||x||_p along an axis; 0 where the norm is 0."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", -1), data.rank)
    p = node.integer("p", 2)
    if p not in (1, 2):
        raise node.unsupported(f"p={p}")
    return graph.emit("lp_norm", data, axis=axis, p=p)


@converter("MeanVarianceNormalization", 9, 13)
def mean_variance_normalization(node: OnnxNode, graph: GraphBuilder) -> Value:
    """(x - E x) / (sqrt(E (x - E x)^2) + 1e-9), as the operator's function body has it."""
    data = node.input(0)
    axes = node.axes(node.integers("axes", (0, 2, 3)), data.rank)
    if not axes:  # each element is its own mean
        return graph.emit("sub", data, data)
    return graph.emit("mean_variance_norm", data, axes=axes)


@converter("MeanVarianceNormalization", 1)
def mean_variance_normalization_of_channels(node: OnnxNode, graph: GraphBuilder) -> Value:
    """The first version: all but the channels are one range, or these as well."""
    data = node.input(0)
    across = node.integer("across_channels", 0)
    axes = tuple(axis for axis in range(data.rank) if across or axis != 1)
    if node.integer("normalize_variance", 1):
        return graph.emit("mean_variance_norm", data, axes=axes)
    return graph.emit("sub", data, graph.emit("reduce_mean", data, axes=axes, keepdims=True))


@converter("LRN", 1, 13)
def lrn(node: OnnxNode, graph: GraphBuilder) -> Value:
    """x / (bias + alpha / size * sum of squares over neighbouring channels) ** beta.

    The sum over `size` channels is a convolution with ones along the channel axis, which takes the
    spatial axes as one.
    """
    data, size = node.input(0), node.integer("size")
    if data.rank < 3 or size < 1:
        raise node.bad_shape(f"no windows of {size} channels in {data.type}")
    alpha, beta = node.floating("alpha", 1e-4), node.floating("beta", 0.75)
    batch, channels = data.shape[:2]
    inner = math.prod(data.shape[2:])
    squares = graph.reshape(graph.emit("mul", data, data), (batch, 1, channels, inner))
    graph.check_array((size,), data.dtype.bytes)
    ones = graph.constant(np.ones((1, 1, size, 1), data.dtype.numpy))
    pads = ((size - 1) // 2, 0, size - 1 - (size - 1) // 2, 0)
    total = graph.emit("conv", squares, ones, pads=pads)
    scaled = graph.emit("mul", total, graph.scalar(alpha / size, data.dtype))
    based = graph.emit("add", scaled, graph.scalar(node.floating("bias", 1.0), data.dtype))
    power = graph.emit("pow", based, graph.scalar(beta, data.dtype))
    return graph.emit("div", data, graph.reshape(power, data.shape))


# Normalisations of onnxruntime's own: with what is added before them, gates and embeddings.


def _total(values: Sequence[Value | None], graph: GraphBuilder) -> Value:
    """The sum of those values that there are."""
    return graph.fold("add", [value for value in values if value is not None])


@converter("SkipLayerNormalization", 1, domain=DOMAIN)
def skip_layer_normalization(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """Outputs: the norm, mean, reciprocal deviation, and the sum of input, skip and bias."""
    total = _total([node.input(0), node.optional(4), node.input(1)], graph)
    epsilon, last = node.floating("epsilon", 1e-12), total.rank - 1
    parameters = (node.input(2), node.optional(3))
    normal = graph.emit("layer_norm", total, *parameters, axis=last, epsilon=epsilon)
    mean = deviation = total
    if node.wants(1) or node.wants(2):
        mean, deviation = statistics(total, (last,), epsilon, graph)
    return [normal, mean, deviation, total]


@converter("SkipSimplifiedLayerNormalization", 1, domain=DOMAIN)
def skip_simplified_layer_normalization(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """As SkipLayerNormalization, by the root of the mean square; it has no mean."""
    if node.wants(1) or node.wants(2):
        raise node.unsupported("a mean or deviation as output")
    total = _total([node.input(0), node.optional(3), node.input(1)], graph)
    epsilon, last = node.floating("epsilon", 1e-12), total.rank - 1
    normal = graph.emit("rms_norm", total, node.input(2), axis=last, epsilon=epsilon)
    return [normal, total, total, total]


converter("LayerNormalization", 1)(layer_normalization)  # as ONNX has it since opset 17


@converter("SimplifiedLayerNormalization", 1)
def simplified_layer_normalization(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """x / sqrt(mean(x^2) + epsilon) * scale, and the reciprocal of that root."""
    data, scale = node.input(0), node.input(1)
    axis, epsilon = node.axis(node.integer("axis", -1), data.rank), node.floating("epsilon", 1e-5)
    scale = graph.cast(scale, data.dtype)
    normal = graph.emit("rms_norm", data, scale, axis=axis, epsilon=epsilon)
    if not node.wants(1):
        return [normal]
    axes = tuple(range(axis, data.rank))
    squares = graph.emit("mul", data, data)
    mean = graph.emit("reduce_mean", squares, axes=axes, keepdims=True)
    shifted = graph.emit("add", mean, graph.scalar(epsilon, data.dtype))
    return [normal, graph.emit("reciprocal", graph.emit("sqrt", shifted))]


@converter("GatedRMSNorm", 1, domain=DOMAIN)
def gated_rms_norm(node: OnnxNode, graph: GraphBuilder) -> Value:
    """rms_norm(X) * scale * activation(gate)."""
    data, gate = node.input(0), node.input(2)
    kind = node.choice("activation", "silu", ("silu", "swish", "sigmoid"))
    epsilon = node.floating("epsilon", 1e-5)
    normal = graph.emit("rms_norm", data, node.input(1), axis=data.rank - 1, epsilon=epsilon)
    opened = graph.emit("sigmoid", gate) if kind == "sigmoid" else silu_value(gate, graph)
    return graph.emit("mul", normal, opened)


@converter("EmbedLayerNormalization", 1, domain=DOMAIN)
def embed_layer_normalization(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """Outputs: the norm of the embeddings' sum, the mask's tokens by row, and that sum."""
    tokens, segments, mask = node.input(0), node.optional(1), node.optional(7)
    if tokens.rank != 2:
        raise node.bad_shape(f"{tokens.type} has not two axes")
    words = graph.emit("gather", node.input(2), tokens, axis=0)
    positions, table = node.optional(8), node.input(3)
    if positions is None:
        placed = graph.part(table, 0, 0, tokens.shape[1])
        placed = graph.padded.begins(placed, (tokens.dims[1], whole(table.shape[1])))
    else:
        placed = graph.emit("gather", table, positions, axis=0)
    kinds = node.optional(4)
    kind = None
    if segments is not None and kinds is not None:
        kind = graph.emit("gather", kinds, segments, axis=0)
    total = _total([words, placed, kind], graph)
    normal = graph.emit(
        "layer_norm",
        total,
        node.input(5),
        node.input(6),
        axis=2,
        epsilon=node.floating("epsilon", 1e-12),
    )
    count = normal
    if node.wants(1) and mask is None:
        count = graph.emit("expand", graph.scalar(0, DType.I32), shape=(tokens.shape[0],))
        count = graph.padded.begins(count, tokens.dims[:1])
    elif node.wants(1) and mask is not None:
        is_one = graph.emit("equal", mask, graph.scalar(1, DType.I32))
        ones = graph.cast(is_one, DType.I32)
        count = graph.emit("reduce_sum", ones, axes=(1,), keepdims=False)
    return [normal, count, total]


def _group_norm(node: OnnxNode, data: Value, graph: GraphBuilder) -> Value:
    """Group normalisation of channels, with silu behind it where `activation` says so."""
    groups, last = node.integer("groups"), bool(node.integer("channels_last", 1))
    rank = data.rank
    if last:
        data = graph.transpose(data, (0, rank - 1, *range(1, rank - 1)))
    batch, channels = data.shape[:2]
    if groups < 1 or channels % groups:
        raise node.bad_shape(f"{channels} channels are not {groups} groups")
    members = channels // groups
    grouped = graph.reshape(data, (batch, groups, members, math.prod(data.shape[2:])))
    operands = [
        graph.reshape(graph.cast(node.input(position), data.dtype), (groups, members, 1))
        for position in (1, 2)
    ]
    epsilon = node.floating("epsilon", 1e-5)
    normal = graph.emit("layer_norm", grouped, *operands, axis=2, epsilon=epsilon)
    result = graph.reshape(normal, data.shape)
    if node.integer("activation"):
        result = silu_value(result, graph)
    return graph.transpose(result, (0, *range(2, rank), 1)) if last else result


@converter("GroupNorm", 1, domain=DOMAIN)
def group_norm(node: OnnxNode, graph: GraphBuilder) -> Value:
    return _group_norm(node, node.input(0), graph)


@converter("SkipGroupNorm", 1, domain=DOMAIN)
def skip_group_norm(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """The skip may lack the spatial axes, or have them as ones; the sum is an output, too."""
    data, skip = node.input(0), node.input(3)
    if skip.rank == 2:
        between = (1,) * (data.rank - 2)
        skip = graph.reshape(skip, (skip.shape[0], *between, skip.shape[1]))
    total = _total([data, node.optional(4), skip], graph)
    return [_group_norm(node, total, graph), total]


# --- Softmax and its relatives -------------------------------------------------------------------


def _hardmax(value: Value, axis: int, graph: GraphBuilder) -> Value:
    """One at the first maximum along the axis, zero elsewhere."""
    if len(value.dims[axis]) > 1:
        value = graph.padded.dense(value)
    first = graph.emit("arg_max", value, axis=axis, keepdims=False, select_last_index=False)
    values = graph.constant(np.array([0, 1], value.dtype.numpy))
    hot = graph.emit("one_hot", first, values, depth=value.shape[axis], axis=axis)
    return graph.with_dims(hot, value.padded)


def _normalised(operator: str, value: Value, axis: int, graph: GraphBuilder) -> Value:
    if operator == "hardmax":
        return _hardmax(value, axis, graph)
    return graph.emit(operator, value, axis=axis)


def over_matrix(operator: str, value: Value, axis: int, graph: GraphBuilder) -> Value:
    """A normalisation in which all axes from `axis` on are one, as until opset 12."""
    if axis == value.rank - 1:
        return _normalised(operator, value, axis, graph)
    shape = (math.prod(value.shape[:axis]), math.prod(value.shape[axis:]))
    matrix = graph.reshape(value, shape)
    return graph.reshape(_normalised(operator, matrix, 1, graph), value.shape)


def _register(onnx_operator: str, operator: str) -> None:
    @converter(onnx_operator, 13)
    def along_axis(node: OnnxNode, graph: GraphBuilder) -> Value:
        value = node.input(0)
        axis = node.axis(node.integer("axis", -1), value.rank)
        return _normalised(operator, value, axis, graph)

    @converter(onnx_operator, 1, 11)
    def along_axes(node: OnnxNode, graph: GraphBuilder) -> Value:
        value = node.input(0)
        axis = node.axis(node.integer("axis", 1), value.rank, end=True)
        return over_matrix(operator, value, axis, graph)


_register("Softmax", "softmax")
_register("LogSoftmax", "log_softmax")
_register("Hardmax", "hardmax")
