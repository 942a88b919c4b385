"""CenterCropPad where sizes, or those that are wanted, are dynamic."""

from __future__ import annotations

from tunefarm.compiler.frontend.dynamic_operands import dynamic_operand
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.padded_moves import pad_axis
from tunefarm.compiler.frontend.settle import expect_constant, sized
from tunefarm.compiler.types.sizes import Dimension, divide, greater, static_shape


@dynamic_operand("CenterCropPad", at=(1,), sized=True)
def center_crop_pad(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Of an axis of n, t wanted: (t - n) // 2 zeros before it, or (n - t) // 2 elements fewer."""
    data, axes = node.input(0), _axes(node)
    if node.is_computed(1):
        node = node.with_constants({1: _settled_shape(node, graph, axes)})
    wanted = node.sizes(1, "the shape")
    if len(wanted) != len(axes):
        raise node.bad_shape(f"{len(wanted)} sizes do not fit {len(axes)} axes of {data.type}")
    if data.padded is None and static_shape(wanted) is not None:
        return node
    for axis, size in zip(axes, wanted, strict=True):
        missing = size - data.true_shape[axis]
        begin = divide(greater(missing, 0), 2) - divide(greater(-missing, 0), 2)
        if missing != 0:
            data = pad_axis(data, axis, (begin, missing - begin), "constant", 0, graph)
    return data


def _axes(node: OnnxNode) -> list[int]:
    rank = node.input(0).rank
    return [node.axis(axis, rank) for axis in node.integers("axes", tuple(range(rank)))]


def _settled_shape(node: OnnxNode, graph: GraphBuilder, axes: list[int]) -> Value:
    """The sizes that are wanted where the graph computes them: those of the declared result."""
    declared = node.declared_sizes()
    if declared is None:
        raise node.not_settled(1, "the shape")
    wanted: list[Dimension] = [declared[axis] for axis in axes]
    numbers = static_shape(wanted)
    if numbers is None:
        return sized(node, graph, 1, wanted, "the shape")
    return expect_constant(node, graph, 1, numbers, "the shape")
