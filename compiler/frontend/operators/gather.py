"""Gathers and scatters, and the checks of their indices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.converter import converter, dynamic_operand
from tunefarm.compiler.frontend.data_sizes import counted_size
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import vector
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.data_dependent import compress_computed
from tunefarm.compiler.frontend.operators.moves import as_whole, compacted, from_start, with_axis
from tunefarm.compiler.frontend.run_time_sizes import object_array
from tunefarm.compiler.frontend.settle import expect_constant, require_rows, sized
from tunefarm.compiler.frontend.size_arithmetic import one_hot_of
from tunefarm.compiler.operators.gather import REDUCTIONS
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import (
    Axis,
    PaddedShape,
    extent_of,
    is_unpadded,
    size_of,
    true_shape,
    unpadded_shape,
)
from tunefarm.compiler.types.sizes import bounds_of, smaller

# --- Indices in models with dynamic sizes: each must be of what is there -------------------------
#
# Kernels clamp indices at an axis' bound, or leave out what lies behind it: no memory but their
# own is read or written. But what lies between the size and its bound is anything, and a row that
# was not asked for is wrong too. Models whose sizes are all known have kernels alone, which clamp.


def check_constant(node: OnnxNode, indices: Value, extents: Sequence[int]) -> None:
    """Constant indices must lie inside the extents: all in the one, or each entry in its own.

    Raises `ShapeError` for others; the kernels clamp those that are no constants.
    """
    array = indices.array
    if array is None or array.size == 0:
        return
    entries = array.reshape(-1, len(extents)) if len(extents) > 1 else array.reshape(-1, 1)
    for number, extent in enumerate(extents):
        low, high = int(entries[:, number].min()), int(entries[:, number].max())
        if low < -extent or high >= extent:
            text = str(low) if low == high else f"{low}..{high}"
            raise ShapeError(
                f"{node.label}: an index {text} is out of range for a dimension of {extent}"
            )


def are_there(indices: Value, dims: Axis) -> bool:
    """Whether constant positions on an axis are those of elements that are there, at any size."""
    if indices.array is None or indices.array.size == 0:
        return False
    if is_unpadded(dims) or len(dims) > 1:
        return is_unpadded(dims)
    least = bounds_of(size_of(dims))[0]
    return int(indices.array.min()) >= 0 and int(indices.array.max()) < least


def require_inside(
    node: OnnxNode, graph: GraphBuilder, indices: Value, data: Value, axis: int
) -> None:
    """Have runs refuse indices outside of an axis, if sizes are dynamic."""
    check_constant(node, indices, [data.shape[axis]])
    if not graph.is_padded or are_there(indices, data.dims[axis]) or not indices.type.size:
        return
    size = data.true_shape[axis]
    reason = f"{node.label} has an index outside of axis {axis}, of which {size} elements are there"
    _require(graph, indices, graph.size(size), reason)


def require_tuples_inside(
    node: OnnxNode, graph: GraphBuilder, indices: Value, data: Value, axes: Sequence[int]
) -> None:
    """Have runs refuse index tuples, an entry for each of these axes, outside of these."""
    check_constant(node, indices, [data.shape[axis] for axis in axes])
    there = all(are_there(indices, data.dims[axis]) for axis in axes)
    if not graph.is_padded or there or not indices.type.size:
        return
    sizes = [true_shape(data.dims)[axis] for axis in axes]
    counts = " x ".join(map(str, sizes))
    which = f"axis {axes[0]}" if len(axes) == 1 else f"axes {axes[0]} to {axes[-1]}"
    reason = f"{node.label} has an index outside of {which}, of which {counts} elements are there"
    _require(graph, indices, graph.size_vector(sizes), reason)


def _require(graph: GraphBuilder, indices: Value, sizes: Value, reason: str) -> None:
    index = graph.cast(indices, DType.I64)
    inside = graph.emit("less", index, sizes)
    before = graph.emit("less", graph.emit("add", index, sizes), graph.scalar(0, DType.I64))
    outside = graph.emit("or", graph.emit("not", inside), before)
    graph.require(*any_of(outside, indices, graph), reason)


def any_of(wrong: Value, operand: Value, graph: GraphBuilder) -> tuple[Value, str]:
    """What `GraphBuilder.require` takes where any of these bools, of an operand, is true.

    What is not there does not count, and of no elements at all none is.
    """
    flags, axes = graph.cast(wrong, DType.I64), tuple(range(wrong.rank))
    some = graph.emit("reduce_max", flags, axes=axes, keepdims=False) if axes else flags
    return graph.emit("greater", some, graph.scalar(0, DType.I64)), graph.origin(operand)


# --- Operators that pick elements by index tensors -----------------------------------------------


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
    """Places that all other axes share pick whole rows."""
    data, indices = node.input(0), node.input(1)
    axis = node.axis(node.integer("axis", 0), data.rank)
    check_constant(node, indices, [data.shape[axis]])
    once = _once(data, axis, indices, graph)
    if once is not None and once.type.size == once.shape[axis]:
        places = graph.reshape(once, (once.type.size,))
        require_inside(node, graph, places, data, axis)
        return graph.emit("gather", data, places, axis=axis)
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


@dynamic_operand("OneHot", at=(1,), padded=True)
def computed_one_hot(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """The depth that the declared shape has, or as much as the limits allow."""
    axis = node.axis(node.integer("axis", -1), node.input(0).rank + 1)
    wanted, depth = node.declared_sizes(), node.input(1)
    if wanted is None:
        given = vector(depth, graph)
        most = require_rows(node, graph, 1, given, "the depth")
        size = counted_size(node, graph, given.value, most, low=1)
        sizes = object_array([size]).reshape(depth.shape)
        return node.with_constants({1: graph.integers_of(sizes)})
    extent = wanted[axis]
    if isinstance(extent, int):
        return node.with_constants({1: expect_constant(node, graph, 1, (extent,), "the depth")})
    return node.with_constants({1: sized(node, graph, 1, (extent,), "the depth")})


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


# --- Scatters: as gathers where each update's place is known and its own, else as they are -------


_MAX_ELEMENTS = 2**26

Positions = npt.NDArray[np.int64]


@converter("Scatter", 9)
@converter("ScatterElements", 11, 13, 16, 18)
def scatter_elements(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, indices, updates = node.input(0), node.input(1), node.input(2)
    axis = node.axis(node.integer("axis", 0), data.rank)
    mismatch = f"indices {list(indices.shape)} and updates {updates.type} do not fit {data.type}"
    if indices.rank != data.rank:
        raise node.bad_shape(mismatch)
    updates = _of_sizes(node, updates, indices.dims, mismatch, graph)
    for other, (own, whole) in enumerate(zip(indices.dims, data.dims, strict=True)):
        if other != axis and bounds_of(size_of(own) - size_of(whole))[0] > 0:
            raise node.bad_shape(f"indices {list(indices.shape)} reach beyond {data.type}")
    if math.prod(updates.shape) == 0:
        return data
    if indices.array is None or data.padded is not None:
        return _scatter_elements(node, data, indices, updates, axis, graph)
    graph.check_array((indices.rank, *indices.shape), 8)
    positions: list[Positions] = list(np.indices(indices.shape, np.int64))
    positions[axis] = _wrapped(node, indices.array.astype(np.int64), data.shape[axis])
    targets = np.ravel_multi_index(tuple(positions), data.shape).reshape(-1)
    return _scatter_rows(node, data, updates, targets, data.type.size, graph)


@converter("ScatterND", 11, 13, 16, 18)
def scatter_nd(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Rows of the data, of its axes behind those that an index tuple names."""
    data, indices, updates = node.input(0), node.input(1), node.input(2)
    depth = indices.shape[-1] if indices.rank else 0
    if not 0 < depth <= data.rank:
        raise node.bad_shape(f"indices {list(indices.shape)} do not fit {data.type}")
    named, expected = data.shape[:depth], (*indices.dims[:-1], *data.dims[depth:])
    mismatch = f"updates {updates.type} should be {[extent_of(each) for each in expected]}"
    updates = _of_sizes(node, updates, expected, mismatch, graph)
    if math.prod(updates.shape) == 0:
        return data
    rows, count = math.prod(named), math.prod(indices.shape[:-1])
    if indices.array is not None and all(map(is_unpadded, data.dims[:depth])):
        tuples = indices.array.astype(np.int64).reshape(count, depth)
        each = [_wrapped(node, tuples[:, a], extent) for a, extent in enumerate(named)]
        targets = np.ravel_multi_index(tuple(each), named)
        return _scatter_rows(node, data, updates, targets, rows, graph)
    return _scatter_tuples(node, data, indices, updates, named, graph)


