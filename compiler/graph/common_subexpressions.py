"""Pass: compute equal things once."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

from compiler.graph.ir import Graph
from compiler.graph.rewriter import Rewriter
from compiler.graph.serialize import attributes_to_json
from compiler.operators.registry import complete_attributes
from compiler.types.tensor_type import Array, bytes_of


def run(graph: Graph) -> Graph:
    """The graph with equal constants merged, and equal operators on equal inputs merged.

    Constants are equal when type and bytes are (so 0.0 and -0.0 differ); attributes are compared
    with their defaults filled in.
    """
    rewriter = Rewriter(graph)
    constants: dict[Hashable, str] = {}
    for name, array in graph.constants.items():
        first = constants.setdefault(_contents(array), name)
        if first != name:
            rewriter.forward(name, first)
    seen: dict[Hashable, str] = {}
    for node in graph.nodes:
        resolved = rewriter.resolve(node)
        attributes = repr(attributes_to_json(complete_attributes(node)))
        key = (resolved.operator, resolved.inputs, attributes)
        if key in seen:
            rewriter.forward(node.output, seen[key])
        else:
            seen[key] = rewriter.keep(node)
    return rewriter.finish()


def _contents(array: Array) -> Hashable:
    digest = hashlib.sha256(bytes_of(array)).digest()
    return str(array.dtype), array.shape, digest
