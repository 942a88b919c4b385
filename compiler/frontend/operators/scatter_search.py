"""Scatter operators whose indices are computed at run time: each element looks for its updates.

    hit[row, u] = indices[u] == row         last[row] = max(u where hit[row, u], else -1)
    y[row] = updates[last[row]] where last[row] >= 0, else data[row]

With a reduction y[row] = combine(data[row], fold(updates[u] where hit[row, u])). No update is
written: whoever writes to one place in what order needs no rule, the last one wins as ONNX's
reference does. What lies outside of the data is left out.
"""

from __future__ import annotations

import math

import numpy as np

from compiler.expr.combiners import neutral_element
from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.frontend.onnx_node import OnnxNode
from compiler.types.dtypes import DType

MOST_STEPS = 1 << 30
"""Comparisons (with a reduction: times the width of an update) that a scatter may take."""

_FOLDS = {"add": "reduce_sum", "mul": "reduce_prod", "max": "reduce_max", "min": "reduce_min"}


def scatter_rows(
    node: OnnxNode, data: Value, indices: Value, updates: Value, reduction: str, graph: GraphBuilder
) -> Value:
    """ScatterND: the last axis of `indices` [..., depth] names rows of the data's first axes."""
    depth = indices.shape[-1]
    rows, width = math.prod(data.shape[:depth]), math.prod(data.shape[depth:])
    count = math.prod(indices.shape[:-1])
    place: Value | None = None
    for axis in range(depth):
        step = graph.scalar(math.prod(data.shape[axis + 1 : depth]), DType.I32)
        index = _counted(graph, graph.pick(indices, indices.rank - 1, axis), data.shape[axis])
        term = graph.emit("mul", index, step)
        place = term if place is None else graph.emit("add", place, term)
    assert place is not None
    _check_steps(node, data, updates, rows * count * (1 if reduction == "none" else width))
    table, values = graph.reshape(data, (rows, width)), graph.reshape(updates, (count, width))
    if reduction == "none":
        last = _last_hits(graph, graph.reshape(place, (count,)), rows, 0)
        picked = graph.emit("gather", values, last, axis=0)
        missed = graph.reshape(_is_missed(graph, last), (rows, 1))
        result = graph.emit("where", missed, table, picked)
    else:
        places = graph.reshape(place, (count, 1))
        total = _folded(graph, places, values, rows, 0, reduction)
        result = graph.emit(reduction, table, total)
    return graph.reshape(result, data.shape)


def scatter_elements(
    node: OnnxNode,
    data: Value,
    indices: Value,
    updates: Value,
    axis: int,
    reduction: str,
    graph: GraphBuilder,
) -> Value:
    """ScatterElements: `indices` names, for each update, its position along an axis."""
    rows = data.shape[axis]
    _check_steps(node, data, updates, rows * math.prod(indices.shape))
    places = _counted(graph, indices, rows)
    if reduction != "none":
        total = _folded(graph, places, updates, rows, axis, reduction)
        neutral = _neutral(reduction, data.dtype)
        return graph.emit(reduction, data, _widened(graph, total, data.shape, neutral))
    last = _last_hits(graph, places, rows, axis)
    picked = graph.emit("gather_elements", updates, last, axis=axis)
    missed = _widened(graph, _is_missed(graph, last), data.shape, True)
    return graph.emit("where", missed, data, _widened(graph, picked, data.shape, 0))


def _check_steps(node: OnnxNode, data: Value, updates: Value, steps: int) -> None:
    if steps > MOST_STEPS:
        raise node.unsupported(
            f"scattering {list(updates.shape)} into {list(data.shape)} at positions that are "
            "computed at run time"
        )


def _counted(graph: GraphBuilder, indices: Value, extent: int) -> Value:
    """Indices as i32 positions: negative ones count from the end."""
    narrow = graph.cast(indices, DType.I32)
    from_end = graph.emit("add", narrow, graph.scalar(extent, DType.I32))
    negative = graph.emit("less", narrow, graph.scalar(0, DType.I32))
    return graph.emit("where", negative, from_end, narrow)


def _last_hits(graph: GraphBuilder, places: Value, rows: int, axis: int) -> Value:
    """For each row the number of the last update along the axis that goes there, else -1."""
    order = _along(graph, places.shape[axis], axis + 1, places.rank + 1)
    hit = _hits(graph, places, rows, axis)
    numbers = graph.emit("where", hit, order, graph.scalar(-1, DType.I32))
    return graph.emit("reduce_max", numbers, axes=(axis + 1,), keepdims=False)


def _is_missed(graph: GraphBuilder, last: Value) -> Value:
    return graph.emit("less", last, graph.scalar(0, DType.I32))


def _folded(
    graph: GraphBuilder, places: Value, updates: Value, rows: int, axis: int, reduction: str
) -> Value:
    """For each row all updates along the axis that go there, joined."""
    apart = graph.reshape(updates, (*updates.shape[:axis], 1, *updates.shape[axis:]))
    neutral = graph.scalar(_neutral(reduction, updates.dtype), updates.dtype)
    terms = graph.emit("where", _hits(graph, places, rows, axis), apart, neutral)
    return graph.emit(_FOLDS[reduction], terms, axes=(axis + 1,), keepdims=False)


def _hits(graph: GraphBuilder, places: Value, rows: int, axis: int) -> Value:
    """Whether an update goes to a row; the rows are a new axis before that of the updates."""
    at = graph.reshape(places, (*places.shape[:axis], 1, *places.shape[axis:]))
    return graph.emit("equal", _along(graph, rows, axis, at.rank), at)


def _along(graph: GraphBuilder, extent: int, axis: int, rank: int) -> Value:
    """0, 1, 2, … along one of so many axes."""
    shape = [extent if other == axis else 1 for other in range(rank)]
    return graph.constant(np.arange(extent, dtype=np.int32).reshape(shape))


def _widened(
    graph: GraphBuilder, value: Value, shape: tuple[int, ...], fill: float | bool
) -> Value:
    """The value in the corner of a larger shape."""
    if value.shape == shape:
        return value
    ends = (full - extent for full, extent in zip(shape, value.shape, strict=True))
    pads = (*(0,) * len(shape), *ends)
    return graph.emit("pad", value, graph.scalar(fill, value.dtype), pads=pads, mode="constant")


def _neutral(reduction: str, dtype: DType) -> int | float | bool:
    return neutral_element({"add": "sum", "mul": "prod"}.get(reduction, reduction), dtype).value
