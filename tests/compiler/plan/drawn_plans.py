"""Draws plans that fit a graph: of all kinds of decisions that there are candidates for."""

from __future__ import annotations

import random
from collections.abc import Iterator

from compiler.errors import PlanError
from compiler.graph.ir import Graph
from compiler.plan.graph_plan import PLAIN, RULES, Decision, GraphPlan, Layout, Spelled
from compiler.plan.graph_sites import GraphSites, graph_sites
from compiler.plan.verify_plan import verify_plan
from compiler.target import Target
from compiler.types.numerics import DEFAULT_NUMERICS, Numerics

MOST_DRAWN = 12
"""Decisions that are tried for a plan."""


def drawn_plan(
    graph: Graph,
    target: Target,
    seed: int,
    numerics: Numerics = DEFAULT_NUMERICS,
) -> GraphPlan:
    """The plan of this seed: decisions one by one, each left out that does not fit those before."""
    rng = random.Random(seed)
    plan = RULES
    candidates = list(candidates_of(graph_sites(graph, target, numerics)))
    rng.shuffle(candidates)
    for decision in candidates[: rng.randint(1, MOST_DRAWN)]:
        try:
            wider = plan.with_decisions(decision)
        except PlanError:
            continue
        if verify_plan(graph, wider, target, numerics) is None:
            plan = wider
    return plan


def candidates_of(sites: GraphSites) -> Iterator[Decision]:
    """Every decision that may be worth something, and some that are not."""
    yield from (Spelled(site.value) for site in sites.patterns)
    yield from (cut.decision for cut in sites.cuts)
    for node in sites.planned.nodes:
        if len(sites.planned.types[node.output].shape) == 4:
            yield Layout(node.output, PLAIN)
