"""Converter of NonMaxSuppression: the best box that is left, again and again, for all classes.

Each step takes the highest score of every class of every image at once and strikes out the boxes
that overlap with it, in vectors; steps behind the last box that any class has left do not run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compiler.frontend.converter import converter
from compiler.frontend.data_sizes import compacted, counted, iota, with_axis
from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.frontend.onnx_node import OnnxNode
from compiler.types.dtypes import DType

_MOST_STEPS = 256


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
    if boxes.padded is not None or scores.padded is not None:
        raise graph.refusal("suppression among so many boxes", [boxes, scores])
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
    size = counted(node, graph, number, total)
    return with_axis(graph.emit("gather", rows, order, axis=0), 0, size, graph)


def _steps(node: OnnxNode, graph: GraphBuilder, count: int) -> tuple[int, Value | None]:
    """The most boxes of a class, and how many are asked for where that is computed."""
    most = node.optional(2)
    if most is None:
        return 0, None
    computed = None
    if most.array is None:
        computed = graph.reshape(graph.cast(most, DType.I64), ())
    else:
        count = max(0, min(count, node.constant_integer(2, "the most boxes of a class")))
    if count > _MOST_STEPS:
        raise node.unsupported(
            f"up to {count} boxes of a class (at most {_MOST_STEPS}; a constant "
            "max_output_boxes_per_class limits them)"
        )
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
    places = iota(scores.shape[2], graph)
    going: Value | None = None  # whether any class had a box at the step before
    taken: list[Value] = []
    flags: list[Value] = []
    for step in range(steps):
        best = graph.emit("arg_max", scores, axis=2, keepdims=True)
        top = graph.emit("reduce_max", scores, axes=(2,), keepdims=True)
        flag = graph.emit("greater", top, struck)
        if limit is not None:
            wanted = graph.emit("less", graph.scalar(step, DType.I64), limit)
            flag = graph.emit("and", flag, wanted)
        if going is not None:
            none = [np.zeros(value.shape, value.dtype.numpy) for value in (best, flag)]
            best = graph.emit("choose", going, best, graph.constant(none[0]))
            flag = graph.emit("choose", going, flag, graph.constant(none[1]))
        taken.append(best)
        flags.append(flag)
        if step == steps - 1:
            break
        going = graph.emit("reduce_max", flag, axes=(0, 1, 2), keepdims=False)
        overlaps = graph.emit("greater", _overlap(graph, boxes, best, scores.shape), threshold)
        gone = graph.emit("or", overlaps, graph.emit("equal", places, best))
        left = graph.emit("where", gone, struck, scores)
        scores = graph.emit("choose", going, left, scores)
    return graph.concat(taken, 2), graph.concat(flags, 2)


def _threshold(node: OnnxNode, graph: GraphBuilder, position: int) -> Value:
    value = node.optional(position)
    return graph.scalar(0, DType.F32) if value is None else graph.reshape(value, ())


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
