"""Draws plans that fit a graph: of all kinds of decisions that there are candidates for."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.choices.graph_sites import GraphSites, graph_sites, verify_plan
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    PLAIN,
    Chain,
    Decision,
    GraphPlan,
    Layout,
)
from tunefarm.compiler.plan.decisions.plan_names import PlanNames
from tunefarm.compiler.plan.fusion.chain_groups import GroupChains
from tunefarm.compiler.plan.fusion.fuse import fuse
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS, Numerics

MOST_OF_A_KIND = 4
"""Decisions of one kind that are tried for a plan."""
WILD = 2
"""Of each kind, so many about any values."""
BLOCKS = (PLAIN, 4, 8, 16, 32)


def drawn_plan(
    graph: Graph,
    target: Target,
    seed: int,
    numerics: Numerics = DEFAULT_NUMERICS,
) -> GraphPlan:
    """The plan of this seed: decisions one by one, each left out that does not fit those before."""
    rng = random.Random(seed)
    plan = DEFAULT_PLAN
    for decision in _drawn(graph_sites(graph, target, numerics), rng):
        try:
            wider = plan.with_decisions(decision)
        except PlanError:
            continue
        if verify_plan(graph, wider, target, numerics) is None:
            plan = wider
    return plan


def _drawn(sites: GraphSites, rng: random.Random) -> Iterator[Decision]:
    """Some candidates of each kind, in any order."""
    candidates: dict[str, list[Decision]] = {}
    for decision in candidates_of(sites, rng):
        candidates.setdefault(decision.kind, []).append(decision)
    kinds = rng.sample(list(candidates), rng.randint(min(len(candidates), 1), len(candidates)))
    drawn = [
        decision
        for kind in kinds
        for decision in rng.sample(
            candidates[kind], min(len(candidates[kind]), rng.randint(1, MOST_OF_A_KIND))
        )
    ]
    rng.shuffle(drawn)
    yield from drawn


def candidates_of(sites: GraphSites, rng: random.Random) -> Iterator[Decision]:
    """Every decision that may be worth something, and some that are not; layouts are drawn."""
    groups = fuse(sites.optimised)
    names, known = PlanNames(sites.optimised), {node.output for node in sites.planned.nodes}
    chains = GroupChains(sites.optimised, groups)
    for group in groups:
        value = None if group.core is None else names.value(group.core, known)
        if value and group.core and chains.can_join(group.core):
            yield Chain(value)
    usual = rng.choice(BLOCKS)
    for node in sites.planned.nodes:
        shape = sites.planned.types[node.output].shape
        if len(shape) == 4:
            block = rng.choice((usual, usual, rng.choice(BLOCKS), shape[1]))
            yield Layout(node.output, block if block != 1 else PLAIN)
    yield from _wild(sites, rng)


def _wild(sites: GraphSites, rng: random.Random) -> Iterator[Decision]:
    """Decisions of any kind about any values, which few graphs have to fit."""
    values = [*sites.planned.inputs, *(node.output for node in sites.planned.nodes)]
    for _ in range(WILD):
        value = rng.choice(values)
        yield Chain(value)
        yield Layout(value, rng.choice((PLAIN, 2, 3, 16, 100)))