def _scatter_elements(
    node: OnnxNode, data: Value, indices: Value, updates: Value, axis: int, graph: GraphBuilder
) -> Value:
    """ScatterElements: `indices` names, for each update, its position along an axis."""
    others = [other for other in range(data.rank) if other != axis]
    differ = any(data.dims[other] != indices.dims[other] for other in others)
    if differ or not is_unpadded(data.dims[axis]):
        data = compacted(data, graph)
    dims = data.dims
    once = _once(data, axis, indices, graph)
    indices = indices if once is None else once
    if not is_unpadded(dims[axis]):
        require_inside(node, graph, indices, data, axis)
        indices = from_start(indices, [size_of(dims[axis])], graph)
        data = as_whole(data, axis, graph)
    count, nowhere = indices.shape[axis], -data.shape[axis] - 1
    if once is None:
        indices = _in_corner(data, axis, indices, nowhere, graph)
    updates = _in_corner(data, axis, updates, 0, graph)
    before, behind = math.prod(data.shape[:axis]), math.prod(data.shape[axis + 1 :])
    sides = math.prod(indices.shape[:axis]), math.prod(indices.shape[axis + 1 :])
    sizes, number = _sizes_of(indices.dims[axis], graph)
    result = graph.emit(
        "scatter_elements",
        graph.reshape(data, (before, data.shape[axis], behind)),
        graph.reshape(indices, (sides[0], count, sides[1])),
        graph.reshape(updates, (before, count, behind)),
        sizes,
        reduction=node.choice("reduction", "none", tuple(REDUCTIONS)),
        number=number,
    )
    return with_axis(graph.reshape(result, data.shape), axis, dims[axis], graph)


