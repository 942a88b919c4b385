"""Normalisations of onnxruntime's own: with what is added before them, gates and embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.fused import DOMAIN, silu_value
from tunefarm.compiler.frontend.operators.normalise import layer_normalization, statistics
from tunefarm.compiler.types.dims import whole
from tunefarm.compiler.types.dtypes import DType


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
