"""Scatters: as gathers where each update's place is known and its own, else as they are."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.checked_places import (
    require_inside,
    require_tuples_inside,
)
from tunefarm.compiler.frontend.operators.moves import as_whole, compacted, from_start, with_axis
from tunefarm.compiler.operators.scatter import REDUCTIONS
from tunefarm.compiler.types.dims import is_unpadded, size_of, whole_dims

_MAX_ELEMENTS = 2**26

Positions = npt.NDArray[np.int64]


@converter("Scatter", 9)
@converter("ScatterElements", 11, 13, 16, 18)
def scatter_elements(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, indices, updates = node.input(0), node.input(1), node.input(2)
    axis = node.axis(node.integer("axis", 0), data.rank)
    if indices.shape != updates.shape or indices.rank != data.rank:
        raise node.bad_shape(
            f"indices {list(indices.shape)} and updates {updates.type} do not fit {data.type}"
        )
    reached = zip(indices.shape, data.shape, strict=True)
    if any(own > whole for at, (own, whole) in enumerate(reached) if at != axis):
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
    named, expected = data.shape[:depth], indices.shape[:-1] + data.shape[depth:]
    if updates.shape != expected:
        raise node.bad_shape(f"updates {updates.type} should be {list(expected)}")
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
    dims = data.dims
    if not is_unpadded(dims[axis]):
        data = compacted(data, graph)
        dims = data.dims
        require_inside(node, graph, indices, data, axis)
        indices = from_start(indices, [size_of(dims[axis])], graph)
        data = as_whole(data, axis, graph)
    count, outside = indices.shape[axis], -data.shape[axis] - 1
    reaching = (*data.shape[:axis], count, *data.shape[axis + 1 :])
    indices = _beside(data, axis, _widened(graph, indices, reaching, outside), indices, graph)
    updates = _beside(data, axis, _widened(graph, updates, reaching, 0), updates, graph)
    before, behind = math.prod(data.shape[:axis]), math.prod(data.shape[axis + 1 :])
    result = graph.emit(
        "scatter_elements",
        graph.reshape(data, (before, data.shape[axis], behind)),
        graph.reshape(indices, (before, count, behind)),
        graph.reshape(updates, (before, count, behind)),
        reduction=node.choice("reduction", "none", tuple(REDUCTIONS)),
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
        data = graph.with_dims(data, (*whole_dims(named), *dims[depth:]))
    count = indices.type.size // depth
    result = graph.emit(
        "scatter_rows",
        graph.reshape(data, (rows, width)),
        graph.reshape(indices, (count, depth)),
        graph.reshape(updates, (count, width)),
        reduction=node.choice("reduction", "none", tuple(REDUCTIONS)),
        named=named,
    )
    return graph.with_dims(graph.reshape(result, data.shape), dims)


def _widened(graph: GraphBuilder, value: Value, shape: tuple[int, ...], fill: int) -> Value:
    """The value in the corner of a larger shape."""
    if value.shape == shape:
        return value
    ends = (full - extent for full, extent in zip(shape, value.shape, strict=True))
    pads = (*(0,) * len(shape), *ends)
    return graph.emit("pad", value, graph.scalar(fill, value.dtype), pads=pads, mode="constant")


def _beside(data: Value, axis: int, value: Value, given: Value, graph: GraphBuilder) -> Value:
    """A widened value with the sizes of the data in axes where not all of that are there."""
    for other, dims in enumerate(data.dims):
        is_wider = is_unpadded(given.dims[other]) and value.shape[other] > given.shape[other]
        if other != axis and is_wider and not is_unpadded(dims):
            value = with_axis(value, other, dims, graph)
    return value


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