def _scatter_tuples(
    node: OnnxNode,
    data: Value,
    indices: Value,
    updates: Value,
    named: tuple[int, ...],
    graph: GraphBuilder,
) -> Value:
    """ScatterND: the last axis of `indices` names a row of the data's first axes."""
    rows, width, depth = math.prod(named), data.type.size // math.prod(named), len(named)
    dims = data.dims
    if not all(map(is_unpadded, dims[:depth])):
        data = compacted(data, graph)
        dims = data.dims
        require_tuples_inside(node, graph, indices, data, range(depth))
        indices = from_start(indices, data.true_shape[:depth], graph)
        data = graph.with_dims(data, (*unpadded_shape(named), *dims[depth:]))
    count = indices.type.size // depth
    tuples = graph.reshape(indices, (count, depth))
    sizes, number = _sizes_of(tuples.dims[0], graph)
    result = graph.emit(
        "scatter_rows",
        graph.reshape(data, (rows, width)),
        tuples,
        graph.reshape(updates, (count, width)),
        sizes,
        reduction=node.choice("reduction", "none", tuple(REDUCTIONS)),
        number=number,
        named=named,
    )
    return graph.with_dims(graph.reshape(result, data.shape), dims)


def _once(data: Value, axis: int, indices: Value, graph: GraphBuilder) -> Value | None:
    """Indices that are the same for all elements behind an axis, or in front of it too, once.

    None where they may differ, or where updates reach only a part of the data's other axes.
    """
    source = graph.padded.repeated_by(indices)
    if source is None:
        return None
    others = [other for other in range(data.rank) if other != axis]
    if any(indices.dims[other] != data.dims[other] for other in others):
        return None
    shape = (*(1,) * (data.rank - source.rank), *source.shape)
    before, behind = indices.shape[:axis], math.prod(shape[axis + 1 :])
    is_same = math.prod(shape[:axis]) == 1 or shape[:axis] == before
    if behind > 1 or shape[axis] != indices.shape[axis] or not is_same:
        return None
    return graph.reshape(source, shape)


