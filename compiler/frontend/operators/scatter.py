"""Scatter operators as gathers: of constant indices, every update's place is known.

Those whose indices are computed are in scatter_search.py.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from compiler.frontend.converter import converter
from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.frontend.onnx_node import OnnxNode
from compiler.frontend.operators import scatter_search

_COMBINE = {"none": "", "add": "add", "mul": "mul", "max": "max", "min": "min"}
_MAX_ROUNDS = 64  # updates of one element, one after the other
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
    if math.prod(updates.shape) == 0:
        return data
    if indices.array is None:
        reduction = node.choice("reduction", "none", tuple(_COMBINE))
        return scatter_search.scatter_elements(node, data, indices, updates, axis, reduction, graph)
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
    if indices.array is not None:
        tuples = indices.array.astype(np.int64).reshape(count, depth)
        each = [_wrapped(node, tuples[:, a], extent) for a, extent in enumerate(named)]
        targets = np.ravel_multi_index(tuple(each), named)
        return _scatter_rows(node, data, updates, targets, rows, graph)
    reduction = node.choice("reduction", "none", tuple(_COMBINE))
    return scatter_search.scatter_rows(node, data, indices, updates, reduction, graph)


def _wrapped(node: OnnxNode, indices: Positions, extent: int) -> Positions:
    if indices.size and (indices.min() < -extent or indices.max() >= extent):
        raise node.bad_shape(f"an index is outside an extent of {extent}")
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

    Each round writes at most one update per row: `where(mask, combine(data, picked), data)`.
    """
    reduction = node.choice("reduction", "none", tuple(_COMBINE))
    if rows > _MAX_ELEMENTS:
        raise node.unsupported(f"scattering into {rows} rows")
    graph.check_array((rows,), 9)  # a position and a mask
    rounds = [_last_writes(targets)] if reduction == "none" else _rounds(targets)
    if len(rounds) > _MAX_ROUNDS:
        raise node.unsupported(f"{len(rounds)} updates of one element")
    width = data.type.size // rows
    row = (width,) if width > 1 else ()
    flat, result = graph.reshape(updates, (len(targets), *row)), graph.reshape(data, (rows, *row))
    for chosen in rounds:
        mask = np.zeros((rows, *(1 for _ in row)), np.bool_)
        source = np.zeros(rows, np.int64)
        mask[targets[chosen]] = True
        source[targets[chosen]] = chosen
        picked = graph.emit("gather", flat, graph.constant(source), axis=0)
        if reduction != "none":
            picked = graph.emit(_COMBINE[reduction], result, picked)
        result = graph.emit("where", graph.constant(mask), picked, result)
    return graph.reshape(result, data.shape)


def _last_writes(targets: Positions) -> Positions:
    """Positions of the last update of each element."""
    _, first_from_end = np.unique(targets[::-1], return_index=True)
    return (len(targets) - 1 - first_from_end).astype(np.int64)


def _rounds(targets: Positions) -> list[Positions]:
    """The updates in rounds, the n-th update of an element in round n."""
    order = np.argsort(targets, kind="stable")
    sorted_targets = targets[order]
    starts = np.r_[True, sorted_targets[1:] != sorted_targets[:-1]]
    group_start = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
    number = np.arange(len(order)) - group_start
    return [order[number == n].astype(np.int64) for n in range(int(number.max()) + 1)]
