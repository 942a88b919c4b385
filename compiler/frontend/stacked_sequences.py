"""Sequences that a loop has grown: their tensors are rows of one."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.frontend.onnx_node import OnnxNode
from compiler.types.dtypes import DType
from compiler.types.sizes import Dimension, Size


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
    if position.type.size != 1:
        raise node.bad_shape("the position must have one element")
    index = graph.cast(graph.reshape(graph.readable(position), ()), DType.I64)
    count = graph.size(rows.true_shape[0])
    below = graph.emit("less", index, graph.scalar(0, DType.I64))
    index = graph.emit("where", below, graph.emit("add", index, count), index)
    negative = graph.emit("less", index, graph.scalar(0, DType.I64))
    behind = graph.emit("not", graph.emit("less", index, count))
    outside = graph.emit("or", negative, behind)
    graph.require(outside, graph.origin(position), f"{node.label} asks for what is not there")
    picked = graph.append("gather", (rows, index), {"axis": 0})
    return graph.with_dims(picked, rows.dims[1:] if rows.padded else None)


def behind_others(graph: GraphBuilder, first: Sequence[Value], rows: Value) -> Value:
    """The rows with these tensors, of the same shape, before them."""
    if not first:
        return rows
    own = [graph.reshape(graph.readable(value), (1, *value.shape)) for value in first]
    joined = graph.append("concat", (*own, rows), {"axis": 0})
    count: Dimension = rows.true_shape[0] + len(first)
    axis = ((count, joined.shape[0]),) if isinstance(count, Size) else ((count, count),)
    return graph.with_dims(joined, (axis, *rows.dims[1:]))
