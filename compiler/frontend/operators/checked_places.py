"""Indices in models with dynamic sizes: each must be of what is there.

Kernels clamp indices at an axis' bound, or leave out what lies behind it: no memory but their own
is read or written. But what lies between the size and its bound is anything, and a row that was not
asked for is wrong too. Models whose sizes are all known have kernels alone, which clamp.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.types.dims import Axis, is_unpadded, size_of, true_shape
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import bounds_of


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
