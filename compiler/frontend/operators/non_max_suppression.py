"""Converter of NonMaxSuppression: the best box that is left, again and again, for all classes.

Each step takes the highest score of every class of every image at once and strikes out the boxes
that overlap with it, in vectors; the loop ends behind the last box that any class has left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.data_sizes import (
    all_there,
    compacted,
    counted_size,
    iota,
    with_axis,
)
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import compacted as in_order
from tunefarm.compiler.types.dims import size_of
from tunefarm.compiler.types.dtypes import DType


@dataclass(frozen=True, slots=True)
class _Boxes:
    """Lower and upper ends of boxes along both axes, and their areas: [images, 1, boxes] each."""

    low: tuple[Value, Value]
    high: tuple[Value, Value]
    area: Value


@converter("NonMaxSuppression", 10, 11)
def non_max_suppression(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Rows of (image, class, box), images and classes in order, and boxes by their scores."""
    boxes, scores = node.input(0), node.input(1)
    if boxes.rank != 3 or scores.rank != 3 or boxes.shape[::2] != (scores.shape[0], 4):
        raise node.bad_shape(f"boxes {boxes.type} and scores {scores.type} do not fit")
    if boxes.shape[1] != scores.shape[2]:
        raise node.bad_shape(f"boxes {boxes.type} and scores {scores.type} do not fit")
    boxes, scores = _of_size(node, boxes, scores, graph)
    images, classes, count = scores.shape
    steps, limit = _steps(node, graph, count)
    if steps == 0:
        return graph.constant(np.zeros((0, 3), np.int64))
    taken, flags = _selected(node, graph, _corners(node, graph, boxes), scores, steps, limit)
    total = images * classes * steps
    graph.check_array((total, 3), 8)
    order, number = compacted(graph.reshape(flags, (total,)), graph)
    image, category = np.divmod(np.arange(images * classes, dtype=np.int64), classes)
    columns = [
        graph.constant(np.repeat(image, steps)),
        graph.constant(np.repeat(category, steps)),
        graph.reshape(taken, (total,)),
    ]
    rows = graph.concat([graph.reshape(column, (total, 1)) for column in columns], 1)
    size = counted_size(node, graph, number, total)
    return with_axis(graph.emit("gather", rows, order, axis=0), 0, size, graph)


def _of_size(
    node: OnnxNode, boxes: Value, scores: Value, graph: GraphBuilder
) -> tuple[Value, Value]:
    """Boxes and scores as they are padded: the lowest score is no box."""
    for own, other in ((0, 0), (1, 2)):
        sizes = size_of(boxes.dims[own]), size_of(scores.dims[other])
        graph.run_time.require_equal(*sizes, f"node {graph.source!r}")
    boxes, scores = in_order(boxes, graph), in_order(scores, graph)
    for axis in range(scores.rank):
        scores = graph.padded.filled(scores, axis, "lowest")
    return all_there(boxes, graph), all_there(scores, graph)


def _steps(node: OnnxNode, graph: GraphBuilder, count: int) -> tuple[int, Value | None]:
    """The most boxes of a class, and how many are asked for where that is computed."""
    most = node.optional(2)
    if most is None:
        return 0, None
    computed = None
    if most.array is None:
        computed = graph.cast(_number(graph, most), DType.I64)
    else:
        count = max(0, min(count, node.constant_integer(2, "the most boxes of a class")))
    return count, computed


def _corners(node: OnnxNode, graph: GraphBuilder, boxes: Value) -> _Boxes:
    images, count, _ = boxes.shape
    first, second, third, fourth = (
        graph.reshape(graph.pick(boxes, 2, number), (images, 1, count)) for number in range(4)
    )
    if node.integer("center_point_box", 0):
        half = graph.scalar(0.5, boxes.dtype)
        ends = []
        for center, extent in ((first, third), (second, fourth)):
            reach = graph.emit("mul", extent, half)
            ends.append((graph.emit("sub", center, reach), graph.emit("add", center, reach)))
    else:
        ends = [(first, third), (second, fourth)]
    low = [graph.emit("min", *pair) for pair in ends]
    high = [graph.emit("max", *pair) for pair in ends]
    sides = [graph.emit("sub", top, bottom) for top, bottom in zip(high, low, strict=True)]
    return _Boxes((low[0], low[1]), (high[0], high[1]), graph.emit("mul", *sides))


