"""Pass: move fills of padding to where they fuse with the kernel that makes the value.

    c = conv(fill(x)); a = add(x, c)              ->    f = fill(x); c = conv(f); a = add(f, c)
    f = fill(x); c = conv(f); m = sum(f)          ->    f = fill(x); c = conv(f); m = sum(fill(f))

A fill whose value has no other reader becomes part of the kernel that makes the value, so that no
pass over memory is made for it. A reduction over whole axes keeps a fill of its own: it marks where
the axes end, and the reduction stops there. Padding that holds zeros already needs no fill.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from tunefarm.compiler.graph import dead_code
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter, consumers
from tunefarm.compiler.operators.registry import complete_attributes, operator, passes_over_data
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import is_unpadded


def run(graph: Graph) -> Graph:
    """The graph with fills behind what they fill, all other readers of which read them too."""
    if not any(_is_fill(node, graph) for node in graph.nodes):
        return graph
    rewriter = Rewriter(graph)
    readers = consumers(graph)
    fills = {node.output: node for node in graph.nodes if _is_fill(node, graph)}
    placed: set[str] = set()
    known = {*graph.inputs, *graph.constants}

    def place(value: str) -> None:
        """Put the fills that windows read of a value behind it, and have all read the last one."""
        chain = _chain(value, readers, fills, graph)
        chain = list(takewhile(lambda node: known >= set(node.inputs[1:]), chain))
        chain = _shared(chain, readers, graph)
        for node in chain:
            rewriter.keep(node)
        for name in (value, *(node.output for node in chain[:-1])):
            if chain:
                rewriter.forward(name, chain[-1].output)
        placed.update(node.output for node in chain)

    for name in graph.inputs:
        place(name)
    for node in graph.nodes:
        known.add(node.output)
        if node.output in placed:
            continue
        if folds(node) and node.inputs[0] in fills:
            rewriter.keep(_with_own_fills(node, fills, rewriter))
            continue
        rewriter.keep(node)
        place(node.output)
    return dead_code.run(rewriter.finish())


def folds(node: Node) -> bool:
    """Whether a node folds whole axes that it reads once, or reads whole rows."""
    definition = operator(node.operator)
    return definition.reads_rows or (definition.folds_axes and passes_over_data(node) == 1)


def _is_fill(node: Node, graph: Graph) -> bool:
    """Whether a node fills what lies behind one of the model's sizes, or one that it computes."""
    return node.operator == "fill" and node.inputs[1] in {*graph.inputs, *graph.outputs}


def _chain(
    value: str, readers: dict[str, list[Node]], fills: dict[str, Node], graph: Graph
) -> list[Node]:
    """Fills of a value with one content, one behind the other; an output keeps its own name."""
    chain: list[Node] = []
    while value not in graph.outputs:
        found = [node for node in readers.get(value, ()) if node.output in fills]
        same = [
            node
            for node in found
            if node.inputs[0] == value
            and (not chain or _content(node) == _content(chain[0]))
            and not _ends_zeros(node, graph)
        ]
        if not same:
            return chain
        chain.append(same[0])
        value = same[0].output
    return chain


def _content(node: Node) -> tuple[object, ...]:
    return complete_attributes(node)["value"], *node.inputs[2:]


def _ends_zeros(node: Node, graph: Graph) -> bool:
    """Whether the fill puts something else where its operand is known to hold 0."""
    known = graph.zeros.get(node.inputs[0])
    axis = complete_attributes(node).integer("axis")
    return known is not None and not is_unpadded(known[axis]) and _content(node) != ("zero",)


def _shared(chain: list[Node], readers: dict[str, list[Node]], graph: Graph) -> list[Node]:
    """The fills up to the last one that something else reads than what folds axes."""
    inside = {node.output for node in chain}
    while chain:
        others = [r for r in readers.get(chain[-1].output, ()) if r.output not in inside]
        if chain[-1].output in graph.outputs or not all(map(folds, others)):
            return chain
        chain = chain[:-1]
    return chain


def _with_own_fills(node: Node, fills: dict[str, Node], rewriter: Rewriter) -> Node:
    """The node, reading what no other reads of its fills."""
    own: list[Node] = []
    source = node.inputs[0]
    while source in fills:
        own.insert(0, fills[source])
        source = fills[source].inputs[0]
    for fill in own:
        inputs = (source, *fill.inputs[1:])
        source = rewriter.emit(fill.operator, inputs, fill.attributes, like=fill)
    return replace(node, inputs=(source, *node.inputs[1:]))
