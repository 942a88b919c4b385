"""GroupQueryAttention with dynamic numbers of tokens and cache entries.

A cache is as long as the longer one of what it was and the total length that the node receives.
Row by row the new tokens lie behind those that `seqlens_k` says were there; what is behind the
tokens of a row is 0, and no query sees it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.contributed_attention import (
    Scores,
    attended,
    ends_of,
    joined_heads,
    positions_within,
    repeated_heads,
)
from tunefarm.compiler.frontend.operators.moves import as_whole, with_axis
from tunefarm.compiler.types.dims import Axis, is_unpadded, size_of
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Dimension, bounds_of, greater


@dataclass(frozen=True, slots=True)
class _Places:
    """Where tokens are: `past` [batch] counts those before the new ones, `keys` is the axis of all
    that there are."""

    past: Value
    keys: Axis


@dataclass(frozen=True, slots=True)
class CacheForm:
    """How a cache holds keys or values: as they are, or as 8-bit integers over a `scale`.

    New ones are read as the cache holds them.
    """

    scale: Value | None

    def stored(self, now: Value, graph: GraphBuilder) -> Value:
        """New keys or values as the cache holds them."""
        if self.scale is None:
            return now
        wide = graph.cast(now, DType.F32)
        return graph.emit("quantize", wide, self.scale, to=str(DType.I8))

    def read(self, cache: Value, dtype: DType, graph: GraphBuilder) -> Value:
        """What a cache holds as numbers."""
        if self.scale is None:
            return cache
        wide = graph.emit("dequantize", cache, self.scale, to=str(DType.F32))
        return graph.cast(wide, dtype)


def sized_group_query_attention(
    node: OnnxNode,
    operands: tuple[Value, Value, Value],
    past: tuple[Value | None, Value | None],
    forms: Sequence[CacheForm],
    graph: GraphBuilder,
) -> Sequence[Value]:
    """As `group_query_attention`, of queries, keys and values [batch, heads, tokens, features]."""
    query, key, value = operands
    if not node.integer("causal", 1):
        raise graph.refusal("tokens of such sizes that see those behind them", [query])
    places = _places(node, query, past[0], graph)
    if node.integer("do_rotary", 0):
        query, key = (_rotated(node, item, places, graph) for item in (query, key))
    keys, values = (
        _cached(before, form.stored(now, graph), places, graph)
        for before, form, now in zip(past, forms, (key, value), strict=True)
    )
    all_keys, all_values = (
        repeated_heads(form.read(item, query.dtype, graph), query.shape[1], graph)
        for form, item in zip(forms, (keys, values), strict=True)
    )
    bias = node.optional(10)
    fitted = None if bias is None else _fitted(bias, places, graph)
    window = node.integer("local_window_size", -1)
    seen = _visible(query, places, window, graph)
    how = group_query_scores(node, query, fitted, seen, graph)
    grows = not is_unpadded(places.keys)  # it ends where its keys do
    if past[0] is not None and not (grows and (window <= 0 or how.sink is not None)):
        count = graph.size(size_of(query.dims[2]))
        how = replace(how, ends=ends_of(places.past, count, window, graph))
    return [joined_heads(attended(query, all_keys, all_values, how, graph), graph), keys, values]


def windowed_group_query_attention(
    node: OnnxNode,
    operands: tuple[Value, Value, Value],
    past: tuple[Value | None, Value | None],
    forms: Sequence[CacheForm],
    graph: GraphBuilder,
) -> Sequence[Value]:
    """As `group_query_attention`, over caches that hold the last tokens from their first row on.

    New tokens go behind those that are held, all are attended to, and what is kept moves to the
    front: how many are kept follows from how many tokens there were (`_held`).
    """
    window, (query, key, value) = node.integer("local_window_size", -1), operands
    caches = [item for item in past if item is not None]
    if len(caches) < 2 or not 0 < window <= min(item.shape[2] for item in caches):
        raise node.invalid("a cache of a sliding window is given, at least as long as the window")
    if query.shape[0] > 1 or node.optional(10) is not None:
        raise node.unsupported("a cache of a sliding window for a batch, or with a bias")
    if not node.integer("causal", 1) or not all(is_unpadded(item.dims[2]) for item in caches):
        raise node.unsupported("a cache of a sliding window that is not causal or of fixed length")
    room, tokens = caches[0].shape[2], query.shape[2]
    last = graph.cast(graph.reshape(node.input(5), (1,)), DType.I64)
    total = graph.emit("add", last, graph.scalar(1, DType.I64))
    count = graph.size(size_of(query.dims[2]))
    given = graph.cast(graph.reshape(node.input(6), ()), DType.I64)
    first = graph.emit("equal", given, count)
    before = graph.emit("sub", total, count)
    before = graph.emit("where", first, graph.scalar(0, DType.I64), before)
    if node.integer("do_rotary", 0):
        placed = _Places(before, query.dims[2])
        query, key = (_rotated(node, item, placed, graph) for item in (query, key))
    held, kept = (_held(item, room, window, graph) for item in (before, total))
    width = room + tokens
    joined = [
        _behind(cache, form.stored(now, graph), held, count, graph)
        for cache, form, now in zip(caches, forms, (key, value), strict=True)
    ]
    keys, values = (
        repeated_heads(form.read(item, query.dtype, graph), query.shape[1], graph)
        for form, item in zip(forms, joined, strict=True)
    )
    places = _Places(held, joined[0].dims[2])
    how = group_query_scores(node, query, None, _visible(query, places, window, graph), graph)
    how = replace(how, ends=ends_of(held, count, window, graph))
    gone = graph.emit("sub", graph.emit("sub", total, before), kept)
    rows = graph.emit("add", graph.emit("add", gone, held), graph.constant(np.arange(room)))
    rows = graph.emit("clip", rows, min=0, max=width - 1)
    after = [graph.emit("gather", item, rows, axis=2) for item in joined]
    return [joined_heads(attended(query, keys, values, how, graph), graph), *after]


def _held(total: Value, room: int, window: int, graph: GraphBuilder) -> Value:
    """How many of so many tokens a cache of a sliding window holds, [1].

    All while they fit; later they leave it in pieces of room - window + 1, so that the window
    stays.
    """
    piece = room - window + 1
    beyond = graph.emit("sub", total, graph.scalar(room, DType.I64))
    beyond = graph.emit("max", beyond, graph.scalar(0, DType.I64))
    beyond = graph.emit("add", beyond, graph.scalar(piece - 1, DType.I64))
    pieces = graph.emit("div", beyond, graph.scalar(piece, DType.I64))
    return graph.emit("sub", total, graph.emit("mul", pieces, graph.scalar(piece, DType.I64)))


def _behind(cache: Value, now: Value, held: Value, count: Value, graph: GraphBuilder) -> Value:
    """New keys or values behind those of a cache that are held, in a longer buffer."""
    zeros = graph.emit("expand", graph.scalar(0, cache.dtype), shape=as_whole(now, 2, graph).shape)
    longer = graph.concat([cache, zeros], 2)
    return graph.emit("cache_update", longer, now, held, None, count, axis=2, ends=True)


def _places(node: OnnxNode, query: Value, cache: Value | None, graph: GraphBuilder) -> _Places:
    tokens, last, total = size_of(query.dims[2]), node.input(5), _total(node)
    rows = graph.reshape(last, (query.shape[0],))
    if cache is None:
        none = graph.emit("mul", graph.cast(rows, DType.I64), graph.scalar(0, DType.I64))
        return _Places(none, query.dims[2])
    before = graph.emit("sub", graph.cast(rows, DType.I64), graph.size(tokens - 1))
    length = size_of(cache.dims[2])
    text = graph.reshape(node.input(6), ()) if total is None else graph.size(total)
    first = graph.emit("equal", graph.cast(text, DType.I64), graph.size(tokens))
    past = graph.emit("where", first, graph.scalar(0, DType.I64), before)
    keys = length if total is None else greater(length, total)
    return _Places(past, ((keys, bounds_of(keys)[1]),))


def _total(node: OnnxNode) -> Dimension | None:
    """The total length, None where it is computed."""
    given = node.input(6)
    if given.array is None and given.sizes is None:
        return None
    (total,) = node.sizes(6, "the total length")
    return total


def _rotated(node: OnnxNode, value: Value, places: _Places, graph: GraphBuilder) -> Value:
    tables, positions = [node.input(position) for position in (7, 8)], node.optional(9)
    if positions is None:
        steps = graph.reshape(positions_within(value.dims[2], graph), (1, value.shape[2]))
        past = graph.reshape(places.past, (value.shape[0], 1))
        positions = graph.emit("add", past, steps)
        positions = graph.emit("clip", positions, min=0, max=tables[0].shape[0] - 1)
    rows = [graph.emit("gather", table, positions, axis=0) for table in tables]
    batch, tokens, pairs = rows[0].shape
    rows = [graph.reshape(row, (batch, 1, tokens, pairs)) for row in rows]
    interleaved = bool(node.integer("rotary_interleaved", 0))
    return graph.emit("rotary", value, *rows, width=2 * pairs, interleaved=interleaved)


def _cached(cache: Value | None, now: Value, places: _Places, graph: GraphBuilder) -> Value:
    """The cache with the new tokens in their places, and 0 behind them.

    In place what lies behind them stays.
    """
    if cache is None:
        return now
    count = graph.size(size_of(now.dims[2]))
    cache = as_whole(_with_room(cache, 2, places.keys, graph), 2, graph)
    cache = with_axis(cache, 2, places.keys, graph)
    cached = graph.emit("cache_update", cache, now, places.past, None, count, axis=2, ends=True)
    # It is 0 behind the keys: said so, nobody copies the cache to have it so.
    return graph.padded.filled(cached, 2, "zero")


def group_query_scores(
    node: OnnxNode, query: Value, bias: Value | None, seen: Sequence[Value], graph: GraphBuilder
) -> Scores:
    """What the node's attributes and its sink say of scores; keys not `seen` are masked."""
    sink = node.optional(11)
    if sink is not None:
        sink = graph.reshape(sink, (sink.type.size, 1, 1))
    elif node.integer("smooth_softmax", 0) > 0:
        sink = graph.scalar(0.0, query.dtype)
    return Scores(
        node.floating("scale", 0.0) or 1.0 / math.sqrt(query.shape[-1]),
        () if bias is None else (bias,),
        tuple(seen),
        node.floating("softcap", 0.0),
        sink,
    )


