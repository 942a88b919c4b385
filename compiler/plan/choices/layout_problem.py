"""Layouts as a problem of choice: which class of values lies in which blocks.

    conv1  NCHW  NCHW16c  NCHW24c        a variable and its candidates; costs: its nodes, and what
                                         they ask to be converted
    conv1, conv2                         a pair, where a convolution reads one class and gives the
                                         other: costs [candidates of one, candidates of the other]

Costs are seconds of one run. Kernels are asked for once, however many layers and candidates have
them. What several readers ask of a value is converted once, if all of them are in one class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import consumers
from tunefarm.compiler.operators.registry import Pattern
from tunefarm.compiler.plan.choices.layout_costs import AskedKernel, LayoutCosts, Seconds
from tunefarm.compiler.plan.choices.solver import ChoiceProblem, Costs
from tunefarm.compiler.plan.decisions.graph_plan import PLAIN, Layout
from tunefarm.compiler.plan.fusion.fuse import Group, fuse
from tunefarm.compiler.plan.layouts.choose_layouts import forms_by_rules
from tunefarm.compiler.plan.layouts.layout_classes import LayoutClass, layout_classes


def layout_name(block: int) -> str:
    """What a layout is called: NCHW, NCHW16c."""
    return f"NCHW{block}c" if block else "NCHW"


@dataclass(frozen=True, slots=True)
class LayoutProblem:
    """A problem whose variables are classes of values, called by their first one.

    `by_rules` is what the rules choose, where the candidates have it. `asked` are the kernels that
    the costs are sums of, by workload key: those that a tuner may measure.
    """

    problem: ChoiceProblem
    classes: tuple[LayoutClass, ...]
    by_rules: Mapping[str, str]
    asked: Mapping[str, AskedKernel]

    def decisions(self, chosen: Mapping[str, str]) -> tuple[Layout, ...]:
        """What a choice of candidates by variable decides, of each value of each class."""
        return tuple(
            Layout(value, block)
            for each in self.classes
            for block in each.blocks
            if layout_name(block) == chosen[each.name]
            for value in each.values
        )


def layout_problem(graph: Graph, lanes: int, seconds: Seconds) -> LayoutProblem:
    """The layouts of a graph as it is before they are chosen, for vectors of so many f32 lanes.

    `seconds` is asked what kernels cost.
    """
    return _Builder(graph, lanes, seconds).build(fuse(graph))


class _Builder:
    def __init__(self, graph: Graph, lanes: int, seconds: Seconds) -> None:
        self.graph = graph
        self.lanes = lanes
        self.costs = LayoutCosts(graph, lanes, seconds)
        self.classes = layout_classes(graph, lanes)
        self.number = {value: at for at, each in enumerate(self.classes) for value in each.values}
        self.tables: dict[tuple[int, ...], Costs] = {
            (at,): np.zeros(len(each.blocks)) for at, each in enumerate(self.classes)
        }
        self.free: dict[str, Group] = {}  # by a result that has one reader
        self.converted: set[tuple[str, int, tuple[tuple[int, int], ...]]] = set()

    def build(self, groups: Sequence[Group]) -> LayoutProblem:
        self.free = _free_groups(self.graph, groups)
        for name in self.graph.outputs:
            if name in self.number:
                self._convert_output(name)
        # What is needed plain whatever its readers' classes choose is known before pairs are.
        for group in sorted(groups, key=lambda group: len(self._scope(group)[0])):
            self._add(group)
        names = [each.name for each in self.classes]
        costs = {
            each.name: dict(zip(map(layout_name, each.blocks), self.tables[at,], strict=True))
            for at, each in enumerate(self.classes)
        }
        pairs = [
            (names[scope[0]], names[scope[1]], table)
            for scope, table in self.tables.items()
            if len(scope) == 2
        ]
        return LayoutProblem(
            ChoiceProblem.of(costs, pairs), self.classes, self._by_rules(), self.costs.asked
        )

    def _by_rules(self) -> dict[str, str]:
        forms = forms_by_rules(self.graph, self.lanes).forms
        chosen = {}
        for each in self.classes:
            block = forms[each.name].gives if each.name in forms else PLAIN
            chosen[each.name] = layout_name(block if block in each.blocks else PLAIN)
        return chosen

    def _scope(self, group: Group) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The classes that a group's cost depends on, and others that it should lie like."""
        given = [node.output for node in group.nodes]
        read = [name for node in group.nodes for name in node.inputs if name not in given]
        results = dict.fromkeys(self.number[name] for name in given if name in self.number)
        operands = dict.fromkeys(self.number[name] for name in read if name in self.number)
        first = [*results][-1:] + [at for at in operands if at not in results]
        rest = [at for at in results if at not in first]
        together = tuple(dict.fromkeys((*first, *rest)))
        return tuple(sorted(together[:2])), together[2:]

    def _add(self, group: Group) -> None:
        scope, others = self._scope(group)
        if not scope:
            return
        for other in others:
            self._tie(other, scope[-1], group)
        choices = [range(len(self.classes[at].blocks)) for at in scope]
        for chosen in product(*choices):
            blocks = {at: self.classes[at].blocks[n] for at, n in zip(scope, chosen, strict=True)}
            lying = blocks | dict.fromkeys(others, blocks[scope[-1]])
            own = self._values(group, lying)
            cost = self.costs.group(group, own)
            total = cost.seconds
            before = dict(own)
            for name, after in cost.conversions:
                total += self._conversion(name, before.get(name, PLAIN), after, blocks)
                before[name] = after
            self._table(scope)[chosen] += total

    def _values(self, group: Group, blocks: Mapping[int, int]) -> dict[str, int]:
        """The blocks of what the group reads and gives."""
        names = dict.fromkeys(
            name for node in group.nodes for name in (*node.inputs, node.output) if name
        )
        return {
            name: blocks[self.number[name]] for name in names if self.number.get(name) in blocks
        }

    def _conversion(self, name: str, before: int, after: int, blocks: Mapping[int, int]) -> float:
        """What a conversion costs that readers of these classes ask for; 0 if it is made already.

        Everybody shares a plain form that is needed whatever the readers' classes choose.
        """
        own = self.number.get(name)
        alone = () if own is None else ((own, before),)
        readers = tuple((at, block) for at, block in blocks.items())
        if (name, after, alone) in self.converted or (name, after, readers) in self.converted:
            return 0.0
        self.converted.add((name, after, readers))
        return self._turned(name, before, after)

    def _turned(self, name: str, before: int, after: int) -> float:
        """The seconds of a conversion, which a pointwise group before it does on the way."""
        group, at = self.free.get(name), self.number.get(name)
        made = None
        if group is not None and at is not None and before:
            made = group, self._values(group, {at: before})
        return self.costs.conversion(self.graph.types[name], before, after, made)

    def _convert_output(self, name: str) -> None:
        at = self.number[name]
        for n, block in enumerate(self.classes[at].blocks):
            self.converted.add((name, PLAIN, ((at, block),)))
            self.tables[at,][n] += self._turned(name, block, PLAIN)

    def _tie(self, other: int, to: int, group: Group) -> None:
        """The costs of bringing what a group reads of one class to the layout of another."""
        names = {name for node in group.nodes for name in node.inputs}
        for name in sorted(names & set(self.classes[other].values)):
            type = self.graph.types[name]
            table = np.array(
                [
                    [self.costs.conversion(type, own, block) for block in self.classes[to].blocks]
                    for own in self.classes[other].blocks
                ]
            )
            scope = (other, to)
            if other > to:
                scope, table = (to, other), table.T
            self._table(scope)[...] += table

    def _table(self, scope: tuple[int, ...]) -> Costs:
        shape = tuple(len(self.classes[at].blocks) for at in scope)
        return self.tables.setdefault(scope, np.zeros(shape))


def _free_groups(graph: Graph, groups: Sequence[Group]) -> dict[str, Group]:
    """Groups of pointwise nodes by their results, of those that are read once."""
    readers = consumers(graph)
    return {
        group.output: group
        for group in groups
        if group.core is None and group.pattern in (Pattern.ELEMENTWISE, Pattern.INJECTIVE)
        if len(readers.get(group.output, [])) + (group.output in graph.outputs) == 1
    }
