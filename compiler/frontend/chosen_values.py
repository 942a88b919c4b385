"""`If` with a condition that is computed at run time: both branches are computed, a select chooses.

Tensors must have equal shapes, or sizes of which a run knows which one holds; sequences and
optional values are chosen tensor by tensor.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tunefarm.compiler.errors import UnsupportedOperatorError
from tunefarm.compiler.frontend.data_sizes import counted_size
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.structured_values import (
    Entity,
    GrowingSequence,
    OptionalValue,
    RecordsValue,
    SequenceValue,
    StackedSequence,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import Axis, extent_of
from tunefarm.compiler.types.sizes import Dimension, bounds_of
from tunefarm.compiler.types.tensor_type import Attribute


class UnlikeSidesError(UnsupportedOperatorError):
    """What one of is to be chosen is not alike."""


def chosen(
    node: OnnxNode,
    graph: GraphBuilder,
    condition: Value,
    then: Entity | None,
    otherwise: Entity | None,
) -> Entity | None:
    """What both branches have a side of; sequences one tensor after the other."""
    if then is otherwise:
        return then
    if isinstance(then, Value) and isinstance(otherwise, Value) and _are_alike(then, otherwise):
        return graph.emit("choose", condition, then, otherwise)
    if isinstance(then, Value) and isinstance(otherwise, Value):
        sides = _sides_alike(node, graph, condition, then, otherwise)
        if sides is not None:
            return sides
    if isinstance(then, SequenceValue) and isinstance(otherwise, SequenceValue):
        types = [[item.type for item in side.items] for side in (then, otherwise)]
        if types[0] == types[1]:
            pairs = zip(then.items, otherwise.items, strict=True)
            items = [chosen(node, graph, condition, *pair) for pair in pairs]
            tensors = tuple(item for item in items if isinstance(item, Value))
            return SequenceValue(tensors, then.dtype)
    if isinstance(then, OptionalValue) and isinstance(otherwise, OptionalValue):
        content = chosen(node, graph, condition, then.content, otherwise.content)
        assert content is None or isinstance(content, Value | SequenceValue)
        return OptionalValue(content, then.kind)
    error = node.unsupported(
        f"a condition (value {condition.name!r}) that is computed at run time, with branches that "
        f"give {kind_text(then)} and {kind_text(otherwise)}"
    )
    raise UnlikeSidesError(error.message, hint=error.hint)


def _are_alike(then: Value, otherwise: Value) -> bool:
    """Both have one type, and as much of it is there."""
    return then.type == otherwise.type and then.dims == otherwise.dims


def _sides_alike(
    node: OnnxNode, graph: GraphBuilder, condition: Value, then: Value, otherwise: Value
) -> Value | None:
    """One of two tensors whose axes have other extents; None where more than that differs.

    Both are padded to the larger extent of each axis, and how much of it is there is chosen, too.
    """
    if then.dtype is not otherwise.dtype or then.rank != otherwise.rank:
        return None
    axes: list[Axis] = []
    for left, right in zip(then.dims, otherwise.dims, strict=True):
        if left == right:
            axes.append(left)
            continue
        if len(left) > 1 or len(right) > 1:
            return None
        (first, _), (second, _) = left[0], right[0]
        lows, highs = zip(bounds_of(first), bounds_of(second), strict=True)
        extent = max(extent_of(left), extent_of(right))
        size: Dimension = first
        if first != second:
            count = graph.append("choose", (condition, graph.size(first), graph.size(second)), {})
            size = counted_size(node, graph, count, max(highs), min(lows))
        axes.append(((size, extent),))
    shape = tuple(map(extent_of, axes))
    sides = [widened(graph, value, shape) for value in (then, otherwise)]
    return graph.with_dims(graph.append("choose", (condition, *sides), {}), tuple(axes))


def widened(graph: GraphBuilder, value: Value, shape: tuple[int, ...]) -> Value:
    """The value in a larger shape, with anything behind it."""
    if value.shape == shape:
        return graph.readable(value)
    if value.dtype is DType.STRING:  # numbers of words
        numbers = replace(value, type=replace(value.type, dtype=DType.I64))
        wide = widened(graph, numbers, shape)
        return replace(wide, type=replace(wide.type, dtype=DType.STRING))
    if not value.type.size:
        return graph.constant(np.zeros(shape, value.dtype.numpy))
    behind = tuple(wide - own for wide, own in zip(shape, value.shape, strict=True))
    zero = graph.scalar(0, value.dtype)
    pads: dict[str, Attribute] = {"pads": (*(0,) * value.rank, *behind), "mode": "constant"}
    return graph.append("pad", (graph.readable(value), zero), pads)


def kind_text(entity: Entity | None) -> str:
    """What an entity is, for errors."""
    match entity:
        case None:
            return "nothing"
        case Value():
            return str(entity.type)
        case SequenceValue():
            return f"a sequence of {len(entity.items)} tensors"
        case RecordsValue():
            return f"dictionaries of {len(entity.labels)} labels"
        case GrowingSequence() | StackedSequence():
            return "a sequence whose length is computed"
    return f"an optional of {kind_text(entity.content)}"