def _fitted(bias: Value, places: _Places, graph: GraphBuilder) -> Value:
    """A bias of fewer keys than the cache has room for: what is behind is masked anyway."""
    last = bias.rank - 1
    return bias if bias.dims[last] == places.keys else _to_length(bias, last, places.keys, graph)


def _to_length(value: Value, axis: int, wanted: Axis, graph: GraphBuilder) -> Value:
    """The value with zeros behind the end of an axis."""
    value = _with_room(value, axis, wanted, graph)
    filled = as_whole(graph.padded.filled(value, axis, "zero"), axis, graph)
    return with_axis(filled, axis, wanted, graph)


def _with_room(value: Value, axis: int, wanted: Axis, graph: GraphBuilder) -> Value:
    """The value in a place with the extent of a longer axis.

    An input that nothing else reads lies in a longer place then.
    """
    size, extent = size_of(value.dims[axis]), wanted[0][1]
    missing = extent - value.shape[axis]
    if missing > 0:
        ends = value.rank + axis
        pads = tuple(missing if place == ends else 0 for place in range(2 * value.rank))
        padded = graph.emit("pad", as_whole(value, axis, graph), pads=pads)
        value = with_axis(padded, axis, ((size, extent),), graph)
    return value


def _visible(query: Value, places: _Places, window: int, graph: GraphBuilder) -> tuple[Value, ...]:
    """Where keys are not behind their queries, nor too far before them."""
    batch, tokens, length = query.shape[0], query.shape[2], places.keys[0][1]
    graph.check_array((tokens, length), 1)
    key = positions_within(places.keys, graph)
    steps = graph.reshape(positions_within(query.dims[2], graph), (1, 1, tokens, 1))
    row = graph.emit("add", graph.reshape(places.past, (batch, 1, 1, 1)), steps)
    found = [graph.emit("less_equal", graph.reshape(key, (1, 1, 1, length)), row)]
    if window > 0:
        edge = graph.emit("sub", row, graph.scalar(window, DType.I64))
        found.append(graph.emit("greater", graph.reshape(key, (1, 1, 1, length)), edge))
    return tuple(found)
