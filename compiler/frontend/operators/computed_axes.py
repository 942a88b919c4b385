"""Axes that are computed: each list of axes that the declared shape allows, and one selected."""

from __future__ import annotations

from itertools import combinations

from tunefarm.compiler.frontend.dynamic_operands import dynamic_operand
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.settle import chosen, listed_shapes
from tunefarm.compiler.types.sizes import Dimension, bounds_of, product_of

_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
).split()


@dynamic_operand(*_REDUCTIONS, at=(1,), padded=True)
def reduce_(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Lists of as many axes as there are entries."""
    data, axes = node.input(0), node.input(1)
    keep = bool(node.integer("keepdims", 1))
    low, high = bounds_of(product_of(axes.true_shape))
    if low < min(high, data.rank) and not keep:
        raise node.not_settled(1, "the list of axes")

    def shape(listed: tuple[int, ...]) -> tuple[Dimension, ...]:
        keeps_all = not listed and node.integer("noop_with_empty_axes", 0)
        reduced = () if keeps_all else listed or tuple(range(data.rank))
        extents = [1 if axis in reduced else size for axis, size in enumerate(data.true_shape)]
        return tuple(size for axis, size in enumerate(extents) if keep or axis not in reduced)

    counts = range(low, min(high, data.rank) + 1)
    choices = {
        listed: shape(listed)
        for count in counts
        for listed in combinations(range(data.rank), count)
    }
    return chosen(node, graph, listed_shapes(node, choices), data.rank)


@dynamic_operand("CumSum", "CumProd", at=(1,), padded=True)
def running(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """All axes are computed, and one taken."""
    data = node.input(0)
    return chosen(node, graph, {(axis,): data.true_shape for axis in range(data.rank)}, data.rank)


@dynamic_operand("Squeeze", at=(1,), padded=True)
def squeeze(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Axes that have one element at any size."""
    data = node.input(0)
    units = [axis for axis, size in enumerate(data.true_shape) if size == 1]
    choices = {
        axes: tuple(size for axis, size in enumerate(data.true_shape) if axis not in axes)
        for axes in combinations(units, _count(node, 1))
    }
    return chosen(node, graph, listed_shapes(node, choices), data.rank, views=True)


@dynamic_operand("Unsqueeze", at=(1,), padded=True)
def unsqueeze(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Axes of one element more, wherever they are added."""
    data, count = node.input(0), _count(node, 1)
    rank = data.rank + count

    def shape(added: tuple[int, ...]) -> tuple[Dimension, ...]:
        rest = iter(data.true_shape)
        return tuple(1 if axis in added else next(rest) for axis in range(rank))

    choices = {axes: shape(axes) for axes in combinations(range(rank), count)}
    return chosen(node, graph, listed_shapes(node, choices), rank, views=True)


def _count(node: OnnxNode, position: int) -> int:
    """How many entries an operand has, on which the rank of the result depends."""
    axes = node.input(position)
    if axes.padded is not None:
        raise node.not_settled(position, "the list of axes")
    return axes.type.size
