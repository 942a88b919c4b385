"""Pass: fold transposes of the last two axes into the matmuls that read them.

    matmul(a, transpose(b))   ->   matmul(a, b, transpose_b)

A matmul packs its operands anyway, in the order that suits its tiles, so that a transpose by a
kernel of its own would move the operand once more. A right operand of one column is read as a row:
both operands are then contiguous along the sum.
"""

from __future__ import annotations

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.node import Node


def run(graph: Graph) -> Graph:
    """The graph without transposes of the last two axes that products alone need."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        resolved = rewriter.resolve(node)
        if resolved.operator == "matmul":
            _fold_transposes(rewriter, resolved)
        else:
            rewriter.keep(resolved)
    return rewriter.finish()


def _fold_transposes(rewriter: Rewriter, node: Node) -> None:
    attributes = complete_attributes(node)
    operands, turned = [], []
    for name, flag in zip(node.inputs, ("transpose_a", "transpose_b"), strict=True):
        before = rewriter.producers.get(name)
        swapped = before is not None and _swaps_last(before)
        operands.append(before.inputs[0] if before is not None and swapped else name)
        turned.append(attributes.flag(flag) != swapped)
    shape = rewriter.types[operands[1]].shape
    if not turned[1] and shape[-1] == 1 and shape[-2] > 1:
        row = {"shape": (*shape[:-2], 1, shape[-2])}
        operands[1] = rewriter.emit("reshape", (operands[1],), row, like=node)
        turned[1] = True
    flags = {**node.attributes, "transpose_a": turned[0], "transpose_b": turned[1]}
    if tuple(operands) == node.inputs:
        rewriter.keep(node)
        return
    rewriter.emit("matmul", tuple(operands), flags, like=node, output=node.output)


def _swaps_last(node: Node) -> bool:
    """A transpose that changes the order of the last two axes alone."""
    if node.operator != "transpose":
        return False
    order = complete_attributes(node).integers("perm")
    rank = len(order)
    return rank >= 2 and order == (*range(rank - 2), rank - 1, rank - 2)
