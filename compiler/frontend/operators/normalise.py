"""Normalisations: by batch statistics, layer, instance, group, norm, and local response."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.types.dtypes import DType


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
    shifted = graph.emit("add", variance, graph.scalar(node.floating("epsilon", 1e-5), data.dtype))
    factor = graph.emit("div", scale, graph.emit("sqrt", shifted))
    centred = graph.emit("sub", data, mean)
    return graph.emit("add", graph.emit("mul", centred, factor), bias)


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
