"""Pass: each reader that can widen integers for itself has a dequantize of its own.

    a = f(dequantize(q)); b = g(dequantize(q))   with one dequantize   ->   with two of them

So the 8 bits are stored and read, and the floats that they stand for, four times as long, are not.
Readers that take nothing into their kernels (contractions, what reads its data several times) share
the one that was there.
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter, use_counts
from tunefarm.compiler.operators.registry import Pattern, operator, passes_over_data
from tunefarm.compiler.types.node import Node


def run(graph: Graph) -> Graph:
    """The graph with dequantize nodes repeated for pointwise readers and single reductions."""
    uses = use_counts(graph)
    shared = {
        node.output: node
        for node in graph.nodes
        if node.operator == "dequantize"
        and uses[node.output] > 1
        and node.inputs[0] not in graph.constants
    }
    if not shared:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if not _widens(node):
            rewriter.keep(node)
            continue
        own: dict[str, str] = {}
        for name in node.inputs:
            if name in shared and name not in own and uses[name] > 1:
                uses[name] -= node.inputs.count(name)
                source = shared[name]
                if uses[name]:  # the last one takes that which is there
                    own[name] = rewriter.emit(
                        source.operator, source.inputs, source.attributes, like=source
                    )
        rewriter.keep(replace(node, inputs=tuple(own.get(name, name) for name in node.inputs)))
    return rewriter.finish()


def _widens(node: Node) -> bool:
    """Does the node's kernel compute pointwise operands for itself?"""
    pattern = operator(node.operator).pattern
    if pattern is Pattern.ELEMENTWISE:
        return True
    return pattern is Pattern.REDUCTION and passes_over_data(node) == 1
