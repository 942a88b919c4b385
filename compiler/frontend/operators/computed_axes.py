"""Axes that are computed: those that give the declared shape, selected where there are several."""

from __future__ import annotations

from itertools import combinations

from tunefarm.compiler.frontend.dynamic_operands import dynamic_operand
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.settle import chosen, declared

_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
).split()


@dynamic_operand(*_REDUCTIONS, at=(1,))
def reduce_(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Without a declared shape, only where all lists of so many axes give the same."""
    data, count = node.input(0), node.input(1).type.size
    keep = bool(node.integer("keepdims", 1))

    def shape(axes: tuple[int, ...]) -> tuple[int, ...]:
        extents = [1 if axis in axes else extent for axis, extent in enumerate(data.shape)]
        return tuple(extent for axis, extent in enumerate(extents) if keep or axis not in axes)

    choices = {axes: shape(axes) for axes in combinations(range(data.rank), count)}
    wanted = node.declared_shape()
    if wanted is None and len(set(choices.values())) == 1:
        wanted = next(iter(choices.values()))
    fit = [axes for axes, result in choices.items() if result == wanted]
    return chosen(node, graph, fit, data.rank)


@dynamic_operand("CumSum", "CumProd", at=(1,))
def running(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """All axes are computed, and one taken."""
    rank = node.input(0).rank
    return chosen(node, graph, [(axis,) for axis in range(rank)], rank)


@dynamic_operand("Squeeze", at=(1,))
def squeeze(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Which ones go is all the same as long as the shape is."""
    data, count = node.input(0), node.input(1).type.size
    units = [axis for axis, extent in enumerate(data.shape) if extent == 1]
    choices = {
        axes: tuple(extent for axis, extent in enumerate(data.shape) if axis not in axes)
        for axes in combinations(units, count)
    }
    wanted = node.declared_shape()
    if wanted is None and len(set(choices.values())) == 1:
        wanted = next(iter(choices.values()))
    fit = [axes for axes, result in choices.items() if result == wanted]
    return chosen(node, graph, fit, data.rank, same=True)


@dynamic_operand("Unsqueeze", at=(1,))
def unsqueeze(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    data, count = node.input(0), node.input(1).type.size
    wanted = declared(node, 1, "the list of axes")
    fit = [
        axes
        for axes in combinations(range(len(wanted)), count)
        if all(wanted[axis] == 1 for axis in axes)
        and tuple(e for axis, e in enumerate(wanted) if axis not in axes) == data.shape
    ]
    return chosen(node, graph, fit, len(wanted), same=True)
