"""Pass: evaluate nodes whose inputs are all constants."""

from __future__ import annotations

from compiler.graph.ir import Graph, Node
from compiler.graph.rewriter import Rewriter
from compiler.operators.evaluate_node import evaluate_node

# A result that is larger than all its inputs together (expand, tile, pad, a broadcast) is only
# folded up to this size: beyond it, computing it at run time is cheaper than storing it.
GROWTH_LIMIT_BYTES = 1 << 20


def run(graph: Graph) -> Graph:
    """The graph with constant nodes replaced by constants of the same name.

    A node stays when its result exceeds both `GROWTH_LIMIT_BYTES` and the bytes of its inputs.
    """
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if _foldable(rewriter, node):
            inputs = tuple(rewriter.constants[name] if name else None for name in node.inputs)
            rewriter.replace_by_constant(node, evaluate_node(node, inputs))
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _foldable(rewriter: Rewriter, node: Node) -> bool:
    given = [name for name in node.inputs if name]
    if not given or any(name not in rewriter.constants for name in given):
        return False
    input_bytes = sum(rewriter.types[name].bytes for name in given)
    return rewriter.types[node.output].bytes <= max(GROWTH_LIMIT_BYTES, input_bytes)
