"""Where kernels that fusion makes could end earlier: candidates for `FusionBarrier`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import consumers
from tunefarm.compiler.operators.registry import Pattern, operator
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, FusionBarrier, GraphPlan
from tunefarm.compiler.plan.decisions.plan_names import PlanNames
from tunefarm.compiler.plan.fusion.fuse import Group, fuse
from tunefarm.compiler.types.node import Node

Readers: TypeAlias = Mapping[str, Sequence[Node]]
"""The nodes that read each value."""
LONG = 6
"""Nodes of a group without a core that is worth a cut in the middle."""


class Edge(Enum):
    """What would be cut off."""

    EPILOGUE = "epilogue"  # what lies behind a contraction, pool or reduction
    OPERAND = "operand"  # what is computed in an epilogue besides
    PROLOGUE = "prologue"  # what a reduction computes as it reads
    POINTWISE = "pointwise"  # half of a long group without a core


@dataclass(frozen=True, slots=True)
class Cut:
    """Behind `value` a kernel could end: `before` are the operators of it, `after` the others.

    `bytes` are those of the value, which would be written and read again.
    """

    value: str
    edge: Edge
    before: tuple[str, ...]
    after: tuple[str, ...]
    bytes: int

    @property
    def decision(self) -> FusionBarrier:
        """What cuts here."""
        return FusionBarrier(self.value)

    def __str__(self) -> str:
        return f"{' '.join(self.before)} | {' '.join(self.after)}"


def fusion_candidates(
    graph: Graph, plan: GraphPlan = DEFAULT_PLAN, known: Collection[str] | None = None
) -> tuple[Cut, ...]:
    """The cuts inside of the kernels that `fuse` makes of an optimised graph, in graph order.

    `known` are the values that decisions can name, those of the graph before layouts; without them
    all that have a name here count. Raises PlanError for a plan that does not fit.
    """
    names, readers = PlanNames(graph), consumers(graph)
    found = set(graph.types) if known is None else set(known)
    cuts: list[Cut] = []
    for group in fuse(graph, plan=plan):
        for node, edge in _edges(readers, group):
            value = names.value(node, found)
            if value is None or names.stored(value) == group.output:
                continue
            cuts.append(_cut(graph, group, node, value, edge))
    return tuple(cuts)


def _edges(readers: Readers, group: Group) -> Iterator[tuple[Node, Edge]]:
    """The nodes of a group behind which it could end, and what for."""
    if len(group.nodes) < 2:
        return
    if group.core is None:
        if len(group.nodes) >= LONG:
            yield from _middle(readers, group)
        return
    behind = _reached(group, group.core)
    operands = {name for node in group.nodes if node.output in behind for name in node.inputs}
    for node in group.nodes:
        if node is group.core and behind:
            yield node, Edge.EPILOGUE
        elif node is group.core or node.output in behind:
            continue
        elif node.output in group.core.inputs:
            yield node, Edge.PROLOGUE
        elif node.output in operands:
            yield node, Edge.OPERAND


def _middle(readers: Readers, group: Group) -> Iterator[tuple[Node, Edge]]:
    """The node nearest to the middle of a group behind which nothing else of it is needed."""
    narrow: list[int] = []
    inside: set[str] = set()
    for position, node in enumerate(group.nodes[:-1]):
        inside.add(node.output)
        open_values = [
            name for name in inside if any(r.output not in inside for r in readers.get(name, ()))
        ]
        moves = operator(node.operator).pattern is Pattern.INJECTIVE
        if open_values == [node.output] and not moves:
            narrow.append(position)
    if narrow:
        half = (len(group.nodes) - 1) / 2
        yield group.nodes[min(narrow, key=lambda at: abs(at + 0.5 - half))], Edge.POINTWISE


def _reached(group: Group, start: Node) -> frozenset[str]:
    """The values of a group that depend on one of its nodes, without that node's own."""
    reached = {start.output}
    for node in group.nodes:
        if reached.intersection(node.inputs):
            reached.add(node.output)
    return frozenset(reached - {start.output})


def _cut(graph: Graph, group: Group, node: Node, value: str, edge: Edge) -> Cut:
    made = {node.output}
    for member in reversed(group.nodes):
        if member.output in made:
            made.update(member.inputs)
    before = tuple(member.operator for member in group.nodes if member.output in made)
    after = tuple(member.operator for member in group.nodes if member.output not in made)
    return Cut(value, edge, before, after, graph.types[node.output].bytes)
