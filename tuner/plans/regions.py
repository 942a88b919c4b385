"""The regions of a plan: decisions that belong together, and what each is expected to gain.

A region of layouts are connected values of one layout; a region of chains are those of one kernel;
a merge, a cut and a spelled pattern are one each. Regions that change the same kernels for the same
others, as repeated blocks of a network do, are one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.choices.graph_sites import GraphSites
from tunefarm.compiler.plan.choices.layout_problem import layout_name
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    Chain,
    Decision,
    FusionBarrier,
    GraphPlan,
    Layout,
    Merged,
)
from tunefarm.tuner.plans.model_values import ModelValues, without
from tunefarm.tuner.plans.programs import PlannedProgram, Programs
from tunefarm.tuner.records.plan_region import PlanRegion


def regions_of(
    programs: Programs,
    plan: GraphPlan,
    seconds: Callable[[PlannedProgram], float],
    values: ModelValues,
    base: GraphPlan = DEFAULT_PLAN,
) -> list[PlanRegion]:
    """The regions of a plan on top of its base, those that are expected to gain most first.

    `seconds` is what the kernels of a program take together. Decisions that change nothing are in
    no region. Raises PlanError for a plan that does not fit.
    """
    whole, found = programs.of(plan), programs.sites(plan)
    alike: dict[object, list[Decision]] = {}
    gains: dict[object, float] = {}
    own = GraphPlan(tuple(set(plan.decisions) - set(base.decisions)))
    for number, group in enumerate(_groups(found, own, values)):
        rest = programs.fitting(without(plan, group, base))
        if rest is None:
            group = _with_dependents(plan, group)
            rest = programs.fitting(without(plan, group, base))
        if rest is not None and rest.is_same(whole):
            continue
        key: object = number if rest is None else _difference(whole, rest)
        alike.setdefault(key, []).extend(group.decisions)
        gain = 0.0 if rest is None else _gain(seconds(whole), seconds(rest))
        gains[key] = gains.get(key, 0.0) + gain
    made = [
        PlanRegion(region, values.described(region), _rival(region, base, values), gains[key])
        for key, decisions in alike.items()
        for region in (GraphPlan(tuple(decisions)),)
    ]
    return sorted(made, key=lambda region: -region.expected)


def _gain(seconds: float, before: float) -> float:
    return 1.0 - seconds / before if math.isfinite(seconds) and 0.0 < before < math.inf else 0.0


def _difference(whole: PlannedProgram, rest: PlannedProgram) -> tuple[tuple[str, int], ...]:
    """The kernels' calls that come with a region (above 0) and go (below)."""
    keys = sorted({*whole.calls, *rest.calls})
    changes = ((key, whole.calls.get(key, 0) - rest.calls.get(key, 0)) for key in keys)
    return tuple((key, change) for key, change in changes if change)


def _with_dependents(plan: GraphPlan, group: GraphPlan) -> GraphPlan:
    """The decisions with what else is decided of their values: chains need blocks, for one."""
    values = {item.value for item in group.of(Layout)}
    others: list[Decision] = [item for item in plan.of(Chain) if item.value in values]
    others += [item for item in plan.of(FusionBarrier) if item.value in values]
    others += [item for item in plan.of(Merged) if values & set(item.values)]
    return GraphPlan((*group.decisions, *others))


def _groups(found: GraphSites, own: GraphPlan, values: ModelValues) -> list[GraphPlan]:
    """Decisions that belong together, in the order of a plan."""
    joined = _Joined({item: item for item in own.decisions})
    for data, result in _neighbours(found.planned, {item.value: item for item in own.of(Layout)}):
        if data.block == result.block or (values.is_last(data) and values.is_last(result)):
            joined.join(data, result)
    for candidate in found.chains:
        if set(own.decisions).issuperset(candidate.chains):
            for item in candidate.chains[1:]:
                joined.join(candidate.chains[0], item)
    return joined.groups()


def _neighbours(graph: Graph, layouts: dict[str, Layout]) -> Iterable[tuple[Layout, Layout]]:
    """What is decided of the data and of the result of nodes."""
    for node in graph.nodes:
        for name in node.inputs:
            if name in layouts and node.output in layouts:
                yield layouts[name], layouts[node.output]


@dataclass(slots=True)
class _Joined:
    """Decisions and who stands for them (union-find)."""

    parent: dict[Decision, Decision]

    def _find(self, item: Decision) -> Decision:
        while self.parent[item] != item:
            self.parent[item] = self.parent[self.parent[item]]
            item = self.parent[item]
        return item

    def join(self, one: Decision, other: Decision) -> None:
        self.parent[self._find(other)] = self._find(one)

    def groups(self) -> list[GraphPlan]:
        found: dict[Decision, list[Decision]] = {}
        for item in self.parent:
            found.setdefault(self._find(item), []).append(item)
        return [GraphPlan(tuple(items)) for items in found.values()]


def _rival(region: GraphPlan, base: GraphPlan, values: ModelValues) -> str:
    """What the model has without the region."""
    kinds = {item.kind for item in region.decisions}
    if kinds <= {Chain.kind, Merged.kind}:
        return "apart"
    if kinds == {FusionBarrier.kind}:
        return "fused"
    if kinds == {Layout.kind} and base == DEFAULT_PLAN:
        return _ruled(region.of(Layout), values)
    return "without it" if len(region.decisions) == 1 else "without them"


def _ruled(layouts: Iterable[Layout], values: ModelValues) -> str:
    """How values lie by the rules where these choose otherwise."""
    blocks = {values.by_rules.get(item.value) for item in layouts if not values.is_ruled(item)}
    block = blocks.pop() if len(blocks) == 1 else None
    if block is None:
        return "the rules' layouts"
    return layout_name(block) if block else "plain"
