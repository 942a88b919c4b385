"""Pass: a computed right operand that a matrix product reads transposed is transposed on its own.

A product's vectors run along its columns, in which a transposed operand is not contiguous. Turning
it once, in register blocks, costs less than gathering each of its elements for every tile of rows.
Constants stay: they are packed when the model is built.
"""

from __future__ import annotations

from compiler.graph.ir import Graph
from compiler.graph.rewriter import Rewriter
from compiler.operators.registry import complete_attributes
from compiler.types.node import Node


def run(graph: Graph) -> Graph:
    """The graph without computed right operands that are read transposed."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        resolved = rewriter.resolve(node)
        if _is_read_transposed(rewriter, resolved):
            _turn(rewriter, resolved)
        else:
            rewriter.keep(resolved)
    return rewriter.finish()


def _is_read_transposed(rewriter: Rewriter, node: Node) -> bool:
    if node.operator != "matmul" or node.inputs[1] in rewriter.constants:
        return False
    return complete_attributes(node).flag("transpose_b")


def _turn(rewriter: Rewriter, node: Node) -> None:
    right = node.inputs[1]
    rank = len(rewriter.types[right].shape)
    order = (*range(rank - 2), rank - 1, rank - 2)
    turned = rewriter.emit("transpose", (right,), {"perm": order}, like=node)
    attributes = {**node.attributes, "transpose_b": False}
    rewriter.emit("matmul", (node.inputs[0], turned), attributes, like=node, output=node.output)