def _sizes_of(axis: Axis, graph: GraphBuilder) -> tuple[Value | None, int]:
    """What has the number of updates, and where: none where all are there, or lie apart."""
    if is_unpadded(axis) or len(axis) > 1:
        return None, -1
    return graph.vector_with(size_of(axis))


def _of_sizes(
    node: OnnxNode, value: Value, dims: PaddedShape, mismatch: str, graph: GraphBuilder
) -> Value:
    """The value with these axes, of whose sizes a run checks that its own are.

    Raises `ShapeError(mismatch)` where they never are.
    """
    if value.dims == dims:
        return value
    own, wanted = value.true_shape, true_shape(dims)
    if len(own) != len(wanted):
        raise node.bad_shape(mismatch)
    for size, other in zip(own, wanted, strict=True):
        low, high = bounds_of(size - other)
        if low > 0 or high < 0:
            raise node.bad_shape(mismatch)
        graph.run_time.require_equal(other, size, f"node {graph.source!r}")
    value = _resized(compacted(value, graph), tuple(map(extent_of, dims)), 0, graph)
    return graph.with_dims(value, tuple(((size_of(axis), extent_of(axis)),) for axis in dims))


def _in_corner(data: Value, axis: int, value: Value, fill: int, graph: GraphBuilder) -> Value:
    """The value in the corner of what is as large as the data along all other axes.

    A run checks that it is no larger. What is not there of positions, which have a `fill`, is
    outside too.
    """
    others = [other for other in range(data.rank) if other != axis]
    if all(value.dims[other] == data.dims[other] for other in others):
        return value
    value = compacted(value, graph)
    for other in others:
        size, limit = value.true_shape[other], data.true_shape[other]
        if size == limit:
            continue
        if bounds_of(size - limit)[1] > 0:
            graph.run_time.require_equal(size, smaller(size, limit), f"node {graph.source!r}")
        value = graph.padded.filled(value, other, "lowest") if fill else value
        value = as_whole(value, other, graph)
    dims = (*data.dims[:axis], value.dims[axis], *data.dims[axis + 1 :])
    return graph.with_dims(_resized(value, tuple(map(extent_of, dims)), fill, graph), dims)


def _resized(value: Value, shape: Sequence[int], fill: int, graph: GraphBuilder) -> Value:
    """The value's first elements, of axes padded with `fill` as far as they are shorter."""
    for axis, extent in enumerate(shape):
        if extent < value.shape[axis]:
            value = graph.padded.cut(value, axis, extent)
    ends = tuple(full - extent for full, extent in zip(shape, value.shape, strict=True))
    if not any(ends):
        return value
    value = graph.with_dims(graph.readable(value), None)
    pads, content = (*(0,) * value.rank, *ends), graph.scalar(fill, value.dtype)
    return graph.emit("pad", value, content, pads=pads, mode="constant")


def _wrapped(node: OnnxNode, indices: Positions, extent: int) -> Positions:
    if indices.size and (indices.min() < -extent or indices.max() >= extent):
        raise node.bad_shape(f"an index is out of range for a dimension of {extent}")
    return np.where(indices < 0, indices + extent, indices)


