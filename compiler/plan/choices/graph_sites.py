"""What can be decided of a model's graph: the values before layouts, and chains.

And whether a plan is legal: do all of its decisions fit the graph?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    Chain,
    GraphPlan,
)
from tunefarm.compiler.plan.fusion.chain_candidates import ChainCandidate, chain_candidates
from tunefarm.compiler.plan.fusion.chain_groups import chain_groups
from tunefarm.compiler.plan.fusion.fuse import fuse
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.plan.optimise import PASS_NAMES, optimise_for
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS, Numerics

BEFORE_LAYOUTS = PASS_NAMES[PASS_NAMES.index("choose_layouts") - 1]
"""The pass whose result has the values that decisions name."""


@dataclass(frozen=True, slots=True)
class GraphSites:
    """A model's graph under a plan, with what else could be decided of it.

    `planned` is the graph whose values decisions name, before layouts; `optimised` the one that
    kernels are extracted from. `chains` are what may be computed in its reader's kernel, whether
    that is decided or not.
    """

    planned: Graph
    optimised: Graph
    chains: tuple[ChainCandidate, ...]

    def undecided(self, plan: GraphPlan) -> str:
        """What could be decided on top of a plan, to be read: a line for places that look alike.

        # could be chained as well
        chain conv_0 (6 alike)
        """
        found: dict[tuple[str, ...], list[Sequence[Chain]]] = {}
        for item in self.chains:
            if not set(plan.of(Chain)) >= set(item.chains):
                look = tuple(str(self.planned.types.get(chain.value)) for chain in item.chains)
                found.setdefault(look, []).append(item.chains)
        lines = [
            ", ".join(map(str, first)) + (f" ({1 + len(others)} alike)" if others else "")
            for first, *others in found.values()
        ]
        return "\n".join(("# could be chained as well", *lines)) if lines else ""


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
    optimised = optimise_for(graph, target, stages.__setitem__, allowance, numerics, plan)
    planned = stages[BEFORE_LAYOUTS]
    known = {node.output for node in planned.nodes}
    kernels = GroupKernels(optimised, numerics.rounds_each)
    chains = chain_candidates(kernels, target, known)
    return GraphSites(planned, optimised, chains)


def verify_plan(
    graph: Graph,
    plan: GraphPlan,
    target: Target,
    numerics: Numerics = DEFAULT_NUMERICS,
    allowance: ResourceBudget | None = None,
) -> str | None:
    """Why a plan does not fit an imported graph; None if it does.

    It is applied by all the passes that a build has up to fusion, so what is said is what a build
    would say. Raises what these raise for a graph that cannot be compiled at all.
    """
    try:
        allowance = ResourceBudget() if allowance is None else allowance
        optimised = optimise_for(graph, target, None, allowance, numerics, plan)
        chain_groups(optimised, fuse(optimised, allowance), plan)
    except PlanError as error:
        return str(error)
    return None
