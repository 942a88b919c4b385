"""Attention as onnxruntime's own operators have it: decomposed, with their masks and caches.

What is spelled here, softmax(scale Q K' + masks) V, is found again by
`tunefarm.compiler.graph.attention`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.data_sizes import positions
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.fused import DOMAIN
from tunefarm.compiler.frontend.operators.moves import window
from tunefarm.compiler.frontend.operators.quantise import Parameters
from tunefarm.compiler.frontend.structured_values import Entity
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import ONE, Axis, extent_of, is_unpadded, size_of
from tunefarm.compiler.types.sizes import Dimension

MASKED = -10000.0
"""What is added to scores where a mask has 0, unless a node says otherwise."""


# --- heads --------------------------------------------------------------------------------------


def split_heads(value: Value, heads: int, graph: GraphBuilder) -> Value:
    """[batch, tokens, heads * features] as [batch, heads, tokens, features]."""
    batch, tokens, width = value.shape
    split = graph.reshape(value, (batch, tokens, heads, width // heads))
    return graph.transpose(split, (0, 2, 1, 3))


def joined_heads(value: Value, graph: GraphBuilder) -> Value:
    """The inverse of `split_heads`."""
    batch, heads, tokens, width = value.shape
    turned = graph.transpose(value, (0, 2, 1, 3))
    return graph.reshape(turned, (batch, tokens, heads * width))


def repeated_heads(value: Value, heads: int, graph: GraphBuilder) -> Value:
    """Keys or values [batch, groups, tokens, features] for all heads of each group."""
    batch, groups, tokens, width = value.shape
    if groups == heads:
        return value
    apart = graph.reshape(value, (batch, groups, 1, tokens, width))
    shape = (batch, groups, heads // groups, tokens, width)
    wide = graph.emit("expand", apart, shape=shape)
    # What is behind the tokens is as it was: zeros of a cache need not be written again.
    again = partial(graph.emit, "expand", shape=shape)
    wide = graph.padded.moved(wide, apart, (0, 1, None, 3, 4), again)
    return graph.reshape(wide, (batch, heads, tokens, width))


# --- scores -------------------------------------------------------------------------------------


@frozen
class Scores:
    """What becomes of the product of queries and keys before and in the softmax.

    `added` goes onto the scores, of which those stay where all of `kept` (bools) are true. `sink`
    is one more score of each head, [heads, 1, 1] or a number, that no value belongs to. Keys from
    number `ends[0]` on, and those before `ends[1]` if it has two, are seen by no query, and need
    not be read.
    """

    scale: float
    added: tuple[Value, ...] = ()
    kept: tuple[Value, ...] = ()
    softcap: float = 0.0
    sink: Value | None = None
    ends: Value | None = None


def attended(query: Value, key: Value, value: Value, how: Scores, graph: GraphBuilder) -> Value:
    """softmax(scale Q K' + masks) V of [batch, heads, tokens, features]."""
    scores = masked_scores(query, key, how, graph)
    if how.ends is not None:
        since = 1 if how.ends.shape[0] > 1 else -1
        scores = graph.emit("fill", scores, how.ends, axis=3, number=0, since=since, value="lowest")
        value = graph.emit("fill", value, how.ends, axis=2, number=0, since=since, value="zero")
        graph.padded.fills(scores, 3, "lowest")
        graph.padded.fills(value, 2, "zero")
    return graph.emit("matmul", _weights(scores, how.sink, graph), value)


def masked_scores(query: Value, key: Value, how: Scores, graph: GraphBuilder) -> Value:
    """scale Q K' + masks of [batch, heads, tokens, features]; the lowest number where not kept."""
    turned = graph.transpose(key, (0, 1, 3, 2))
    scores = graph.emit("matmul", query, turned)
    if how.scale != 1.0:
        scores = graph.emit("mul", scores, graph.scalar(how.scale, scores.dtype))
    if how.softcap:
        cap = graph.scalar(how.softcap, scores.dtype)
        scores = graph.emit("mul", graph.emit("tanh", graph.emit("div", scores, cap)), cap)
    for mask in how.added:
        scores = graph.emit("add", scores, mask)
    if how.kept:
        # All of one rank: the one mask that attention has is what they say together.
        lowest = graph.scalar(_lowest(scores.dtype), scores.dtype)
        scores = graph.emit("where", graph.fold("and", how.kept), scores, lowest)
    return scores


def ends_of(past: Value, tokens: Value, window: int, graph: GraphBuilder) -> Value:
    """The keys that some row of a batch sees: up to where and, in a `window`, from where on.

    A row has `past` [batch] tokens and then so many new `tokens`.
    """
    longest = graph.emit("reduce_max", past, axes=(0,), keepdims=True)
    end = graph.emit("add", longest, tokens)
    if window <= 0:
        return end
    shortest = graph.emit("reduce_min", past, axes=(0,), keepdims=True)
    return graph.concat([end, graph.emit("sub", shortest, graph.scalar(window - 1, DType.I64))], 0)


def _weights(scores: Value, sink: Value | None, graph: GraphBuilder) -> Value:
    last = scores.rank - 1
    if sink is None:
        return graph.emit("softmax", scores, axis=last)
    column = graph.emit("expand", sink, shape=(*scores.shape[:-1], 1))
    column = graph.with_dims(column, (*scores.dims[:-1], ONE))
    if not is_unpadded(scores.dims[last]):  # the column is where it begins, as its end is nowhere
        joined = graph.emit("softmax", graph.concat([column, scores], last), axis=last)
        return window(joined, last, 1, size_of(scores.dims[last]), graph)
    whole = graph.emit("softmax", graph.concat([scores, column], last), axis=last)
    return graph.part(whole, last, 0, scores.shape[-1])


def _lowest(dtype: DType) -> float:
    return -dtype.largest


def causal_mask(query: Value, key: Value, graph: GraphBuilder) -> Value:
    """[queries, keys], their axis 2: the last query sees all keys, each one before it one less."""
    queries, keys = query.shape[2], key.shape[2]
    graph.check_array((queries, keys), 1)
    if is_unpadded(query.dims[2]) and is_unpadded(key.dims[2]):
        places = np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries)
        return graph.constant(places)
    behind = size_of(key.dims[2]) - size_of(query.dims[2])
    rows = graph.reshape(positions_within(query.dims[2], graph), (queries, 1))
    last = graph.emit("add", rows, graph.size(behind))
    return graph.emit("less_equal", positions_within(key.dims[2], graph), last)


