"""Nodes in the order in which they can be converted: some files have them in another one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter

from onnx import GraphProto, NodeProto

from tunefarm.compiler.frontend.tensors import initializers


def in_order(nodes: Sequence[NodeProto]) -> Sequence[NodeProto]:
    """The nodes, each behind those that it reads.

    Nodes that are in order stay where they are, and so do those that read each other in a circle:
    the importer says what is missing.
    """
    makers = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    reads = {
        number: {makers[name] for name in names_read(node) if makers.get(name, number) != number}
        for number, node in enumerate(nodes)
    }
    if all(max(own, default=-1) < number for number, own in reads.items()):
        return nodes
    with suppress(CycleError):
        return [nodes[number] for number in TopologicalSorter(reads).static_order()]
    return nodes


def names_read(node: NodeProto) -> Iterator[str]:
    """The names that a node reads, those of graphs inside it among them."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from _read_by_graph(graph)


def _read_by_graph(graph: GraphProto) -> Iterable[str]:
    own: Collection[str] = {
        *(info.name for info in graph.input),
        *initializers(graph),
        *(name for node in graph.node for name in node.output),
    }
    inside = (name for node in graph.node for name in names_read(node))
    outputs = (info.name for info in graph.output)
    return [name for name in (*inside, *outputs) if name not in own]
