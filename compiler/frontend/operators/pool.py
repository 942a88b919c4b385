"""Pools over windows and over whole feature maps."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import overload

from tunefarm.compiler.frontend.converter import converter, dynamic_operand
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.reduce import renumbered
from tunefarm.compiler.frontend.operators.windows import (
    Windows,
    average_of_there,
    filled_behind,
    is_same_at_strides,
    max_windows,
    overhanging_ends,
    pool_windows,
    pooled_windows,
    rounds_up,
    same_average,
    window_attributes,
    with_ceil_count,
)
from tunefarm.compiler.frontend.settle import declared, expect_constant
from tunefarm.compiler.types.padded_shape import is_unpadded, size_of
from tunefarm.compiler.types.sizes import Dimension


@converter("MaxPool", 1, 8, 10, 11, 12, 22)
def max_pool(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    data, found = max_windows(node, node.input(0), graph)
    data = filled_behind(data, "lowest", rounds_up(node), graph)
    windows = {**found.steps, "kernel": found.kernel, "pads": found.pads, "shape": found.shape}
    largest = graph.emit("max_pool", data, **windows)
    result = with_ceil_count(largest, data, found, node, graph)
    if not node.wants(1):
        return [result]
    columns_first = bool(node.integer("storage_order", 0))
    places = graph.emit("max_places", data, largest, **windows, columns_first=columns_first)
    return [result, places]


@converter("MaxUnpool", 9, 11, 22)
def max_unpool(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Zeros, but for the data where the places say.

    They are numbers of elements of the shape that the windows cover; a larger shape that is asked
    for has zeros behind that.
    """
    data, places = node.input(0), node.input(1)
    found = window_attributes(node, node.integers("kernel_shape"))
    rank = data.rank - 2
    if places.shape != data.shape or len(found.kernel) != rank:
        raise node.bad_shape(f"places {places.type} and data {data.type} do not fit")
    covered = tuple(_covered(found, axis, count) for axis, count in enumerate(data.shape[2:]))
    shape = (*data.shape[:2], *covered)
    wanted = shape if node.optional(2) is None else node.constant_integers(2, "the output shape")
    if min(covered) < 1 or len(wanted) != data.rank or any(map(operator.lt, wanted, shape)):
        raise node.bad_shape(f"windows that cover {list(shape)} do not fit {list(wanted)}")
    dims = data.dims
    if data.padded is not None or places.padded is not None:
        if wanted != shape:
            raise graph.refusal("an output shape", [data, places])
        sizes = [size_of(axis) for axis in data.dims]
        true = [*sizes[:2], *(_covered(found, axis, n) for axis, n in enumerate(sizes[2:]))]
        dims = tuple(((size, extent),) for size, extent in zip(true, shape, strict=True))
        places = renumbered(places, true, shape, graph)
    rows, count = math.prod(shape), data.type.size
    zeros = graph.emit("expand", graph.scalar(0, data.dtype), shape=(rows, 1))
    tuples, updates = graph.reshape(places, (count, 1)), graph.reshape(data, (count, 1))
    flat = graph.emit("scatter_rows", zeros, tuples, updates, reduction="none", named=(rows,))
    behind = map(operator.sub, wanted, shape)
    pads = (*(0,) * data.rank, *behind)
    result = graph.with_dims(graph.reshape(flat, shape), dims)
    if not any(pads):
        return result
    return graph.emit("pad", result, graph.scalar(0, data.dtype), pads=pads, mode="constant")


