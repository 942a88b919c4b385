"""Operators that pick elements by index tensors."""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.checked_places import (
    any_of,
    are_there,
    check_constant,
    require_inside,
    require_tuples_inside,
)
from tunefarm.compiler.frontend.operators.data_dependent import compress_computed
from tunefarm.compiler.frontend.operators.moves import as_whole, compacted, from_start, with_axis
from tunefarm.compiler.frontend.size_arithmetic import one_hot_of
from tunefarm.compiler.types.dims import is_unpadded
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import bounds_of


@converter("Gather", 1, 11, 13)
def gather(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, indices = node.input(0), node.input(1)
    axis = node.axis(node.integer("axis", 0), data.rank)
    check_constant(node, indices, [data.shape[axis]])
    even = (
        _evenly_spaced(indices, data.shape[axis]) if are_there(indices, data.dims[axis]) else None
    )
    if even is None:
        require_inside(node, graph, indices, data, axis)
        return graph.emit("gather", data, indices, axis=axis)
    start, step = even
    shape = (*data.shape[:axis], indices.type.size, *data.shape[axis + 1 :])
    starts, steps = [0] * data.rank, [1] * data.rank
    starts[axis], steps[axis] = start, step
    part = graph.emit("slice", data, starts=tuple(starts), steps=tuple(steps), shape=shape)
    return graph.reshape(part, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))


def _evenly_spaced(indices: Value, extent: int) -> tuple[int, int] | None:
    """The first position and the step of constant indices that a slice picks as well."""
    if indices.array is None or indices.array.size == 0:
        return None
    places = indices.array.astype(np.int64).reshape(-1)
    places = np.where(places < 0, places + extent, places)
    step = int(places[1] - places[0]) if len(places) > 1 else 1
    is_even = step != 0 and np.array_equal(places, places[0] + step * np.arange(len(places)))
    return (int(places[0]), step) if is_even else None


