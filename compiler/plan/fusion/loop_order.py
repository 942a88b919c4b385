"""The groups of a graph with loops, in an order in which the steps of each loop stand together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.loop_regions import is_loop, loop_of, loop_regions
from tunefarm.compiler.operators.loop import INDEX, RESULT
from tunefarm.compiler.plan.fusion.fuse import Group
from tunefarm.compiler.types.node import Node


@dataclass(slots=True)
class LoopNodes:
    """The nodes where one loop begins and ends, what reads them apart."""

    number: int
    states: dict[int, Node] = field(default_factory=dict)  # by their number
    index: Node | None = None
    results: dict[int, Node] = field(default_factory=dict)  # by their number

    @property
    def result(self) -> Node:
        """One of the results, which all have the same operands."""
        return next(iter(self.results.values()))


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a loop begins, or ends."""

    loop: LoopNodes
    begins: bool


def loop_order(graph: Graph, groups: Sequence[Group]) -> Iterator[Group | Bound]:
    """The groups, without the loops' own nodes, between the bounds of the loops they lie in.

    They stay in their order but that a loop runs as a whole where its first result stands: all
    that it depends on comes before that.
    """
    regions = loop_regions(graph)
    loops: dict[int, LoopNodes] = {}
    for group in groups:
        if is_loop(group.nodes[0]):
            _add(loops, group.nodes[0])
    units: dict[int | None, list[Group | LoopNodes]] = {None: []}
    placed: set[int] = set()
    for group in groups:
        first = group.nodes[0]
        inside = regions.get(group.output, ())
        region = inside[-1] if inside else None
        if not is_loop(first):
            units.setdefault(region, []).append(group)
        elif first.operator == RESULT and loop_of(first) not in placed:
            placed.add(loop_of(first))
            units.setdefault(region, []).append(loops[loop_of(first)])
    yield from _unrolled(units, None)


def _unrolled(
    units: dict[int | None, list[Group | LoopNodes]], region: int | None
) -> Iterator[Group | Bound]:
    for unit in units.get(region, ()):
        if isinstance(unit, Group):
            yield unit
            continue
        yield Bound(unit, True)
        yield from _unrolled(units, unit.number)
        yield Bound(unit, False)


def _add(loops: dict[int, LoopNodes], node: Node) -> None:
    found = loops.setdefault(loop_of(node), LoopNodes(loop_of(node)))
    if node.operator == INDEX:
        found.index = node
        return
    number = node.attributes["number"]
    assert isinstance(number, int)
    (found.results if node.operator == RESULT else found.states)[number] = node