@dynamic_operand("MaxUnpool", at=(2,))
def computed_unpool(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """The declared shape, which a run checks."""
    wanted = declared(node, 2, "the output shape")
    return node.with_constants({2: expect_constant(node, graph, 2, wanted, "the output shape")})


@overload
def _covered(windows: Windows, axis: int, count: int) -> int: ...


@overload
def _covered(windows: Windows, axis: int, count: Dimension) -> Dimension: ...


def _covered(windows: Windows, axis: int, count: Dimension) -> Dimension:
    """The elements that windows cover along an axis, without those around the data."""
    pads = windows.pads[axis] + windows.pads[axis + len(windows.kernel)]
    return (count - 1) * windows.strides[axis] + (windows.reach(axis) - pads)


@converter("AveragePool", 1, 7, 10, 11, 19, 22)
def average_pool(node: OnnxNode, graph: GraphBuilder) -> Value:
    """A window that is cut counts as a whole one before version 19, as in onnxruntime."""
    return average_value(node, node.input(0), graph, counts_whole=node.version < 19)


def average_value(node: OnnxNode, data: Value, graph: GraphBuilder, *, counts_whole: bool) -> Value:
    """The averages over windows of the node's attributes; `counts_whole`: also those cut off."""
    if is_same_at_strides(node, data, node.integers("kernel_shape")):
        return same_average(node, data, graph)
    found = pool_windows(node, data.shape[2:])
    begins, ends = found.pads[: data.rank - 2], found.pads[data.rank - 2 :]
    counts_whole = counts_whole and not rounds_up(node)
    if counts_whole:
        more = overhanging_ends(data.shape[2:], found)
        ends = tuple(
            max(end, over) if is_unpadded(axis) else end
            for end, over, axis in zip(ends, more, data.dims[2:], strict=True)
        )
    windows = {**found.steps, "kernel": found.kernel, "pads": begins + ends, "shape": found.shape}
    counts_pads = bool(node.integer("count_include_pad", 0))
    if all(map(is_unpadded, data.dims[2:])):
        return graph.emit("average_pool", data, **windows, count_include_pad=counts_pads)

    def sized(total: Value) -> Value:
        return with_ceil_count(total, data, found, node, graph)

    least = tuple(map(found.reach, range(data.rank - 2))) if counts_whole else None
    return average_of_there(data, windows, counts_pads, sized, graph, least, hangs=rounds_up(node))


def _over_space(node: OnnxNode, name: str, data: Value, graph: GraphBuilder) -> Value:
    """A reduction over the spatial axes, which stay."""
    if data.rank < 3:
        raise node.bad_shape(f"{data.type} has no spatial axes")
    return graph.emit(name, data, axes=tuple(range(2, data.rank)), keepdims=True)


@converter("GlobalAveragePool", 1, 22)
def global_average_pool(node: OnnxNode, graph: GraphBuilder) -> Value:
    return _over_space(node, "reduce_mean", node.input(0), graph)


@converter("GlobalMaxPool", 1, 22)
def global_max_pool(node: OnnxNode, graph: GraphBuilder) -> Value:
    return _over_space(node, "reduce_max", node.input(0), graph)


def _power(node: OnnxNode) -> float:
    """The attribute p: a float in version 1, an integer since."""
    p = node.floating("p", 2.0) if node.version == 1 else float(node.integer("p", 2))
    if p == 0:
        raise node.invalid("the norm's power p is 0")
    return p


def raised(data: Value, p: float, graph: GraphBuilder) -> Value:
    """|data| ** p."""
    if p == 2:
        return graph.emit("mul", data, data)
    magnitude = graph.emit("abs", data)
    return magnitude if p == 1 else graph.emit("pow", magnitude, graph.scalar(p, data.dtype))


def rooted(total: Value, p: float, graph: GraphBuilder) -> Value:
    """total ** (1 / p)."""
    if p == 1:
        return total
    if p == 2:
        return graph.emit("sqrt", total)
    return graph.emit("pow", total, graph.scalar(1 / p, total.dtype))


@converter("GlobalLpPool", 1, 2, 22)
def global_lp_pool(node: OnnxNode, graph: GraphBuilder) -> Value:
    p = _power(node)
    powers = raised(node.input(0), p, graph)
    return rooted(_over_space(node, "reduce_sum", powers, graph), p, graph)


@converter("LpPool", 1, 2, 11, 18, 22)
def lp_pool(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, p = node.input(0), _power(node)
    powers, found = pooled_windows(node, raised(data, p, graph), 0.0, graph)
    powers = filled_behind(powers, "zero", rounds_up(node), graph)
    total = graph.emit(
        "sum_pool", powers, kernel=found.kernel, **found.steps, pads=found.pads, shape=found.shape
    )
    return rooted(with_ceil_count(total, data, found, node, graph), p, graph)
