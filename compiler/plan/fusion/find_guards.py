"""Which kernels of a program need not run, because nobody takes what they compute.

What is read by a `choose` alone, on one of its sides, is needed only where its condition has that
side taken; and so is what is read by that alone. So a branch of the model is whatever computes one
side, without being marked as such in the graph: passes are free to move nodes, and what both sides
or others need always runs. What runs once, before a loop, cannot wait for a condition that is
computed in the loop's steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.loop_regions import Loops, loop_regions
from tunefarm.compiler.kernels.kernel import Guard
from tunefarm.compiler.operators.registry import operator
from tunefarm.compiler.plan.fusion.fuse import Group

Guards = tuple[Guard, ...]


def find_guards(graph: Graph, groups: Sequence[Group]) -> dict[str, Guards]:
    """The guards of every group that has any, by its output; the outermost condition first."""
    needs: dict[str, Guards] = dict.fromkeys(graph.outputs, ())
    loops = loop_regions(graph)

    def need(value: str, path: Guards) -> None:
        path = _known_before(path, loops.get(value, ()), loops)
        needs[value] = _common(needs[value], path) if value in needs else path

    guarded: dict[str, Guards] = {}
    for group in reversed(groups):
        path = needs.get(group.output, ())
        if path:
            guarded[group.output] = path
        inside = {node.output for node in group.nodes}
        for node in group.nodes:
            sides = operator(node.operator).lazy and node.inputs[0] not in graph.constants
            for position, name in enumerate(node.inputs):
                if not name or name in inside:
                    continue
                if sides and position:
                    need(name, (*path, Guard(node.inputs[0], position == 1)))
                else:
                    need(name, path)
    return guarded


def _known_before(path: Guards, inside: Loops, loops: Mapping[str, Loops]) -> Guards:
    """The first guards of a path, as many as are known to what lies in these loops only."""
    for count, guard in enumerate(path):
        if not set(loops.get(guard.value, ())) <= set(inside):
            return path[:count]
    return path


def common_guards(paths: Sequence[Guards]) -> Guards:
    """What all of these paths, one at least, have in common from the start."""
    return reduce(_common, paths)


def _common(one: Guards, other: Guards) -> Guards:
    """What two paths have in common from the start."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return one[:count]


def conditions_first(groups: Sequence[Group], guarded: Mapping[str, Guards]) -> list[Group]:
    """The groups in an order in which conditions are known before what they guard.

    It is the given one where that will do. A condition depends on nothing that it guards, as that
    would be needed whatever the condition is.
    """
    makers = {node.output: group for group in groups for node in group.nodes}
    ordered: dict[str, Group] = {}
    for first in groups:
        work = [first]
        while work:
            group = work[-1]
            conditions = [guard.value for guard in guarded.get(group.output, ())]
            read = [name for node in group.nodes for name in node.inputs]
            waiting = [
                maker
                for name in (*read, *conditions)
                if (maker := makers.get(name)) is not None
                and maker is not group
                and maker.output not in ordered
            ]
            if waiting:
                work += waiting[:1]
                continue
            work.pop()
            ordered.setdefault(group.output, group)
    return list(ordered.values())
