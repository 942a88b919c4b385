"""Converters of sequences and optionals, whose members are known at import.

No node comes of them, but for a member at a position that is computed at run time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from onnx import TypeProto

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import extent_there, window
from tunefarm.compiler.frontend.stacked_sequences import joined_rows, one_of, row_of, rows_along
from tunefarm.compiler.frontend.structured_values import (
    Entity,
    GrowingSequence,
    OptionalValue,
    RecordsValue,
    SequenceValue,
    StackedSequence,
    declared_kind,
    schema_kind,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import is_unpadded, size_of
from tunefarm.compiler.types.sizes import Dimension, bounds_of, divide, greater, smaller


@converter("SequenceEmpty", 11)
def sequence_empty(node: OnnxNode, graph: GraphBuilder) -> SequenceValue:
    number = node.integer("dtype", 1)
    return SequenceValue((), dtype_of(number, f"{node.label}: the result"))


@converter("SequenceConstruct", 11)
def sequence_construct(node: OnnxNode, graph: GraphBuilder) -> SequenceValue:
    items = node.present_inputs()
    return SequenceValue(items, items[0].dtype)


@converter("SequenceInsert", 11)
def sequence_insert(node: OnnxNode, graph: GraphBuilder) -> SequenceValue | GrowingSequence:
    grown = node.entity(0)
    if isinstance(grown, GrowingSequence) and node.optional(2) is None:
        return replace(grown, appended=(*grown.appended, node.input(1)))
    sequence, item = node.sequence(0), node.input(1)
    if item.dtype is not sequence.dtype:
        raise node.invalid(f"a tensor of {item.dtype} cannot join a sequence of {sequence.dtype}")
    count = len(sequence.items)
    at = count if node.optional(2) is None else _position(node, 2, count, end=True)
    return SequenceValue((*sequence.items[:at], item, *sequence.items[at:]), sequence.dtype)


@converter("SequenceErase", 11)
def sequence_erase(node: OnnxNode, graph: GraphBuilder) -> SequenceValue:
    sequence = node.sequence(0)
    count = len(sequence.items)
    if not count:
        raise node.bad_shape("there is nothing to erase in an empty sequence")
    at = count - 1 if node.optional(1) is None else _position(node, 1, count)
    return SequenceValue((*sequence.items[:at], *sequence.items[at + 1 :]), sequence.dtype)


@converter("SequenceAt", 11)
def sequence_at(node: OnnxNode, graph: GraphBuilder) -> Value:
    """At a computed position: a row of all tensors, which must have one shape then."""
    stacked, position = node.entity(0), node.input(1)
    if isinstance(stacked, StackedSequence):
        return row_of(node, graph, stacked.rows, position)
    sequence = node.sequence(0)
    if not sequence.items:
        raise node.bad_shape("there is nothing at any position of an empty sequence")
    if position.array is not None:
        return sequence.items[_position(node, 1, len(sequence.items))]
    first = sequence.items[0]
    if any(item.rank != first.rank for item in sequence.items):
        raise node.unsupported("a position computed at run time among tensors of several ranks")
    if any(item.true_shape != first.true_shape for item in sequence.items):
        return one_of(node, graph, sequence.items, position)
    shape = sequence.items[0].shape
    rows = [graph.reshape(item, (1, *shape)) for item in sequence.items]
    index = graph.reshape(position, ())
    return graph.emit("gather", graph.concat(rows, 0), index, axis=0)


@converter("SequenceLength", 11)
def sequence_length(node: OnnxNode, graph: GraphBuilder) -> Value:
    stacked = node.entity(0)
    if isinstance(stacked, StackedSequence):
        return graph.size(stacked.rows.true_shape[0])
    if isinstance(stacked, GrowingSequence):
        others = graph.scalar(stacked.first + len(stacked.appended), DType.I64)
        return graph.emit("add", stacked.step, others)
    return graph.scalar(len(node.sequence(0).items), DType.I64)


@converter("SplitToSequence", 11, 24)
def split_to_sequence(node: OnnxNode, graph: GraphBuilder) -> SequenceValue | StackedSequence:
    """Parts of given sizes, or equal ones (the last may be smaller); without sizes single rows."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", 0), data.rank)
    by, is_open = node.optional(1), not is_unpadded(data.dims[axis])
    if by is None and is_open:
        return rows_along(data, axis, graph, keeps=bool(node.integer("keepdims", 1)))
    if by is not None and (is_open or by.sizes is not None):
        return _sized_parts(node, data, axis, graph)
    extent, squeezes = data.shape[axis], False
    if node.optional(1) is None:
        sizes = [1] * extent
        squeezes = not node.integer("keepdims", 1)
    elif node.input(1).rank == 0:
        size = node.constant_integer(1, "the size of the parts")
        if size < 1:
            raise node.bad_shape(f"parts of {size} are none")
        sizes = [min(size, extent - start) for start in range(0, extent, size)]
    else:
        sizes = list(node.constant_integers(1, "the sizes of the parts"))
    if sum(sizes) != extent or any(size < 0 for size in sizes):
        raise node.bad_shape(f"axis {axis} of {data.type} does not split into {sizes}")
    starts = np.cumsum([0, *sizes]).tolist()
    pick = graph.pick if squeezes else None
    parts = [
        pick(data, axis, start) if pick else _part(data, axis, start, size, graph)
        for start, size in zip(starts, sizes, strict=False)
    ]
    return SequenceValue(tuple(parts), data.dtype)


