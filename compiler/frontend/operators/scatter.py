"""Scatter operators with constant indices: every update's place is known, so they are gathers."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from compiler.frontend.converter import converter
from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.frontend.onnx_node import OnnxNode

_COMBINE = {"none": "", "add": "add", "mul": "mul", "max": "max", "min": "min"}
_MAX_ROUNDS = 64  # updates of one element, one after the other
_MAX_ELEMENTS = 2**26

Positions = npt.NDArray[np.int64]


@converter("Scatter", 9)
@converter("ScatterElements", 11, 13, 16, 18)
def scatter_elements(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, updates = node.input(0), node.input(2)
    axis = node.axis(node.integer("axis", 0), data.rank)
    indices = node.constant(1, "the index tensor").astype(np.int64)
    if indices.shape != updates.shape or indices.ndim != data.rank:
        raise node.bad_shape(
            f"indices {list(indices.shape)} and updates {updates.type} do not fit {data.type}"
        )
    graph.check_array((indices.ndim, *indices.shape), 8)
    grids = np.indices(indices.shape, np.int64)
    positions: list[Positions] = [grids[other] for other in range(indices.ndim)]
    positions[axis] = _wrapped(node, indices, data.shape[axis])
    return _scatter(node, data, updates, tuple(positions), graph)


@converter("ScatterND", 11, 13, 16, 18)
def scatter_nd(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, updates = node.input(0), node.input(2)
    indices = node.constant(1, "the index tensor").astype(np.int64)
    depth = indices.shape[-1] if indices.ndim else 0
    if not 0 < depth <= data.rank:
        raise node.bad_shape(f"indices {list(indices.shape)} do not fit {data.type}")
    outer, inner = indices.shape[:-1], data.shape[depth:]
    if updates.shape != outer + inner:
        raise node.bad_shape(f"updates {updates.type} should be {list(outer + inner)}")
    graph.check_array((updates.rank, *updates.shape), 8)
    grid = np.indices(updates.shape) if updates.rank else np.zeros((0,), np.int64)
    spread = (1,) * len(inner)
    positions = [
        np.broadcast_to(
            _wrapped(node, indices[..., axis], data.shape[axis]).reshape(outer + spread),
            updates.shape,
        )
        for axis in range(depth)
    ]
    positions += [grid[len(outer) + axis] for axis in range(len(inner))]
    return _scatter(node, data, updates, tuple(positions), graph)


def _wrapped(node: OnnxNode, indices: Positions, extent: int) -> Positions:
    if indices.size and (indices.min() < -extent or indices.max() >= extent):
        raise node.bad_shape(f"an index is outside an extent of {extent}")
    return np.where(indices < 0, indices + extent, indices)


def _scatter(
    node: OnnxNode,
    data: Value,
    updates: Value,
    positions: tuple[Positions, ...],
    graph: GraphBuilder,
) -> Value:
    """Write the updates at `positions` (one array per data axis).

    Each round writes at most one update per element: `where(mask, combine(data, picked), data)`.
    """
    reduction = node.choice("reduction", "none", tuple(_COMBINE))
    if math.prod(updates.shape) == 0:
        return data
    if data.type.size > _MAX_ELEMENTS:
        raise node.unsupported(f"scattering into {data.type.size} elements")
    graph.check_array(data.shape, 9)  # a position and a mask
    targets = np.ravel_multi_index(positions, data.shape).reshape(-1)
    rounds = [_last_writes(targets)] if reduction == "none" else _rounds(targets)
    if len(rounds) > _MAX_ROUNDS:
        raise node.unsupported(f"{len(rounds)} updates of one element")
    flat = graph.reshape(updates, (updates.type.size,))
    result = data
    for chosen in rounds:
        mask = np.zeros(data.type.size, np.bool_)
        source = np.zeros(data.type.size, np.int64)
        mask[targets[chosen]] = True
        source[targets[chosen]] = chosen
        picked = graph.emit("gather", flat, graph.constant(source.reshape(data.shape)), axis=0)
        if reduction != "none":
            picked = graph.emit(_COMBINE[reduction], result, picked)
        result = graph.emit("where", graph.constant(mask.reshape(data.shape)), picked, result)
    return result


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
