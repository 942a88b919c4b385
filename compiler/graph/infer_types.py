"""Pass: infer every node's type anew from the types of inputs and constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.printer import format_graph, format_node
from tunefarm.compiler.operators.registry import infer_type
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import TensorType


def node_type(node: Node, types: Mapping[str, TensorType]) -> TensorType:
    """The type of the node's output; `ShapeError` when the inputs' types do not fit."""
    return infer_type(node, tuple(types[name] if name else None for name in node.inputs))


def same_types(
    node: Node, types: Mapping[str, TensorType], others: Mapping[str, TensorType]
) -> bool:
    """Whether the node's output and inputs have types in both mappings, and the same ones."""
    for name in (node.output, *node.inputs):
        if name:
            type, other = types.get(name), others.get(name)
            if other is None or (type is not other and type != other):
                return False
    return True


def run(graph: Graph) -> Graph:
    """The graph with inferred types.

    A type that is declared already is checked: `VerifyError` when it is another one.
    """
    types = {name: graph.types[name] for name in (*graph.inputs, *graph.constants)}
    for node in graph.nodes:
        inferred = node_type(node, types)
        declared = graph.types.get(node.output, inferred)
        if inferred != declared:
            raise VerifyError(
                f"{format_node(node)}: declared {declared}, but it is {inferred}",
                program=format_graph(graph),
            )
        types[node.output] = inferred
    return replace(graph, types=types)
