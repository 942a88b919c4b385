"""Which values are computed anew in each step of a loop: those that depend on where it stands.

Nothing marks the nodes of a loop's body. What depends on the loop's states or on the number of its
step is computed in each of them, everything else once: so what is the same in all steps needs no
pass to be moved out, and passes are free to rewrite nodes within and without.
"""

from __future__ import annotations

from collections.abc import Mapping

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.operators.loop import RESULT
from tunefarm.compiler.operators.registry import Pattern, operator
from tunefarm.compiler.types.node import Node

Loops = tuple[int, ...]
"""The loops that something lies in, the outermost first."""


def loop_regions(graph: Graph) -> Mapping[str, Loops]:
    """The loops that each node's result lies in, by its name; nothing of those in none."""
    if not any(is_loop(node) for node in graph.nodes):
        return {}
    around: dict[int, frozenset[int]] = {}  # the loops that a loop lies in
    while True:
        members = _members(graph, around)
        found: dict[int, frozenset[int]] = {}
        for node in graph.nodes:
            if node.operator == RESULT:
                found[loop_of(node)] = members.get(node.output, frozenset())
        if found == around:
            break
        around = found
    return {
        name: tuple(sorted(loops, key=lambda loop: (len(around.get(loop, ())), loop)))
        for name, loops in members.items()
    }


def _members(graph: Graph, around: Mapping[int, frozenset[int]]) -> dict[str, frozenset[int]]:
    """The loops whose steps each result depends on, and those around them."""
    members: dict[str, frozenset[int]] = {}
    for node in graph.nodes:
        loops: frozenset[int] = frozenset().union(
            *(members[name] for name in node.inputs if name in members)
        )
        if node.operator == RESULT:
            loops -= {loop_of(node)}
        elif is_loop(node):
            loops |= {loop_of(node)} | around.get(loop_of(node), frozenset())
        if loops:
            members[node.output] = loops
    return members


def _needed(graph: Graph) -> set[str]:
    """The values that outputs depend on."""
    needed = set(graph.outputs)
    for node in reversed(graph.nodes):
        if node.output in needed:
            needed.update(node.inputs)
    return needed


def is_loop(node: Node) -> bool:
    """Whether the node is where a loop begins or ends."""
    return operator(node.operator).pattern is Pattern.LOOP


def loop_of(node: Node) -> int:
    """The loop that the node is a bound of."""
    loop = node.attributes["loop"]
    assert isinstance(loop, int)
    return loop


def region_problem(graph: Graph) -> str:
    """Why loops are wrong, or nothing: loops lie within each other, and none is left half way."""
    regions = loop_regions(graph)
    for name in graph.outputs:
        if regions.get(name):
            return f"output {name} is known within a loop only"
    if not regions:
        return ""
    ends = {loop_of(node): node for node in graph.nodes if node.operator == RESULT}
    around = {loop: set(regions.get(node.output, ())) for loop, node in ends.items()}
    needed = _needed(graph)
    for name, loops in regions.items():
        if name not in needed:
            continue  # what nobody reads yet is between loops, or nowhere
        for inner, outer in zip(loops[1:], loops[:-1], strict=True):
            if inner in ends and outer not in around[inner]:
                return f"{name} lies in two loops, none of which lies in the other"
    for node in graph.nodes:
        if node.operator == RESULT:
            first = ends[loop_of(node)]
            if node.inputs != first.inputs:
                return (
                    f"{node.output} and {first.output} are of one loop, but not of the same values"
                )
    return ""