@converter("GatherElements", 11, 13)
def gather_elements(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, indices = node.input(0), node.input(1)
    axis = node.axis(node.integer("axis", 0), data.rank)
    check_constant(node, indices, [data.shape[axis]])
    require_inside(node, graph, indices, data, axis)
    return graph.emit("gather_elements", data, indices, axis=axis)


@converter("GatherND", 11, 12, 13)
def gather_nd(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Negative entries of tuples count from the true end of their axis."""
    data, indices = node.input(0), node.input(1)
    batch, depth = node.integer("batch_dims", 0), indices.shape[-1] if indices.rank else 0
    axes = range(batch, batch + depth)
    fits = batch >= 0 and 0 < depth <= data.rank - batch  # else the type rule refuses it
    if fits:
        check_constant(node, indices, data.shape[batch : batch + depth])
    if fits and not all(is_unpadded(data.dims[axis]) for axis in axes):
        data = compacted(data, graph)
        require_tuples_inside(node, graph, indices, data, axes)
        indices = from_start(indices, [data.true_shape[axis] for axis in axes], graph)
        for axis in axes:
            data = as_whole(data, axis, graph)
    return graph.emit("gather_nd", data, indices, batch_dims=batch)


@converter("OneHot", 9, 11, 28)
def one_hot(node: OnnxNode, graph: GraphBuilder) -> Value:
    indices, values = node.input(0), node.input(2)
    axis = node.axis(node.integer("axis", -1), indices.rank + 1)
    if node.input(1).sizes is not None:
        return _one_hot_of_size(node, indices, values, axis, graph)
    depth = node.constant(1, "the depth")
    if depth.size != 1:
        raise node.bad_shape("the depth must be a scalar")
    count = int(depth.reshape(-1)[0])
    if count < 1:
        raise node.bad_shape(f"the depth is {count}")
    if indices.array is not None and values.array is not None and indices.type.size * count <= 4096:
        return graph.constant(one_hot_of(indices.array, count, values.array, axis))
    return graph.emit("one_hot", indices, values, depth=count, axis=axis)


def _one_hot_of_size(
    node: OnnxNode, indices: Value, values: Value, axis: int, graph: GraphBuilder
) -> Value:
    """With a dynamic depth, from which negative indices count."""
    size, *others = node.sizes(1, "the depth")
    least, most = bounds_of(size)
    if others or least < 1:
        raise node.bad_shape(f"the depth is {size}, which may be less than 1")
    depth = graph.size(size, indices.dtype)
    moved = graph.emit("add", indices, depth)
    is_negative = graph.emit("less", indices, graph.scalar(0, indices.dtype))
    places = graph.emit("where", is_negative, moved, indices)
    is_outside = graph.emit("less", moved, graph.scalar(0, indices.dtype))
    places = graph.emit("where", is_outside, graph.scalar(most, indices.dtype), places)
    found = graph.emit("one_hot", places, values, depth=most, axis=axis)
    return with_axis(found, axis, ((size, most),), graph)


@converter("Compress", 9, 11, 28)
def compress(node: OnnxNode, graph: GraphBuilder) -> Value:
    """A constant condition is a gather; without an axis the data is flat."""
    data, axis = node.input(0), 0
    if node.has("axis"):
        axis = node.axis(node.integer("axis"), data.rank)
    else:
        data = graph.reshape(data, (data.type.size,))
    if node.input(1).array is None:
        return compress_computed(node, graph, data, axis)
    condition = node.constant(1, "the condition")
    if condition.ndim != 1:
        raise node.bad_shape("the condition must be a vector")
    chosen = np.flatnonzero(condition).astype(np.int64)
    if len(condition) > data.shape[axis]:
        raise node.bad_shape(f"the condition is longer than axis {axis} of {data.type}")
    return graph.emit("gather", data, graph.constant(chosen), axis=axis)


@converter("ReverseSequence", 10, 28)
def reverse_sequence(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Positions below the sequence's length are mirrored: a gather of (time, batch) pairs.

    What is not there of sequences is taken along: what is there is mirrored in itself.
    """
    given, lengths = compacted(node.input(0), graph), node.input(1)
    data = graph.with_dims(graph.readable(given), None)
    time_axis, batch_axis = node.integer("time_axis", 0), node.integer("batch_axis", 1)
    if data.rank < 2 or {time_axis, batch_axis} != {0, 1}:
        raise node.unsupported(f"time_axis={time_axis}, batch_axis={batch_axis}")
    times, batches = data.shape[time_axis], data.shape[batch_axis]
    if lengths.shape != (batches,):
        raise node.bad_shape(f"there must be {batches} lengths, not {lengths.type}")
    sizes = given.true_shape[batch_axis], lengths.true_shape[0]
    graph.run_time.require_equal(*sizes, f"node {graph.source!r}")
    if not is_unpadded(given.dims[time_axis]):
        there = given.true_shape[time_axis]
        wrong = graph.emit("less", graph.size(there), graph.cast(lengths, DType.I64))
        reason = f"{node.label} has a sequence longer than axis {time_axis}, of {there} elements"
        graph.require(*any_of(wrong, lengths, graph), reason)
    lengths = graph.with_dims(graph.readable(lengths), None)
    time_first = time_axis == 0
    time_shape = (times, 1) if time_first else (1, times)
    batch_shape = (1, batches) if time_first else (batches, 1)
    graph.check_array((times, batches), 8)
    time = graph.constant(np.arange(times, dtype=np.int64).reshape(time_shape))
    length = graph.reshape(graph.cast(lengths, DType.I64), batch_shape)
    last = graph.emit("sub", length, graph.scalar(1, DType.I64))
    mirrored = graph.emit("sub", last, time)
    position = graph.emit("where", graph.emit("less", time, length), mirrored, time)
    grid = data.shape[:2]
    batch = np.broadcast_to(np.arange(batches).reshape(batch_shape), grid).astype(np.int64)
    position = graph.reshape(position, (*grid, 1))
    sequence = graph.constant(batch.reshape(*grid, 1))
    pair = (position, sequence) if time_first else (sequence, position)
    places = graph.emit("concat", *pair, axis=2)
    return graph.with_dims(graph.emit("gather_nd", data, places, batch_dims=0), given.dims)