def positions_within(axis: Axis, graph: GraphBuilder) -> Value:
    """0, 1, 2, … as i64, of which as many are there as of an axis."""
    return graph.padded.begins(positions(extent_of(axis), graph), (axis,))


def _padding_mask(
    node: OnnxNode, mask: Value, key: Value, dtype: DType, graph: GraphBuilder
) -> Value:
    """What is added to the scores: 0 where keys count, else the node's `mask_filter_value`.

    The mask is [batch, keys] or [batch, queries, keys] with 0 and 1, or the numbers of keys of the
    rows, [batch], or these and then where they start, [2 batch].
    """
    batch, keys, rows = node.input(0).shape[0], key.shape[2], node.input(0).true_shape[0]
    if mask.rank == 3:
        counts = graph.emit("greater", mask, graph.scalar(0, mask.dtype))
        counts = graph.reshape(counts, (mask.shape[0], 1, *mask.shape[1:]))
    elif mask.rank == 2:
        counts = graph.emit("greater", mask, graph.scalar(0, mask.dtype))
        counts = graph.reshape(counts, (mask.shape[0], 1, 1, mask.shape[1]))
    elif mask.padded is not None or not is_unpadded(key.dims[2]):
        counts = _keys_within_lengths(node, mask, key, rows, graph)
    elif mask.shape in ((batch,), (2 * batch,)):
        places = graph.constant(np.arange(keys, dtype=mask.dtype.numpy).reshape(1, 1, 1, keys))
        ends = graph.reshape(graph.part(mask, 0, 0, batch), (batch, 1, 1, 1))
        counts = graph.emit("less", places, ends)
        if mask.shape == (2 * batch,):
            starts = graph.reshape(graph.part(mask, 0, batch, batch), (batch, 1, 1, 1))
            late = graph.emit("greater_equal", places, starts)
            counts = graph.emit("and", counts, late)
    else:
        raise node.unsupported(f"a mask of the form {mask.type}")
    if counts.shape[-1] != keys:
        raise node.bad_shape(f"the mask {mask.type} is not one of {keys} keys")
    outside = graph.scalar(node.floating("mask_filter_value", MASKED), dtype)
    return graph.emit("where", counts, graph.scalar(0.0, dtype), outside)


