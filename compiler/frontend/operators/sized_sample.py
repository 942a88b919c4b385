"""Samples of data with dynamic spatial sizes.

Tables of taps are made for the data as it is padded. What lies behind the true size is made what
the mode of padding has there, or places are moved so that it is not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.operators.padded_moves import as_whole, taken
from tunefarm.compiler.frontend.operators.rearranged import compacted, in_one_piece
from tunefarm.compiler.frontend.operators.sized_resize import edge_extended
from tunefarm.compiler.types.dims import is_unpadded, size_of, whole
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Dimension, static_shape

_BESIDE = 2  # elements at each end that samples inside of data may read
_FAR = -2.0  # outside of data whatever its size is


def spatial_sizes(data: Value) -> tuple[Dimension, ...]:
    """The true sizes of the axes behind batch and channels."""
    return tuple(size_of(axis) for axis in data.dims[2:])


def spread_behind(data: Value, padding: str, graph: GraphBuilder) -> Value:
    """The data, of whose spatial axes that are padded all is there: zeros, or the last element."""
    for axis in range(2, data.rank):
        if is_unpadded(data.dims[axis]):
            continue
        if len(data.dims[axis]) > 1:
            data = compacted(data, graph)
        if padding == "zeros":
            data = as_whole(graph.padded.filled(data, axis, "zero"), axis, graph)
        else:
            data = edge_extended(data, axis, graph)
    return data


def left_out(places: Value, sizes: Sequence[Dimension], graph: GraphBuilder) -> Value:
    """Places [..., axes], those more than one element behind the data moved far in front of it.

    Nearer ones are at the last element: of two taps with a share each the largest is another.
    """
    if static_shape(sizes) is not None:
        return places
    ends = graph.size_vector(sizes, places.dtype)
    beyond = graph.emit("greater", places, ends)
    last = graph.emit("sub", ends, graph.scalar(1.0, places.dtype))
    near = graph.emit("min", places, last)
    return graph.emit("where", beyond, graph.scalar(_FAR, places.dtype), near)


def reflected(places: Value, sizes: Sequence[Dimension], align: bool, graph: GraphBuilder) -> Value:
    """Places [..., axes] mirrored at the borders, or at the middles of those elements if `align`.

    Their nearest two elements are in the data then, or equal to those that are.
    """
    dtype, half = places.dtype, 0.0 if align else 0.5
    zero, low = graph.scalar(0.0, dtype), graph.scalar(-half, dtype)
    span = graph.size_vector([size - 1 + round(2 * half) for size in sizes], dtype)
    twice = graph.emit("add", span, span)
    turns = graph.emit("max", twice, graph.scalar(1.0, dtype))
    turn = graph.emit("mod", graph.emit("sub", places, low), turns)
    back = graph.emit("min", turn, graph.emit("sub", twice, turn))
    moved = graph.emit("add", back, low)
    above = graph.emit("greater_equal", places, low)
    below = graph.emit("less_equal", places, graph.emit("add", span, low))
    inside = graph.emit("where", graph.emit("and", above, below), places, moved)
    return graph.emit("where", graph.emit("greater", span, zero), inside, zero)


def mirrored(data: Value, places: Value, align: bool, graph: GraphBuilder) -> tuple[Value, Value]:
    """Data with two elements more at both ends of its spatial axes, which cubic samples at places
    inside read, and the places in it."""
    for axis in range(2, data.rank):
        data = in_one_piece(data, axis, graph)
        size, extent = graph.size(size_of(data.dims[axis])), data.shape[axis] + 2 * _BESIDE
        index = graph.constant(np.arange(-_BESIDE, extent - _BESIDE, dtype=np.int64))
        one = graph.scalar(1, DType.I64)
        span = graph.emit("sub", size, one) if align else size
        twice = graph.emit("add", span, span)
        turn = graph.emit("mod", index, graph.emit("max", twice, one))
        back = graph.emit("sub", twice, turn)
        back = back if align else graph.emit("sub", back, one)
        inside = graph.emit("min", turn, back)
        inside = graph.emit("max", inside, graph.scalar(0, DType.I64))
        data = taken(data, axis, inside, whole(extent), graph, there=True)
    return data, graph.emit("add", places, graph.scalar(float(_BESIDE), places.dtype))