def _selected(
    node: OnnxNode,
    graph: GraphBuilder,
    boxes: _Boxes,
    scores: Value,
    steps: int,
    limit: Value | None,
) -> tuple[Value, Value]:
    """The box of each step and whether there is one: [images, classes, steps] each."""
    struck = graph.scalar(-np.inf, scores.dtype)
    threshold = _threshold(node, graph, 3)
    if node.optional(4) is not None:
        enough = graph.emit("greater", scores, _threshold(node, graph, 4))
        scores = graph.emit("where", enough, scores, struck)
    loop = graph.fresh_number()
    left = graph.emit("loop_state", scores, loop=loop, number=0)
    best = graph.emit("arg_max", left, axis=2, keepdims=True)
    top = graph.emit("reduce_max", left, axes=(2,), keepdims=True)
    flag = graph.emit("greater", top, struck)
    going = graph.emit("reduce_max", flag, axes=(0, 1, 2), keepdims=False)
    overlaps = graph.emit("greater", _overlap(graph, boxes, best, scores.shape), threshold)
    gone = graph.emit("or", overlaps, graph.emit("equal", iota(scores.shape[2], graph), best))
    following = graph.emit("where", gone, struck, left)

    def result(number: int) -> Value:
        values = (limit, None, going, scores, following, best, flag)
        bounds = {"loop": loop, "states": 1, "most": steps, "number": number}
        return graph.emit("loop_result", *values, **bounds)

    taken, flags = (_of_classes(graph, result(number)) for number in (1, 2))
    ran = graph.emit("less", iota(steps, graph), result(3))  # the other rows hold anything
    return taken, graph.emit("and", flags, ran)


def _of_classes(graph: GraphBuilder, rows: Value) -> Value:
    """What the steps gave, [steps, images, classes, 1], as [images, classes, steps]."""
    steps, images, classes, _ = rows.shape
    return graph.reshape(graph.transpose(rows, (1, 2, 0, 3)), (images, classes, steps))


def _threshold(node: OnnxNode, graph: GraphBuilder, position: int) -> Value:
    value = node.optional(position)
    return graph.scalar(0, DType.F32) if value is None else _number(graph, value)


def _number(graph: GraphBuilder, value: Value) -> Value:
    """The only element of an operand; the first one where there are several."""
    if value.rank == 1 and value.shape != (1,):
        value = graph.part(value, 0, 0, 1)
    return graph.reshape(value, ())


def _overlap(graph: GraphBuilder, boxes: _Boxes, best: Value, shape: tuple[int, ...]) -> Value:
    """The share of the united area that each box has in common with the best one of its class."""

    def of_best(values: Value) -> Value:
        return graph.emit(
            "gather_elements", graph.emit("expand", values, shape=shape), best, axis=2
        )

    common: list[Value] = []
    zero = graph.scalar(0, boxes.area.dtype)
    for low, high in zip(boxes.low, boxes.high, strict=True):
        top = graph.emit("min", high, of_best(high))
        bottom = graph.emit("max", low, of_best(low))
        common.append(graph.emit("max", graph.emit("sub", top, bottom), zero))
    shared = graph.emit("mul", *common)
    both = graph.emit("add", boxes.area, of_best(boxes.area))
    united = graph.emit("sub", both, shared)
    is_area = graph.emit("greater", shared, zero)
    return graph.emit("where", is_area, graph.emit("div", shared, united), zero)