def _sized_parts(
    node: OnnxNode, data: Value, axis: int, graph: GraphBuilder
) -> SequenceValue | StackedSequence:
    """Parts whose sizes, or that of all, are dynamic."""
    size, given = size_of(data.dims[axis]), node.sizes(1, "the sizes of the parts")
    sizes = [extent_there(part, graph) for part in given]
    if node.input(1).rank == 0:
        (each,) = given
        if each == 1:
            return rows_along(data, axis, graph, keeps=True)
        low, high = bounds_of(-divide(-size, greater(each, 1)))
        if low != high:
            reason = f"parts of {each} of an axis of {size}, whose number is not known"
            raise graph.refusal(reason, [data], sizes=given)
        sizes = [greater(smaller(each, size - each * part), 0) for part in range(high)]
    parts, total = list[Value](), cast("Dimension", 0)
    for part in sizes:
        parts.append(window(data, axis, total, part, graph))
        total = total + part
    if total != size:
        graph.run_time.require_equal(total, size, f"node {graph.source!r}")
    return SequenceValue(tuple(parts), data.dtype)


def _part(data: Value, axis: int, start: int, size: int, graph: GraphBuilder) -> Value:
    if size:
        return graph.part(data, axis, start, size)
    shape = (*data.shape[:axis], 0, *data.shape[axis + 1 :])
    return graph.constant(np.zeros(shape, data.dtype.numpy))


@converter("ConcatFromSequence", 11)
def concat_from_sequence(node: OnnxNode, graph: GraphBuilder) -> Value:
    stacked, stacks = node.entity(0), bool(node.integer("new_axis", 0))
    if isinstance(stacked, StackedSequence):
        return joined_rows(node, graph, stacked.rows, stacks)
    items = node.sequence(0).items
    if not items:
        raise node.bad_shape("an empty sequence cannot be joined")
    axis = node.axis(node.integer("axis"), items[0].rank + stacks)
    if stacks:
        items = tuple(
            graph.reshape(item, (*item.shape[:axis], 1, *item.shape[axis:])) for item in items
        )
    filled = [item for item in items if 0 not in item.shape]
    return graph.concat(filled or items[:1], axis)


@converter("Optional", 15, 28)
def optional(node: OnnxNode, graph: GraphBuilder) -> OptionalValue:
    content = node.entity(0)
    if content is None:
        declared = node.attributes.get("type")
        if not isinstance(declared, TypeProto):
            raise node.invalid("an empty optional needs the attribute type")
        return OptionalValue(None, declared_kind(declared, f"{node.label}: the result"))
    if isinstance(content, OptionalValue | RecordsValue):
        raise node.invalid("an optional holds a tensor, or a sequence of tensors")
    if not isinstance(content, Value):
        content = node.sequence(0)
    return OptionalValue(content, schema_kind(content))


@converter("OptionalHasElement", 15, 18, 28)
def optional_has_element(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Tensors and sequences count as optionals that hold them."""
    given = node.entity(0)
    content = given.content if isinstance(given, OptionalValue) else given
    return graph.scalar(content is not None, DType.BOOL)


@converter("OptionalGetElement", 15, 18, 28)
def optional_get_element(node: OnnxNode, graph: GraphBuilder) -> Entity:
    given = node.entity(0)
    content = given.content if isinstance(given, OptionalValue) else given
    if content is None:
        raise ShapeError(
            f"{node.label}: the optional {node.names[0]!r} is empty",
            hint="give the model's input a shape, or ask OptionalHasElement before",
        )
    return content


def _position(node: OnnxNode, position: int, count: int, *, end: bool = False) -> int:
    """A constant position in a sequence, counted from its end where it is negative."""
    at = node.constant_integer(position, "the position in the sequence")
    limit = count if end else count - 1
    if not -count <= at <= limit:
        raise node.bad_shape(f"the position {at} is outside a sequence of {count}")
    return at + count if at < 0 else at
