"""GroupQueryAttention of onnxruntime's own operators: heads share keys and values, in a cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.contributed_attention import (
    Scores,
    attended,
    ends_of,
    joined_heads,
    positions_within,
    repeated_heads,
    split_heads,
)
from tunefarm.compiler.frontend.operators.fused import DOMAIN
from tunefarm.compiler.frontend.operators.moves import as_whole, with_axis
from tunefarm.compiler.frontend.operators.quantise import check_scale
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import Axis, is_unpadded, size_of
from tunefarm.compiler.types.sizes import Dimension, bounds_of, greater

# --- GroupQueryAttention with dynamic numbers of tokens and cache entries ------------------------
#
# A cache is as long as the longer one of what it was and the total length that the node receives.
# Row by row the new tokens lie behind those that `seqlens_k` says were there; what is behind the
# tokens of a row is 0, and no query sees it.


@frozen
class _SizedPlaces:
    """Where tokens are: `past` [batch] counts those before the new ones, `keys` is the axis of all
    that there are."""

    past: Value
    keys: Axis


@frozen
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


def _heads_of_queries(
    query: Value, forms: Sequence[CacheForm], caches: Sequence[Value], graph: GraphBuilder
) -> tuple[Value, Value]:
    """The keys and values that two caches hold, one head for each head of the queries."""
    keys, values = (
        repeated_heads(form.read(cache, query.dtype, graph), query.shape[1], graph)
        for form, cache in zip(forms, caches, strict=True)
    )
    return keys, values


def _sized_attention(
    node: OnnxNode,
    operands: tuple[Value, Value, Value],
    past: tuple[Value | None, Value | None],
    forms: Sequence[CacheForm],
    graph: GraphBuilder,
) -> Sequence[Value]:
    """As `group_query_attention`, of queries, keys and values [batch, heads, tokens, features]."""
    query, key, value = operands
    if not node.integer("causal", 1):
        raise graph.refusal("causal = 0 with tokens or caches of dynamic length", [query])
    places = _sized_places(node, query, past[0], graph)
    if node.integer("do_rotary", 0):
        query, key = (_rotated(node, item, places, graph) for item in (query, key))
    keys, values = (
        _sized_cached(before, form.stored(now, graph), places, graph)
        for before, form, now in zip(past, forms, (key, value), strict=True)
    )
    heads = _heads_of_queries(query, forms, (keys, values), graph)
    bias = node.optional(10)
    fitted = None if bias is None else _sized_fitted(bias, places, graph)
    window = node.integer("local_window_size", -1)
    seen = _sized_visible(query, places, window, graph)
    how = _query_scores(node, query, fitted, seen, graph)
    grows = not is_unpadded(places.keys)  # it ends where its keys do
    if past[0] is not None and not (grows and (window <= 0 or how.sink is not None)):
        count = graph.size(size_of(query.dims[2]))
        how = replace(how, ends=ends_of(places.past, count, window, graph))
    return [joined_heads(attended(query, *heads, how, graph), graph), keys, values]


def _windowed_attention(
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
    if not node.integer("causal", 1):
        raise node.unsupported("a cache of a sliding window with causal = 0")
    if not all(is_unpadded(item.dims[2]) for item in caches):
        raise graph.refusal("sliding_window_cache = 1 with a cache of dynamic length", caches)
    room, tokens = caches[0].shape[2], query.shape[2]
    total = Numbers(graph.cast(graph.reshape(node.input(5), (1,)), DType.I64), graph) + 1
    count = Numbers(graph.size(size_of(query.dims[2])), graph)
    given = Numbers(graph.cast(graph.reshape(node.input(6), ()), DType.I64), graph)
    before = given.equals(count).choose(total.like(0), total - count)
    if node.integer("do_rotary", 0):
        placed = _SizedPlaces(before.value, query.dims[2])
        query, key = (_rotated(node, item, placed, graph) for item in (query, key))
    held, kept = (_held(item, room, window) for item in (before, total))
    width = room + tokens
    joined = [
        _behind(cache, form.stored(now, graph), held.value, count.value, graph)
        for cache, form, now in zip(caches, forms, (key, value), strict=True)
    ]
    heads = _heads_of_queries(query, forms, joined, graph)
    places = _SizedPlaces(held.value, joined[0].dims[2])
    how = _query_scores(node, query, None, _sized_visible(query, places, window, graph), graph)
    how = replace(how, ends=ends_of(held.value, count.value, window, graph))
    rows = (total - before - kept + held + held.like(np.arange(room))).value
    rows = graph.emit("clip", rows, min=0, max=width - 1)
    after = [graph.emit("gather", item, rows, axis=2) for item in joined]
    return [joined_heads(attended(query, *heads, how, graph), graph), *after]


def _held(total: Numbers, room: int, window: int) -> Numbers:
    """How many of so many tokens a cache of a sliding window holds, [1].

    All while they fit; later they leave it in pieces of room - window + 1, so that the window
    stays.
    """
    piece = room - window + 1
    pieces = ((total - room).at_least(0) + (piece - 1)) / piece
    return total - pieces * piece


def _behind(cache: Value, now: Value, held: Value, count: Value, graph: GraphBuilder) -> Value:
    """New keys or values behind those of a cache that are held, in a longer buffer."""
    zeros = graph.emit("expand", graph.scalar(0, cache.dtype), shape=as_whole(now, 2, graph).shape)
    longer = graph.concat([cache, zeros], 2)
    return graph.emit("cache_update", longer, now, held, None, count, axis=2, ends=True)


def _sized_places(
    node: OnnxNode, query: Value, cache: Value | None, graph: GraphBuilder
) -> _SizedPlaces:
    tokens, last, total = size_of(query.dims[2]), node.input(5), _total(node)
    rows = graph.reshape(last, (query.shape[0],))
    if cache is None:
        none = graph.emit("mul", graph.cast(rows, DType.I64), graph.scalar(0, DType.I64))
        return _SizedPlaces(none, query.dims[2])
    before = graph.emit("sub", graph.cast(rows, DType.I64), graph.size(tokens - 1))
    length = size_of(cache.dims[2])
    text = graph.reshape(node.input(6), ()) if total is None else graph.size(total)
    first = graph.emit("equal", graph.cast(text, DType.I64), graph.size(tokens))
    past = graph.emit("where", first, graph.scalar(0, DType.I64), before)
    keys = length if total is None else greater(length, total)
    return _SizedPlaces(past, ((keys, bounds_of(keys)[1]),))


def _total(node: OnnxNode) -> Dimension | None:
    """The total length, None where it is computed."""
    given = node.input(6)
    if given.array is None and given.sizes is None:
        return None
    (total,) = node.sizes(6, "the total length")
    return total


def _rotated(
    node: OnnxNode, value: Value, places: _SizedPlaces | _Places, graph: GraphBuilder
) -> Value:
    """Queries or keys turned by their positions; those behind the tokens of a row may be any."""
    tables, positions = [node.input(position) for position in (7, 8)], node.optional(9)
    batch, tokens, pairs = value.shape[0], value.shape[2], tables[0].shape[-1]
    if positions is None:
        steps = graph.reshape(positions_within(value.dims[2], graph), (1, tokens))
        positions = graph.emit("add", graph.reshape(places.past, (batch, 1)), steps)
        if isinstance(places, _SizedPlaces):
            positions = graph.emit("clip", positions, min=0, max=tables[0].shape[0] - 1)
    rows = [
        graph.reshape(graph.emit("gather", table, positions, axis=0), (batch, 1, tokens, pairs))
        for table in tables
    ]
    interleaved = bool(node.integer("rotary_interleaved", 0))
    return graph.emit("rotary", value, *rows, width=2 * pairs, interleaved=interleaved)


def _sized_cached(
    cache: Value | None, now: Value, places: _SizedPlaces, graph: GraphBuilder
) -> Value:
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


def _query_scores(
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


def _sized_fitted(bias: Value, places: _SizedPlaces, graph: GraphBuilder) -> Value:
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


def _sized_visible(
    query: Value, places: _SizedPlaces, window: int, graph: GraphBuilder
) -> tuple[Value, ...]:
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


@frozen
class _Places:
    """Where the new tokens go: `past` [batch] is the number of those before them, i64.

    `known` is that number where it is known when the model is built, and the same for all.
    """

    past: Value
    known: int | None


@converter("GroupQueryAttention", 1, domain=DOMAIN)
def group_query_attention(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """Outputs: the result, and the caches with the new keys and values.

    A cache of fixed length is written at the places that `seqlens_k` says. It stays as long as it
    is unless the total length, where that is a constant, goes beyond it. One of 8 bits holds keys
    and values over a scale, or over one for each feature.
    """
    heads, groups = node.integer("num_heads"), node.integer("kv_num_heads")
    query, key, value = _operands(node, heads, groups, graph)
    past = node.optional(3), node.optional(4)
    caches = [item for item in past if item is not None]
    sizes = groups, query.shape[-1]
    for item in caches:  # the builder of onnxruntime-genai leaves the width of a head open
        width = size_of(item.dims[3])
        if not isinstance(width, int):
            graph.run_time.require_equal(width, query.shape[-1], f"node {graph.source!r}")
    _refuse(node)
    query, key = (_normed(node, at, item, graph) for at, item in ((14, query), (15, key)))
    forms = tuple(_cache_form(node, at, past[at], sizes, graph) for at in (0, 1))
    if node.integer("sliding_window_cache", 0):
        return _windowed_attention(node, (query, key, value), past, forms, graph)
    if any(item is not None and 0 in item.shape for item in past):
        past = None, None
    if not all(is_unpadded(item.dims[2]) for item in (query, *caches)):
        return _sized_attention(node, (query, key, value), past, forms, graph)
    places = _places(node, query, past[0], graph)
    if node.integer("do_rotary", 0):
        query, key = (_rotated(node, item, places, graph) for item in (query, key))
    keys, values = (
        _cached(node, before, form.stored(now, graph), places, graph)
        for before, form, now in zip(past, forms, (key, value), strict=True)
    )
    repeated = _heads_of_queries(query, forms, (keys, values), graph)
    how = _scores(node, query, keys.shape[2], places, graph)
    return [joined_heads(attended(query, *repeated, how, graph), graph), keys, values]


def _refuse(node: OnnxNode) -> None:
    if (kind := node.integer("qk_output", 0)) or node.wants(3):
        raise node.unsupported(f"the scores as an output (qk_output = {kind})")


def _normed(node: OnnxNode, at: int, value: Value, graph: GraphBuilder) -> Value:
    """Queries or keys over the root of the mean square of each head, times a weight [features].

    The builder of onnxruntime-genai writes it for a GPU, onnxruntime's CPU refuses it.
    """
    weight = node.optional(at)
    if weight is None:
        return value
    if weight.shape != value.shape[-1:]:
        raise node.bad_shape(f"{weight.type} is no weight of heads of {value.shape[-1]} features")
    epsilon = node.floating("qk_norm_epsilon", 1e-6)
    return graph.emit("rms_norm", value, weight, axis=value.rank - 1, epsilon=epsilon)


def _cache_form(
    node: OnnxNode, at: int, cache: Value | None, sizes: tuple[int, int], graph: GraphBuilder
) -> CacheForm:
    """That of keys (`at` 0) or values, `sizes` being groups of heads and features of each."""
    name = "kv"[at]
    kind = node.choice(f"{name}_quant_type", "NONE", ("NONE", "PER_TENSOR", "PER_CHANNEL"))
    scale, bits = node.optional(12 + at), node.integer("kv_cache_bit_width", 0)
    if kind == "NONE":
        if bits or (cache is not None and not cache.dtype.is_float):
            raise node.invalid(f"{name}_quant_type does not define how the cache is quantised")
        return CacheForm(None)
    if bits != 8 or (cache is not None and cache.dtype is not DType.I8):
        raise node.unsupported(
            f"a quantised cache of another type than int8 (kv_cache_bit_width={bits})"
        )
    if scale is None:
        raise node.invalid(f"the input {name}_scale is missing")
    check_scale(node, scale, divides=True)
    groups, width = sizes
    if scale.type.size != (1 if kind == "PER_TENSOR" else groups * width):
        raise node.bad_shape(f"{scale.type} are no scales {kind} of {groups} heads of {width}")
    shape = () if kind == "PER_TENSOR" else (1, groups, 1, width)
    return CacheForm(graph.reshape(scale, shape))


def _operands(
    node: OnnxNode, heads: int, groups: int, graph: GraphBuilder
) -> tuple[Value, Value, Value]:
    """Query, key and value as [batch, heads, tokens, features]; they may be packed side by side."""
    query, key, value = node.input(0), node.optional(1), node.optional(2)
    if query.rank != 3 or heads < 1 or groups < 1 or heads % groups:
        raise node.bad_shape(f"{query.type} are no queries of {heads} heads in {groups} groups")
    if key is None or value is None:
        width = query.shape[-1] // (heads + 2 * groups)
        counts = (heads, groups, groups)
        starts = (0, heads * width, (heads + groups) * width)
        parts = [
            graph.part(query, 2, start, count * width)
            for start, count in zip(starts, counts, strict=True)
        ]
    else:
        parts = [query, key, value]
    first, second, third = (
        split_heads(part, count, graph)
        for part, count in zip(parts, (heads, groups, groups), strict=True)
    )
    return first, second, third


def _places(node: OnnxNode, query: Value, cache: Value | None, graph: GraphBuilder) -> _Places:
    """Without tokens before them the new ones start at 0; else `seqlens_k` is the last one's."""
    batch, tokens = query.shape[0], query.shape[2]
    total, last = node.input(6), node.input(5)
    first = total.array is not None and int(total.array.reshape(-1)[0]) == tokens
    if cache is None or first:
        return _Places(graph.constant(np.zeros(batch, np.int64)), 0)
    if last.array is not None:
        numbers = last.array.reshape(-1).astype(np.int64) + 1 - tokens
        same = len(set(numbers.tolist())) == 1
        return _Places(graph.constant(numbers), int(numbers[0]) if same else None)
    ends = graph.cast(graph.reshape(last, (batch,)), DType.I64)
    before = graph.emit("sub", ends, graph.scalar(tokens - 1, DType.I64))
    if tokens > 1 and total.array is None:  # whether it is the first run is known then
        is_first = graph.emit("equal", graph.reshape(total, ()), graph.scalar(tokens, total.dtype))
        before = graph.emit("where", is_first, graph.scalar(0, DType.I64), before)
    return _Places(before, None)


