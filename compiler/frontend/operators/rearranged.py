"""Shapes that padding does not lie in: elements are looked up where they are.

A reshape keeps the order of the elements that are there. Where it takes an axis with padding apart,
or leaves padding inside of one, each element's number among those that are there says its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.types.dims import Dims, Factor, extent_of, joined, size_of, true_shape
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Dimension, bounds_of, greater, product_of


def rearranged(value: Value, shape: Sequence[Dimension], graph: GraphBuilder) -> Value:
    """The value under another true shape, copied; every axis has one factor then.

    As many elements must be there before as after: it is checked at run time where it is not known.
    """
    count = product_of(true_shape(value.dims))
    graph.run_time.require_equal(count, product_of(shape), f"node {graph.source!r}")
    behind = _common_end(value.dims, shape)
    end = value.dims[value.rank - behind :]
    before, after = value.dims[: value.rank - behind], shape[: len(shape) - behind]
    kept = _common(before, after)
    begin, rows = before[:kept], before[kept:]
    moved: Dims = tuple(((size, bounds_of(size)[1]),) for size in after[kept:])
    places = _places(rows, moved, graph)
    plain = graph.with_dims(graph.readable(value), None)
    first, last = tuple(map(extent_of, begin)), tuple(map(extent_of, end))
    flat = graph.reshape(plain, (prod(first), prod(map(extent_of, rows)), *last))
    picked = graph.emit("gather", flat, graph.reshape(places, (places.type.size,)), axis=1)
    result = graph.reshape(picked, (*first, *map(extent_of, moved), *last))
    return graph.with_dims(result, (*begin, *moved, *end))


def compacted(value: Value, graph: GraphBuilder) -> Value:
    """The value, none of whose axes has padding inside."""
    if all(len(axis) == 1 for axis in value.dims):
        return value
    return rearranged(value, value.true_shape, graph)


def in_one_piece(value: Value, axis: int, graph: GraphBuilder) -> Value:
    """The value, whose elements along an axis lie side by side: positions there count all."""
    return value if len(value.dims[axis]) == 1 else compacted(value, graph)


def _common_end(dims: Dims, shape: Sequence[Dimension]) -> int:
    """How many of the last axes are the same before and after."""
    return _common(dims[::-1], shape[::-1])


def _common(dims: Dims, shape: Sequence[Dimension]) -> int:
    """How many of the first axes are the same before and after; not all of them."""
    kept = 0
    for axis, size in zip(dims, shape, strict=False):
        if len(axis) > 1 or size_of(axis) != size:
            break
        kept += 1
    return min(kept, len(dims) - 1, len(shape) - 1) if kept else 0


def _places(before: Dims, after: Dims, graph: GraphBuilder) -> Value:
    """For each place after, padding included, the place before of the element that is there."""
    number = _number(after, graph)
    factors = joined(factor for axis in before for factor in axis)
    return _place(number, factors, graph)


def _number(dims: Dims, graph: GraphBuilder) -> Value:
    """Each place's number among the elements that are there."""
    result = graph.scalar(0, DType.I64)
    sizes = true_shape(dims)
    for axis, dimension in enumerate(dims):
        extent = extent_of(dimension)
        graph.check_array((extent,), DType.I64.bytes)
        indices = graph.constant(np.arange(extent, dtype=np.int64))
        behind = product_of(sizes[axis + 1 :])
        along = graph.reshape(indices, (extent, *(1,) * (len(dims) - axis - 1)))
        result = graph.emit("add", result, graph.emit("mul", along, graph.size(behind)))
    return result


def _place(number: Value, factors: Sequence[Factor], graph: GraphBuilder) -> Value:
    """Where the element of a number lies."""
    place, inner = graph.scalar(0, DType.I64), 1
    for position, (true, extent) in reversed(list(enumerate(factors))):
        index = number
        if position:
            count = graph.size(greater(true, 1))  # nothing is looked up where there is nothing
            index = graph.emit("mod", number, count)
            number = graph.emit("div", number, count)
        place = graph.emit("add", place, graph.emit("mul", index, graph.scalar(inner, DType.I64)))
        inner *= extent
    return place
