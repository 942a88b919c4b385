"""Pass: drop nodes, constants and types that no output needs."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.node import Node


def run(graph: Graph) -> Graph:
    """The graph without what does not reach an output; inputs stay, used or not."""
    needed = set(graph.outputs)
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if node.output in needed:
            nodes.append(node)
            needed.update(name for name in node.inputs if name)
    needed.update(graph.inputs)
    return replace(
        graph,
        nodes=tuple(reversed(nodes)),
        types={name: type for name, type in graph.types.items() if name in needed},
        constants={name: array for name, array in graph.constants.items() if name in needed},
        unread={name: dims for name, dims in graph.unread.items() if name in needed},
        zeros={name: dims for name, dims in graph.zeros.items() if name in needed},
    )
