"""Which convolutions may be merged: those of one image that Winograd has a form for.

They share the transform of their data, which is then computed once; others share loads alone, which
cost little against the arithmetic: merged 1x1 convolutions were measured to take 0.97 to 1.03 of
their time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import consumers
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, operator
from tunefarm.compiler.plan.decisions.graph_plan import Merged
from tunefarm.compiler.plan.fusion.merge_contractions import alike, unmergeable
from tunefarm.compiler.types.node import Node

MOST_CHANNELS = 256
"""Of a branch: one with more keeps the registers busy by itself, whatever it reads."""
_WINDOW = (3, 3)


def merge_candidates(graph: Graph) -> list[Merged]:
    """Sets of results that may be merged, in the order of their first nodes.

    No value is in two of them. `graph` is the one that layouts are chosen for.
    """
    if any(operator(node.operator).lazy for node in graph.nodes):
        return []  # what one branch needs, another may not
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in graph.nodes:
        if has_winograd(graph, node) and node.output not in graph.outputs:
            key = node.inputs[0], repr(alike(graph, node))
            groups.setdefault(key, []).append(node)
    readers = consumers(graph)
    found: list[Merged] = []
    for nodes in groups.values():
        kept = _ordered(nodes, readers)
        if len(kept) > 1 and not unmergeable(graph, kept) and _may_pay(graph, kept):
            found.append(Merged(tuple(node.output for node in kept)))
    return found


def has_winograd(graph: Graph, node: Node) -> bool:
    """Whether the node is a convolution that Winograd has a form for."""
    if node.operator != "conv" or graph.types[node.inputs[1]].shape[2:] != _WINDOW:
        return False
    attributes = complete_attributes(node)
    steps = (*attributes.integers("strides"), *attributes.integers("dilations"))
    return attributes["groups"] == 1 and all(step == 1 for step in steps)


def _may_pay(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether a joint kernel may be faster, and nothing has to be copied behind it."""
    shapes = [graph.types[node.output].shape for node in nodes]
    return shapes[0][0] == 1 and min(shape[1] for shape in shapes) <= MOST_CHANNELS


def _ordered(nodes: Sequence[Node], readers: Mapping[str, Sequence[Node]]) -> list[Node]:
    """The nodes in an order in which concats of their results need no copy.

    What begins a concat comes last, what ends one first; what lies in the middle of one, or would
    need the same place, is left out.
    """
    first: list[Node] = []
    inner: list[Node] = []
    last: list[Node] = []
    for node in nodes:
        places = list(_places_in_concats(node, readers))
        if not places:
            inner.append(node)
        elif places == [(0, False)] and not last:
            last.append(node)
        elif places == [(-1, True)] and not first:
            first.append(node)
    return [*first, *inner, *last]


def _places_in_concats(
    node: Node, readers: Mapping[str, Sequence[Node]]
) -> Iterator[tuple[int, bool]]:
    """Where the value, or what is pointwise made of it, lies in concats.

    (0, False) is the beginning, (-1, True) the end, (1, False) what lies between.
    """
    for reader in readers.get(node.output, ()):
        if operator(reader.operator).pattern is Pattern.ELEMENTWISE:
            yield from _places_in_concats(reader, readers)
        elif reader.operator == "concat" and complete_attributes(reader)["axis"] == 1:
            places = [at for at, name in enumerate(reader.inputs) if name == node.output]
            for at in places:
                is_last = at == len(reader.inputs) - 1
                yield (0, False) if at == 0 else (-1, True) if is_last else (1, False)
