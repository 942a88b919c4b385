"""Pass: moves that share their kernel with nothing, or should not, are turned as wholes.

    depth_to_space(x)  ->  reshape(depth_to_space(reshape(x), split))

With an axis for each part of a split one, a kernel takes blocks of its data and divides nothing.
What shares its kernel stays, and elements are read where they are needed, unless they lie too far
apart.
"""

from __future__ import annotations

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.operators.registry import (
    Transpose,
    complete_attributes,
    operator,
    transpose_of,
)
from tunefarm.compiler.plan.fusion.fuse import fuse
from tunefarm.compiler.types.node import Node


def run(graph: Graph, allowance: ResourceBudget) -> Graph:
    """The graph with such moves between views."""
    if all(operator(node.operator).transpose is None for node in graph.nodes):
        return graph
    alone = {group.output for group in fuse(graph, allowance) if len(group.nodes) == 1}
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        turn = _turn(node, graph)
        if turn is None or (turn.near and node.output not in alone):
            rewriter.keep(node)
            continue
        split = rewriter.emit("reshape", (node.inputs[0],), {"shape": turn.shape}, like=node)
        attributes = {**node.attributes, "split": True}
        moved = rewriter.emit(node.operator, (split,), attributes, like=node)
        shape = rewriter.types[node.output].shape
        rewriter.emit("reshape", (moved,), {"shape": shape}, like=node, output=node.output)
    return rewriter.finish()


def _turn(node: Node, graph: Graph) -> Transpose | None:
    """What a node turns; None if that is nothing, or is split already."""
    if operator(node.operator).transpose is None or complete_attributes(node).flag("split"):
        return None
    return transpose_of(node.operator, node.attributes, graph.types[node.inputs[0]])
