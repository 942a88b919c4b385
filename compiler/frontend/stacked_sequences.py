"""Sequences that a loop has grown: their tensors are rows of one."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.frontend.chosen_values import widened
from tunefarm.compiler.frontend.data_sizes import counted_size
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.structured_values import StackedSequence
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import Axis
from tunefarm.compiler.types.sizes import Dimension, Size, bounds_of


def joined_rows(node: OnnxNode, graph: GraphBuilder, rows: Value, stacks: bool) -> Value:
    """All rows along the node's axis, which is a new one if it `stacks` them."""
    rank = rows.rank - 1
    axis = node.axis(node.integer("axis"), rank + stacks)
    order = (*range(1, axis + 1), 0, *range(axis + 1, rows.rank))
    turned = graph.transpose(rows, order)
    if stacks:
        return turned
    shape = turned.shape
    return graph.reshape(turned, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def row_of(node: OnnxNode, graph: GraphBuilder, rows: Value, position: Value) -> Value:
    """The row at a position, counted from the last one where it is below 0."""
    index = _place_of(node, graph, position, rows.true_shape[0])
    picked = graph.append("gather", (rows, index), {"axis": 0})
    return graph.with_dims(picked, rows.dims[1:] if rows.padded else None)


def _place_of(node: OnnxNode, graph: GraphBuilder, position: Value, size: Dimension) -> Value:
    """A position among so many, from the first one on; runs refuse one that is not there."""
    if position.type.size != 1:
        raise node.bad_shape("the position must have one element")
    index = graph.cast(graph.reshape(graph.readable(position), ()), DType.I64)
    count = graph.size(size)
    below = graph.emit("less", index, graph.scalar(0, DType.I64))
    index = graph.emit("where", below, graph.emit("add", index, count), index)
    negative = graph.emit("less", index, graph.scalar(0, DType.I64))
    behind = graph.emit("not", graph.emit("less", index, count))
    outside = graph.emit("or", negative, behind)
    graph.require(outside, graph.origin(position), f"{node.label} asks for what is not there")
    return index


def one_of(node: OnnxNode, graph: GraphBuilder, items: Sequence[Value], position: Value) -> Value:
    """The tensor at a position, of several whose sizes differ at run time."""
    index = _place_of(node, graph, position, len(items))
    dense = [graph.padded.dense(item) for item in items]
    shape = tuple(max(extents) for extents in zip(*(item.shape for item in dense), strict=True))
    rows = [
        graph.append("reshape", (widened(graph, item, shape),), {"shape": (1, *shape)})
        for item in dense
    ]
    picked = graph.append("gather", (graph.append("concat", rows, {"axis": 0}), index), {"axis": 0})
    dims: list[Axis] = []
    for sizes, extent in zip(
        zip(*(item.true_shape for item in dense), strict=True), shape, strict=True
    ):
        size = sizes[0]
        if any(other != size for other in sizes):
            count = graph.append("gather", (graph.size_vector(sizes), index), {"axis": 0})
            lows, highs = zip(*map(bounds_of, sizes), strict=True)
            size = counted_size(node, graph, count, max(highs), min(lows))
        dims.append(((size, extent),))
    return graph.with_dims(picked, tuple(dims))


def rows_along(data: Value, axis: int, graph: GraphBuilder, *, keeps: bool) -> StackedSequence:
    """What lies at each place of an axis, which is 1 long then, if it `keeps` that at all."""
    data = graph.padded.dense(data)
    rows = graph.transpose(data, (axis, *(other for other in range(data.rank) if other != axis)))
    if keeps:
        sizes = rows.true_shape
        wide = graph.padded.view(rows, (*sizes[: axis + 1], 1, *sizes[axis + 1 :]))
        assert wide is not None  # nothing moves
        rows = wide
    return StackedSequence(rows)


def behind_others(graph: GraphBuilder, first: Sequence[Value], rows: Value) -> Value:
    """The rows with these tensors, of the same shape, before them."""
    if not first:
        return rows
    own = [graph.reshape(graph.readable(value), (1, *value.shape)) for value in first]
    joined = graph.append("concat", (*own, rows), {"axis": 0})
    count: Dimension = rows.true_shape[0] + len(first)
    axis = ((count, joined.shape[0]),) if isinstance(count, Size) else ((count, count),)
    return graph.with_dims(joined, (axis, *rows.dims[1:]))