def _scatter_rows(
    node: OnnxNode,
    data: Value,
    updates: Value,
    targets: Positions,
    rows: int,
    graph: GraphBuilder,
) -> Value:
    """Write update i to row `targets[i]` of the data, which has so many rows.

    One update per row is `where(mask, combine(data, picked), data)`; several that are joined need
    no more than one place each.
    """
    reduction = node.choice("reduction", "none", tuple(REDUCTIONS))
    if rows > _MAX_ELEMENTS:
        raise node.unsupported(f"scattering into {rows} rows")
    graph.check_array((rows,), 9)  # a position and a mask
    last = _last_writes(targets)
    if reduction != "none" and len(last) < len(targets):
        return _scatter_tuples(
            node, data, graph.constant(targets.reshape(-1, 1)), updates, (rows,), graph
        )
    width = data.type.size // rows
    row = (width,) if width > 1 else ()
    flat, table = graph.reshape(updates, (len(targets), *row)), graph.reshape(data, (rows, *row))
    mask = np.zeros((rows, *(1 for _ in row)), np.bool_)
    source = np.zeros(rows, np.int64)
    mask[targets[last]] = True
    source[targets[last]] = last
    picked = graph.emit("gather", flat, graph.constant(source), axis=0)
    if reduction != "none":
        picked = graph.emit(reduction, table, picked)
    return graph.reshape(graph.emit("where", graph.constant(mask), picked, table), data.shape)


def _last_writes(targets: Positions) -> Positions:
    """Positions of the last update of each element."""
    _, first_from_end = np.unique(targets[::-1], return_index=True)
    return (len(targets) - 1 - first_from_end).astype(np.int64)


# --- Converter of TensorScatter ------------------------------------------------------------------


@converter("TensorScatter", 24)
def tensor_scatter(node: OnnxNode, graph: GraphBuilder) -> Value:
    cache, update, starts = node.input(0), node.input(1), node.optional(2)
    axis = node.axis(node.integer("axis", -2), cache.rank)
    circular = node.choice("mode", "linear", ("linear", "circular")) == "circular"
    if update.rank != cache.rank or (
        is_unpadded(cache.dims[axis]) and is_unpadded(update.dims[axis])
    ):
        return graph.emit("cache_update", cache, update, starts, axis=axis, circular=circular)
    cache, update = compacted(cache, graph), compacted(update, graph)
    _require_room(node, graph, cache, update, axis, circular)
    size, count = (size_of(value.dims[axis]) for value in (cache, update))
    if update.shape[axis] > cache.shape[axis]:
        update = graph.padded.cut(update, axis, cache.shape[axis])
    operands = cache, update, starts, graph.size(size), graph.size(count)
    return graph.emit("cache_update", *operands, axis=axis, circular=circular)


def _require_room(
    node: OnnxNode, graph: GraphBuilder, cache: Value, update: Value, axis: int, circular: bool
) -> None:
    """Have runs refuse what does not fit the part of the cache that is there."""
    starts = node.optional(2)
    size, count = (size_of(value.dims[axis]) for value in (cache, update))
    last = graph.size(size - count)
    none = graph.scalar(0, DType.I64)
    place = none if circular or starts is None else graph.cast(starts, DType.I64)
    wrong = graph.emit("or", graph.emit("less", last, place), graph.emit("less", place, none))
    if wrong.rank:
        flags = graph.cast(wrong, DType.I64)
        some = graph.emit("reduce_max", flags, axes=(0,), keepdims=False)
        wrong = graph.emit("greater", some, none)
    what = "places it has leave" if starts is not None and not circular else "cache has"
    reason = f"{node.label} writes {count} elements along axis {axis}, and the {what} no room for"
    operand = update if starts is None or circular else starts
    graph.require(wrong, graph.origin(operand), f"{reason} them among {size} elements")
