"""TfIdfVectorizer: how often n-grams of a pool occur in rows of numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import as_whole, in_one_piece, with_axis
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import ONE, size_of, whole
from tunefarm.compiler.types.sizes import greater
from tunefarm.compiler.types.tensor_type import Array


@frozen
class _Pool:
    """N-grams of one length: their items [grams, length], numbers, and which outputs count them."""

    items: npt.NDArray[np.int64]
    numbers: Array
    outputs: Array

    @property
    def length(self) -> int:
        return int(self.items.shape[1])


@converter("TfIdfVectorizer", 9)
def tfidf_vectorizer(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Each n-gram is compared at every place, with up to `max_skip_count` items left out between
    two of its own: counts, whether there are any (IDF), or counts by weights (TFIDF)."""
    data = node.input(0)
    is_text = data.dtype is DType.STRING
    if is_text != node.has("pool_strings"):
        raise node.invalid("the pool must have elements of the input's type")
    if is_text:  # numbers of words are compared
        data = replace(data, type=replace(data.type, dtype=DType.I64))
    mode = node.choice("mode", "", ("TF", "IDF", "TFIDF"))
    if data.rank > 2:
        raise node.bad_shape(f"{data.type} is not one row or several")
    rows = data.shape[0] if data.rank == 2 else 1
    outputs = node.integers("ngram_indexes")
    width = max(outputs, default=-1) + 1
    if min(outputs, default=-1) < 0:
        raise node.invalid("ngram_indexes must be a list of positions")
    shape = (rows, width) if data.rank == 2 else (width,)
    graph.check_array((rows, width), 4)
    pools = _pools(node, outputs, graph)
    flat = graph.reshape(data, (rows, data.type.size // max(rows, 1)))
    counts = [count for pool in pools if (count := _counts(node, flat, pool, graph)) is not None]
    if not counts:
        none = graph.constant(np.zeros(shape, np.float32))
        return graph.padded.begins(none, (*data.dims[:-1], whole(width)))
    found = counts[0] if len(counts) == 1 else graph.concat(counts, 1)
    used = [p for p in pools if p.length <= flat.shape[1]]
    places = np.concatenate([pool.outputs for pool in used])
    weights = _weights(node, outputs)
    if mode == "IDF":
        is_there = graph.emit("greater", found, graph.scalar(0.0, DType.F32))
        found = graph.cast(is_there, DType.F32)
    if weights is not None and mode != "TF":
        numbers = np.concatenate([pool.numbers for pool in used])
        found = graph.emit("mul", found, graph.constant(weights[numbers]))
    found = _placed(found, places, width, graph)
    if mode == "IDF" and len(set(places.tolist())) < len(places):
        if weights is not None:
            raise node.unsupported("mode=IDF with weights and several n-grams for one output")
        found = graph.emit("min", found, graph.scalar(1.0, DType.F32))
    return graph.reshape(found, shape)


def _weights(node: OnnxNode, outputs: tuple[int, ...]) -> Array | None:
    """The weight of each n-gram, if they have any."""
    weights = node.floats("weights", ())
    if weights and len(weights) != len(outputs):
        raise node.invalid(f"{len(weights)} weights for {len(outputs)} n-grams")
    return np.array(weights, np.float32) if weights else None


def _pools(node: OnnxNode, outputs: tuple[int, ...], graph: GraphBuilder) -> list[_Pool]:
    """The n-grams of each length that is asked for."""
    texts, starts = node.strings("pool_strings", ()), node.integers("ngram_counts")
    items = tuple(map(graph.words.number, texts)) or node.integers("pool_int64s")
    shortest, longest = node.integer("min_gram_length"), node.integer("max_gram_length")
    pools: list[_Pool] = []
    first = 0
    for length, (start, stop) in enumerate(
        zip(starts, (*starts[1:], len(items)), strict=True), start=1
    ):
        if not 0 <= start <= stop <= len(items) or (stop - start) % length:
            raise node.invalid(f"items {start} to {stop} are no n-grams of {length}")
        count = (stop - start) // length
        if first + count > len(outputs):
            raise node.invalid(f"there are more n-grams than the {len(outputs)} ngram_indexes")
        if count and shortest <= length <= longest:
            own = np.array(items[start:stop], np.int64).reshape(count, length)
            numbers = np.arange(first, first + count)
            pools.append(_Pool(own, numbers, np.array(outputs)[numbers]))
        first += count
    return pools


def _counts(node: OnnxNode, data: Value, pool: _Pool, graph: GraphBuilder) -> Value | None:
    """How often each n-gram of a pool is in each row; None where it does not fit."""
    rows, extent = data.shape
    size, data = size_of(data.dims[1]), as_whole(in_one_piece(data, 1, graph), 1, graph)
    skips = 1 if pool.length == 1 else node.integer("max_skip_count") + 1
    totals: list[Value] = []
    limits = np.iinfo(data.dtype.numpy)
    never = ((pool.items < limits.min) | (pool.items > limits.max)).any(axis=1)
    for distance in range(1, skips + 1):
        places = extent - distance * (pool.length - 1)
        if places < 1:
            break
        equal = [
            graph.emit(
                "equal",
                graph.reshape(graph.part(data, 1, item * distance, places), (rows, places, 1)),
                graph.constant(pool.items[:, item], data.dtype),
            )
            for item in range(pool.length)
        ]
        if never.any():
            equal.append(graph.constant(np.logical_not(never)))
        hits = graph.cast(graph.fold("and", equal), DType.F32)
        there = greater(size - distance * (pool.length - 1), 0)
        hits = with_axis(hits, 1, ((there, places),), graph)
        totals.append(graph.emit("reduce_sum", hits, axes=(1,), keepdims=False))
    return graph.fold("add", totals) if totals else None


def _placed(counts: Value, places: Array, width: int, graph: GraphBuilder) -> Value:
    """Counts of n-grams as outputs [rows, width]; several n-grams may share a place."""
    if np.array_equal(places, np.arange(width)):
        return counts
    if len(set(places.tolist())) == len(places):
        source = np.full(width, counts.shape[1], np.int64)
        source[places] = np.arange(len(places))
        zero = graph.constant(np.zeros((counts.shape[0], 1)), counts.dtype)
        zero = graph.padded.begins(zero, (counts.dims[0], ONE))
        return graph.emit("gather", graph.concat([counts, zero], 1), graph.constant(source), axis=1)
    spread = np.zeros((len(places), width), np.float32)
    spread[np.arange(len(places)), places] = 1
    return graph.emit("matmul", counts, graph.constant(spread))