def _keys_within_lengths(
    node: OnnxNode, mask: Value, key: Value, rows: Dimension, graph: GraphBuilder
) -> Value:
    """[batch, 1, 1, keys]: which ones numbers of keys allow, of dynamic sizes."""
    places = graph.cast(positions_within(key.dims[2], graph), mask.dtype)
    if mask.rank != 1 or (mask.true_shape[0] == 2 * rows and rows != 0):
        raise graph.refusal(f"a mask of the form {mask.type}", [mask, key])
    ends = graph.reshape(mask, (mask.shape[0], 1, 1, 1))
    return graph.emit("less", places, ends)


def _scores(
    node: OnnxNode,
    query: Value,
    key: Value,
    mask: Value | None,
    bias: Value | None,
    graph: GraphBuilder,
) -> Scores:
    """As the node's attributes, its mask and its attention bias say."""
    added = [] if bias is None else [bias]
    if mask is not None:
        added.append(_padding_mask(node, mask, key, query.dtype, graph))
    scale = node.floating("scale", 0.0) or 1.0 / math.sqrt(query.shape[-1])
    causal = node.integer("unidirectional", 0) and query.shape[2] > 1
    kept = (causal_mask(query, key, graph),) if causal else ()
    return Scores(scale, tuple(added), kept)


def _with_past(past: Value | None, now: Value, graph: GraphBuilder) -> Value:
    if past is None or 0 in past.shape:
        return now
    return graph.concat([past, now], 2)


# --- Attention ----------------------------------------------------------------------------------


