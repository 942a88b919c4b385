"""Results whose size depends on the data: padded to the most that it can be, with a count.

The count becomes a symbol, which what reads the result fills by, and which the shapes of outputs
are read from after the run.
"""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import Axis, is_unpadded, whole
from tunefarm.compiler.types.sizes import Dimension, Size, Symbol


def counted_size(
    node: OnnxNode, graph: GraphBuilder, count: Value, most: int, low: int = 0
) -> Dimension:
    """A size that the graph computes: the i64 scalar `count`, from `low` to `most`."""
    named = next((name for name in node.outputs if name), node.operator)
    size = Symbol.of(graph.unused_symbol(f"{named}_count"), low, most)
    if isinstance(size, Size):
        symbol = size.symbol
        assert symbol is not None
        graph.computed_symbol(symbol, graph.reshape(count, ()))
    return size


def all_there(value: Value, graph: GraphBuilder) -> Value:
    """The value with its padding taken for elements."""
    return graph.with_dims(graph.readable(value), None)


def positions(count: int, graph: GraphBuilder) -> Value:
    """0, 1, 2, … as i64."""
    graph.check_array((count,), 8)
    return graph.constant(np.arange(count, dtype=np.int64))


def flags_of(axis: Axis, extent: int, graph: GraphBuilder) -> Value | None:
    """Which elements of an axis are there, a vector of bools; None where all are."""
    if is_unpadded(axis):
        return None
    ones = graph.constant(np.ones(extent, np.bool_))
    return all_there(graph.padded.filled(graph.with_dims(ones, (axis,)), 0, "zero"), graph)


def compacted(flags: Value, graph: GraphBuilder) -> tuple[Value, Value]:
    """Where a vector of bools is true: the positions in order, and their number, an i64 scalar.

    Positions behind that number are 0.
    """
    (extent,) = flags.shape
    ones = graph.cast(flags, DType.I64)
    places = graph.emit("cumsum", ones, axis=0, exclusive=True)
    count = graph.emit("reduce_sum", ones, axes=(0,), keepdims=False)
    outside = graph.scalar(extent, DType.I64)
    return placed(
        positions(extent, graph), graph.emit("where", flags, places, outside), graph
    ), count


def placed(updates: Value, places: Value, graph: GraphBuilder) -> Value:
    """A vector with element i of the updates at `places[i]`, if that is in it; else 0."""
    (extent,) = updates.shape
    zeros = graph.constant(np.zeros((extent, 1), updates.dtype.numpy))
    result = graph.emit(
        "scatter_rows",
        zeros,
        graph.reshape(places, (extent, 1)),
        graph.reshape(updates, (extent, 1)),
        named=(extent,),
    )
    return graph.reshape(result, (extent,))


def with_axis(value: Value, axis: int, size: Dimension, graph: GraphBuilder) -> Value:
    """The value, of whose axis only `size` elements are there."""
    dims = list(value.dims)
    dims[axis] = (
        ((size, value.shape[axis]),) if isinstance(size, Size) else whole(value.shape[axis])
    )
    return graph.with_dims(value, tuple(dims))