def _cached(
    node: OnnxNode, cache: Value | None, now: Value, places: _Places, graph: GraphBuilder
) -> Value:
    """The cache with the new tokens in their places, and 0 behind them, as onnxruntime has it.

    In place what lies behind them stays, as in onnxruntime's shared buffer.
    """
    if cache is None:
        return now
    batch, groups, tokens, width = now.shape
    total, room = node.input(6).array, cache.shape[2]
    length = room if total is None else max(room, int(total.reshape(-1)[0]))
    if places.known == room and length == room + tokens:
        return graph.concat([cache, now], 2)
    if length > room:
        shape = (batch, groups, length - room, width)
        cache = graph.concat(
            [cache, graph.emit("expand", graph.scalar(0, cache.dtype), shape=shape)], 2
        )
    return graph.emit("cache_update", cache, now, places.past, axis=2, ends=True)


def _scores(
    node: OnnxNode, query: Value, keys: int, places: _Places, graph: GraphBuilder
) -> Scores:
    batch, tokens = query.shape[0], query.shape[2]
    window = node.integer("local_window_size", -1)
    bias = node.optional(10)
    kept = (
        []
        if _sees_all(node, tokens, keys, places, window)
        else [*_visible(batch, tokens, keys, places, window, graph)]
    )
    fitted = None if bias is None else _fitted(bias, keys, graph)
    how = _query_scores(node, query, fitted, kept, graph)
    if places.known is not None or not kept:
        return how
    count = graph.scalar(tokens, DType.I64)
    return replace(how, ends=ends_of(places.past, count, window, graph))


