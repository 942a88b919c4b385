"""What can be decided of a model's graph: its patterns, the values before layouts, the cuts."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.pattern_sites import PatternSite
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan, Merged
from tunefarm.compiler.plan.fusion.chain_candidates import ChainCandidate, chain_candidates
from tunefarm.compiler.plan.fusion.fusion_candidates import Cut, fusion_candidates
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.plan.fusion.merge_candidates import merge_candidates
from tunefarm.compiler.plan.optimise import PASS_NAMES, optimise_for, sites_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS, Numerics

BEFORE_LAYOUTS, BEFORE_MERGING = (
    PASS_NAMES[PASS_NAMES.index(name) - 1] for name in ("choose_layouts", "merge_contractions")
)
"""The passes whose results have the values that decisions name."""


@dataclass(frozen=True, slots=True)
class GraphSites:
    """A model's graph under a plan, with what else could be decided of it.

    `planned` is the graph whose values decisions name, before layouts; `optimised` the one that
    kernels are extracted from. `patterns` are what `KeepDecomposed` can keep, `merges` what can run
    as one kernel, `chains` what may be computed in its reader's, whether that is decided or
    not; `cuts` are where `FusionBarrier` could end kernels earlier than they do.
    """

    planned: Graph
    optimised: Graph
    patterns: tuple[PatternSite, ...]
    cuts: tuple[Cut, ...]
    merges: tuple[Merged, ...]
    chains: tuple[ChainCandidate, ...]


def graph_sites(
    graph: Graph,
    target: Target,
    numerics: Numerics = DEFAULT_NUMERICS,
    plan: GraphPlan = DEFAULT_PLAN,
    allowance: ResourceBudget | None = None,
) -> GraphSites:
    """What can be decided of an imported graph. The same graph gives the same, in one order.

    Raises PlanError for a plan that does not fit, and what `optimise` does.
    """
    stages: dict[str, Graph] = {}
    patterns = sites_of(plan)
    optimised = optimise_for(graph, target, stages.__setitem__, allowance, numerics, plan, patterns)
    planned = stages[BEFORE_LAYOUTS]
    known = {node.output for node in planned.nodes}
    cuts = fusion_candidates(optimised, plan, known)
    merges = tuple(merge_candidates(stages[BEFORE_MERGING]))
    kernels = GroupKernels(optimised, numerics.rounds_each)
    chains = chain_candidates(kernels, target, plan, known)
    return GraphSites(planned, optimised, patterns.found, cuts, merges, chains)
