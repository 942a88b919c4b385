"""Converters of operators whose results are as large as their data says."""

from __future__ import annotations

from math import prod

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.data_sizes import (
    all_there,
    compacted,
    counted_size,
    flags_of,
    iota,
    placed,
    with_axis,
)
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.best_of_rows import best_of_rows
from tunefarm.compiler.frontend.operators.moves import in_one_piece
from tunefarm.compiler.types.dims import whole
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Dimension, Size, bounds_of, smaller


@converter("NonZero", 9, 13)
def nonzero(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Positions in row-major order, one row per axis."""
    data = graph.padded.dense(node.input(0))
    zero = graph.scalar(0, data.dtype)
    is_zero = graph.emit("equal", data, zero)
    flags = graph.emit("not", is_zero)
    for axis in range(data.rank):
        flags = graph.padded.filled(flags, axis, "zero")
    extent = data.type.size
    found, count = compacted(graph.reshape(all_there(flags, graph), (extent,)), graph)
    rows: list[Value] = []
    inner = extent
    for length in data.shape:
        inner //= length
        row = graph.emit("div", found, graph.scalar(inner, DType.I64)) if inner > 1 else found
        if rows:
            row = graph.emit("mod", row, graph.scalar(length, DType.I64))
        rows.append(graph.reshape(row, (1, extent)))
    if not rows:
        raise node.unsupported("a scalar")
    size = counted_size(node, graph, count, extent)
    return with_axis(graph.concat(rows, 0), 1, size, graph)


def compress_computed(node: OnnxNode, graph: GraphBuilder, data: Value, axis: int) -> Value:
    """Compress by a condition that is computed: as many elements as it has true ones."""
    condition = node.input(1)
    if condition.rank != 1:
        raise node.bad_shape("the condition must be a vector")
    if bounds_of(condition.true_shape[0])[0] > data.shape[axis]:
        raise node.bad_shape(f"the condition is longer than axis {axis} of {data.type}")
    data, condition = in_one_piece(data, axis, graph), in_one_piece(condition, 0, graph)
    flags = all_there(graph.padded.filled(condition, 0, "zero"), graph)
    _require_short(node, graph, data, axis, condition, flags)
    found, count = compacted(flags, graph)
    whole_axis = graph.with_dims(
        data, (*data.dims[:axis], whole(data.shape[axis]), *data.dims[axis + 1 :])
    )
    picked = graph.emit("gather", whole_axis, found, axis=axis)
    size = counted_size(node, graph, count, flags.shape[0])
    return with_axis(picked, axis, size, graph)


def _require_short(
    node: OnnxNode, graph: GraphBuilder, data: Value, axis: int, condition: Value, flags: Value
) -> None:
    """Have runs refuse a condition that is true where the data has ended."""
    there, length = data.true_shape[axis], condition.true_shape[0]
    if bounds_of(there - length)[0] >= 0:
        return
    behind = graph.emit("greater_equal", iota(flags.shape[0], graph), graph.size(there))
    wrong = graph.emit("and", flags, behind)
    reason = f"{node.label} takes an element behind axis {axis}, which has {there} elements"
    graph.require(wrong, graph.origin(node.input(1)), reason)


@converter("TopK", 1, 10, 11, 24)
def top_k(node: OnnxNode, graph: GraphBuilder) -> list[Value]:
    """Each element's rank in its row says where it goes; equal ones stay in order."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", -1), data.rank)
    data = in_one_piece(data, axis, graph)
    extent = data.shape[axis]
    size = _number_of_results(node, graph, data, axis)
    most = bounds_of(size)[1]
    if most == 0:
        none = [
            graph.constant(np.empty((*data.shape[:axis], 0, *data.shape[axis + 1 :]), kind))
            for kind in (data.dtype.numpy, np.int64)
        ]
        dims = (*data.dims[:axis], whole(0), *data.dims[axis + 1 :])
        return [graph.with_dims(value, dims) for value in none]
    order = [*(other for other in range(data.rank) if other != axis), axis]
    back = tuple(order.index(other) for other in range(data.rank))
    turned = graph.transpose(data, tuple(order))
    outer, dims = turned.shape[:-1], turned.dims
    rows = graph.reshape(turned, (prod(outer), extent))
    places = best_of_rows(graph, rows, most, largest=bool(node.integer("largest", 1)))
    values = graph.emit("gather_elements", rows, places, axis=1)
    axis_dims = ((size, most),) if isinstance(size, Size) else whole(most)
    return [
        graph.transpose(
            graph.with_dims(graph.reshape(value, (*outer, most)), (*dims[:-1], axis_dims)), back
        )
        for value in (values, places)
    ]


def _number_of_results(node: OnnxNode, graph: GraphBuilder, data: Value, axis: int) -> Dimension:
    """k: an attribute at first, then an input, which may be computed."""
    extent = data.shape[axis]
    given = node.integer("k") if node.version == 1 else None
    if given is None and node.input(1).array is not None:
        given = node.constant_integer(1, "the number of results")
    if given is not None:
        if not 0 <= given <= extent:
            raise node.bad_shape(f"{given} results of an axis of {extent}")
        return _at_most(given, node, graph, data, axis)
    sizes = node.input(1).sizes
    if sizes is not None and sizes.size == 1:
        return _at_most(sizes.item(), node, graph, data, axis)
    wanted = graph.reshape(graph.cast(graph.readable(node.input(1)), DType.I64), ())
    there = graph.size(data.true_shape[axis])
    negative = graph.emit("less", wanted, graph.scalar(0, DType.I64))
    wrong = graph.emit("or", negative, graph.emit("less", there, wanted))
    graph.require(wrong, graph.origin(node.input(1)), _too_many("k", node, data, axis))
    least = graph.emit("max", wanted, graph.scalar(0, DType.I64))
    return counted_size(node, graph, graph.emit("min", least, there), extent)


def _at_most(
    count: Dimension, node: OnnxNode, graph: GraphBuilder, data: Value, axis: int
) -> Dimension:
    """So many results, which runs refuse that have not as many elements."""
    there = data.true_shape[axis]
    if bounds_of(there - count)[0] < 0:
        wrong = graph.emit("less", graph.size(there), graph.size(count))
        said = data if node.version == 1 else node.input(1)
        graph.require(wrong, graph.origin(said), _too_many(count, node, data, axis))
    return smaller(count, there)


def _too_many(count: Dimension | str, node: OnnxNode, data: Value, axis: int) -> str:
    there = data.true_shape[axis]
    return f"{node.label} asks for {count} results of axis {axis}, which has {there} elements"


def _ranked(operator: str, rows: Value, flags: Value | None, graph: GraphBuilder) -> Value:
    """An operator over pairs of `operators.pairs`; `flags` are those of one row."""
    if flags is not None:
        flags = graph.emit("expand", flags, shape=rows.shape)
    return graph.emit(operator, rows, flags)


@converter("Unique", 11, 28)
def unique(node: OnnxNode, graph: GraphBuilder) -> list[Value]:
    """Different elements, or slices along an axis, in order of size or of first appearance."""
    data = node.input(0)
    if data.dtype is DType.STRING:
        raise node.unsupported("an order of strings")
    axis = node.axis(node.integer("axis"), data.rank) if node.has("axis") else 0
    if node.has("axis"):
        data = in_one_piece(data, axis, graph)
        for other in range(data.rank):
            if other != axis:  # what slices have behind their ends must not differ
                data = graph.padded.filled(data, other, "zero")
        keys = _slice_keys(data, axis, graph)
    else:
        data = in_one_piece(graph.reshape(data, (data.type.size,)), 0, graph)
        keys = all_there(data, graph)
    (extent,) = keys.shape
    row = graph.reshape(keys, (1, extent))
    there = flags_of(data.dims[axis], extent, graph)
    zero, outside = graph.scalar(0, DType.I64), graph.scalar(extent, DType.I64)

    def over_pairs(operator: str, flags: Value | None) -> Value:
        return graph.reshape(_ranked(operator, row, flags, graph), (extent,))

    first = graph.emit("equal", over_pairs("count_equal_before", there), zero)
    if there is not None:
        first = graph.emit("and", first, there)
    number = over_pairs("count_less", first)  # of the class, in order of size
    ones = graph.cast(first, DType.I64)
    count = graph.emit("reduce_sum", ones, axes=(0,), keepdims=False)
    if not node.integer("sorted", 1):
        appearance = graph.emit("cumsum", ones, axis=0, exclusive=True)
        renumbered = placed(appearance, graph.emit("where", first, number, outside), graph)
        number = graph.emit("gather", renumbered, number, axis=0)
    indices = placed(iota(extent, graph), graph.emit("where", first, number, outside), graph)
    every = graph.constant(np.ones(extent, np.int64))
    added = every if there is None else graph.cast(there, DType.I64)
    counts = graph.emit(
        "scatter_rows",
        graph.constant(np.zeros((extent, 1), np.int64)),
        graph.reshape(number, (extent, 1)),
        graph.reshape(added, (extent, 1)),
        named=(extent,),
        reduction="add",
    )
    size = counted_size(node, graph, count, extent, low=0 if there is not None else 1)
    kept = graph.with_dims(
        data, (*data.dims[:axis], whole(data.shape[axis]), *data.dims[axis + 1 :])
    )
    values = graph.emit("gather", kept, indices, axis=axis)
    return [
        with_axis(values, axis, size, graph),
        with_axis(indices, 0, size, graph),
        graph.with_dims(number, (data.dims[axis],)),
        with_axis(graph.reshape(counts, (extent,)), 0, size, graph),
    ]


def _slice_keys(data: Value, axis: int, graph: GraphBuilder) -> Value:
    """An integer per slice along an axis: equal for equal slices, and ordered as they are.

    Slices are compared from their first element on: of each pair the first elements that differ.
    """
    extent = data.shape[axis]
    order = (axis, *(other for other in range(data.rank) if other != axis))
    rows = all_there(graph.transpose(data, order), graph)
    width = rows.type.size // extent
    rows = graph.reshape(rows, (extent, width))
    left = graph.reshape(rows, (extent, 1, width))
    right = graph.reshape(rows, (1, extent, width))
    equal = graph.emit("equal", left, right)
    place = graph.emit("where", equal, graph.scalar(width, DType.I64), iota(width, graph))
    differs = graph.emit("reduce_min", place, axes=(2,), keepdims=False)
    own = graph.emit("gather_elements", rows, differs, axis=1)  # behind the last: the last
    below = graph.emit("less", graph.transpose(own, (1, 0)), own)
    return graph.emit("reduce_sum", graph.cast(below, DType.I64), axes=(1,), keepdims=False)