def _self_attention(
    node: OnnxNode,
    projected: Value,
    operands: Sequence[Value | None],
    graph: GraphBuilder,
) -> Sequence[Value]:
    """Of queries, keys and values side by side; `operands` are mask, past and attention bias."""
    mask, past, bias = operands
    if node.integer("do_rotary", 0):
        raise node.unsupported("do_rotary")
    if node.integer("past_present_share_buffer", 0):
        raise node.unsupported("past_present_share_buffer = 1")
    heads, width = node.integer("num_heads"), projected.shape[-1]
    sizes = node.integers("qkv_hidden_sizes", (width // 3,) * 3) or (width // 3,) * 3
    if len(sizes) != 3 or sum(sizes) != width or any(size % heads for size in sizes):
        raise node.bad_shape(f"{width} features are not those of {heads} heads' {list(sizes)}")
    starts = (0, sizes[0], sizes[0] + sizes[1])
    query, key, value = (
        split_heads(graph.part(projected, 2, start, size), heads, graph)
        for start, size in zip(starts, sizes, strict=True)
    )
    if past is not None:
        key, value = (
            _with_past(None if 0 in past.shape else graph.pick(past, 0, at), now, graph)
            for at, now in enumerate((key, value))
        )
    how = _scores(node, query, key, mask, bias, graph)
    result = joined_heads(attended(query, key, value, how, graph), graph)
    if not node.wants(1):
        return [result]
    return [result, graph.concat([graph.reshape(v, (1, *v.shape)) for v in (key, value)], 0)]


@converter("Attention", 1, domain=DOMAIN)
def attention(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """Projects its input to queries, keys and values; caches are [2, batch, heads, tokens, f]."""
    projected = graph.emit("matmul", _batched(node, node.input(0)), node.input(1))
    if node.optional(2) is not None:
        projected = graph.emit("add", projected, node.input(2))
    operands = [node.optional(position) for position in (3, 4, 5)]
    return _self_attention(node, projected, operands, graph)


@converter("QAttention", 1, domain=DOMAIN)
def quantised_attention(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """Attention of which the projection multiplies integers."""
    data, weight = node.input(0), node.input(1)
    factors = []
    for value, scale, zero, axis in ((data, 3, 6, 0), (weight, 4, 7, 1)):
        given = (node.input(scale), node.optional(zero))
        parameters = Parameters.of(node, value, given, graph, axis)
        factors.append(parameters.emit("dequantize", value, DType.F32, graph))
    product = graph.emit("matmul", _batched(node, factors[0]), factors[1])
    projected = graph.emit("add", product, node.input(2))
    operands = [node.optional(5), node.optional(8), None]
    return _self_attention(node, projected, operands, graph)


def _batched(node: OnnxNode, value: Value) -> Value:
    if value.rank != 3:
        raise node.bad_shape(f"{value.type} is not [batch, tokens, features]")
    return value


# --- MultiHeadAttention -------------------------------------------------------------------------


@converter("MultiHeadAttention", 1, domain=DOMAIN)
def multi_head_attention(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """Of queries, keys and values that are projected already, packed or apart.

    Caches are [batch, heads, tokens, features]; keys and values may be given so, too.
    """
    for position, name in ((8, "past_sequence_length"), (9, "cache_indirection")):
        if node.optional(position) is not None:
            raise node.unsupported(f"the input {name} (a past that shares the present's memory)")
    heads = node.integer("num_heads")
    query, key, value = _operands(node, heads, graph)
    past = (node.optional(6), node.optional(7))
    key, value = (
        _with_past(before, now, graph) for before, now in zip(past, (key, value), strict=True)
    )
    how = _scores(node, query, key, node.optional(4), node.optional(5), graph)
    result = joined_heads(attended(query, key, value, how, graph), graph)
    if not node.wants(3):
        return [result, key, value]
    return [result, key, value, masked_scores(query, key, how, graph)]


def _operands(node: OnnxNode, heads: int, graph: GraphBuilder) -> tuple[Value, Value, Value]:
    """Query, key and value as [batch, heads, tokens, features], with the bias."""
    query, key, value = node.input(0), node.optional(1), node.optional(2)
    bias = node.optional(3)
    if query.rank == 5:  # [batch, tokens, heads, 3, features]
        parts = [graph.pick(query, 3, number) for number in range(3)]
    elif key is not None and key.rank == 5:  # [batch, tokens, heads, 2, features]
        parts = [_apart(query, heads, graph), *(graph.pick(key, 3, at) for at in range(2))]
    elif key is None or value is None:
        raise node.unsupported("no keys or values")
    elif key.rank == 4:  # as a cache has them, and as they are
        now = _apart(query, heads, graph)
        if bias is not None:
            now = _biased(now, graph.part(bias, 0, 0, query.shape[-1]), graph)
        return graph.transpose(now, (0, 2, 1, 3)), key, value
    else:
        parts = [_apart(operand, heads, graph) for operand in (query, key, value)]
    if bias is not None:
        widths = [part.shape[2] * part.shape[3] for part in parts]
        starts = (0, widths[0], widths[0] + widths[1])
        parts = [
            _biased(part, graph.part(bias, 0, start, width), graph)
            for part, start, width in zip(parts, starts, widths, strict=True)
        ]
    first, second, third = (graph.transpose(part, (0, 2, 1, 3)) for part in parts)
    return first, second, third


def _apart(value: Value, heads: int, graph: GraphBuilder) -> Value:
    """[batch, tokens, heads * features] as [batch, tokens, heads, features]."""
    batch, tokens, width = value.shape
    return graph.reshape(value, (batch, tokens, heads, width // heads))


def _biased(part: Value, bias: Value, graph: GraphBuilder) -> Value:
    return graph.emit("add", part, graph.reshape(bias, part.shape[2:]))


@converter("DecoderMaskedMultiHeadAttention", 1, domain=DOMAIN)
def decoder_masked_multi_head_attention(
    node: OnnxNode, graph: GraphBuilder
) -> Entity | Sequence[Entity]:
    """MultiHeadAttention with its inputs in another order, without shared memory and beams."""
    if any(node.optional(position) is not None for position in (7, 8, 9)):
        raise node.unsupported(
            "a past that shares the present's memory, or beams (the inputs past_sequence_length, "
            "beam_width and cache_indirection)"
        )
    order = (0, 1, 2, 10, 3, 4, 5, 6)
    given = tuple(node.optional(position) for position in order)
    return multi_head_attention(replace(node, inputs=given), graph)


# Rotary position embedding: ONNX's operator, and the one of onnxruntime's that came before it.


@converter("RotaryEmbedding", 23)
def rotary_embedding(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Tables are [positions, pairs] and picked by position, or [batch, tokens, pairs]."""
    positions = node.optional(3)
    tables = [node.input(1), node.input(2)]
    if positions is not None:
        tables = [graph.emit("gather", table, positions, axis=0) for table in tables]
    return _rotated(node, node.input(0), tables, graph)


@converter("RotaryEmbedding", 1, domain="com.microsoft")
def contributed_rotary_embedding(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Positions are those of all tokens, or that of the first one.

    The attribute `scale` changes nothing, as in onnxruntime's kernel.
    """
    data, positions = node.input(0), node.input(1)
    if node.integer("is_packed_batching", 0):
        raise node.unsupported("packed batches")
    if data.rank not in (3, 4):
        raise node.bad_shape(f"{data.type} has neither three nor four axes")
    if positions.type.size == 1:
        tokens = np.arange(data.shape[-2], dtype=np.int64).reshape(1, -1)
        first = graph.cast(graph.reshape(positions, (1, 1)), DType.I64)
        steps = graph.padded.begins(graph.constant(tokens), (ONE, data.dims[-2]))
        positions = graph.emit("add", first, steps)
    tables = [graph.emit("gather", node.input(at), positions, axis=0) for at in (2, 3)]
    return _rotated(node, data, tables, graph)


def _rotated(node: OnnxNode, data: Value, tables: list[Value], graph: GraphBuilder) -> Value:
    """Of [batch, heads, tokens, features], or of [batch, tokens, features of all heads]."""
    given, cosine = data, tables[0]
    if cosine.rank != 3 or tables[1].shape != cosine.shape:
        raise node.bad_shape(f"the tables {cosine.type} and {tables[1].type} are no rows of pairs")
    pairs = cosine.shape[-1]
    width = node.integer("rotary_embedding_dim", 0) or 2 * pairs
    if width != 2 * pairs:
        raise node.bad_shape(f"the tables {cosine.type} are not those of {width} features")
    if data.rank == 3:
        heads = node.integer("num_heads", 0) or data.shape[-1] // width
        if heads < 1 or data.shape[-1] % heads:
            raise node.bad_shape(f"{data.type} does not consist of {heads} heads")
        data = graph.reshape(data, (*data.shape[:2], heads, data.shape[-1] // heads))
    batch, tokens, _ = cosine.shape
    shape = (batch, 1, tokens, pairs) if given.rank == 4 else (batch, tokens, 1, pairs)
    wide = [graph.reshape(table, shape) for table in tables]
    interleaved = bool(node.integer("interleaved", 0))
    turned = graph.emit("rotary", data, *wide, width=width, interleaved=interleaved)
    return graph.reshape(turned, given.shape)