def _fitted(bias: Value, keys: int, graph: GraphBuilder) -> Value:
    """A bias of fewer keys than the cache has room for: what is behind is masked anyway."""
    missing = keys - bias.shape[-1]
    if missing <= 0:
        return bias
    shape = (*bias.shape[:-1], missing)
    zeros = graph.emit("expand", graph.scalar(0, bias.dtype), shape=shape)
    return graph.concat([bias, zeros], bias.rank - 1)


def _sees_all(node: OnnxNode, tokens: int, keys: int, places: _Places, window: int) -> bool:
    """Whether no score is masked: one query at the end of all keys, or nothing is causal."""
    if not node.integer("causal", 1) and places.known is not None:
        return places.known + tokens == keys and window <= 0
    return tokens == 1 and places.known == keys - 1 and (window <= 0 or window >= keys)


def _visible(
    batch: int, tokens: int, keys: int, places: _Places, window: int, graph: GraphBuilder
) -> list[Value]:
    """Where keys are not behind their queries, nor too far before them."""
    key = np.arange(keys, dtype=np.int64)
    step = np.arange(tokens, dtype=np.int64)[:, None]
    if places.known is not None:
        position = places.known + step
        allowed = key <= position
        if window > 0:
            allowed &= key > position - window
        graph.check_array((tokens, keys), 1)
        return [graph.constant(allowed)]
    offset = graph.constant((key - step).reshape(1, 1, tokens, keys))  # of a query that is first
    past = graph.reshape(places.past, (batch, 1, 1, 1))
    found = [graph.emit("less_equal", offset, past)]
    if window > 0:
        edge = graph.emit("sub", past, graph.scalar(window, DType.I64))
        found.append(graph.emit("greater", offset, edge))
    return found
