"""Is a plan legal: do all of its decisions fit the graph, and each other?"""

from __future__ import annotations

from collections.abc import Collection

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.plan.decisions.graph_plan import (
    Chain,
    FusionBarrier,
    GraphPlan,
    KeepDecomposed,
)
from tunefarm.compiler.plan.decisions.plan_names import unknown_value
from tunefarm.compiler.plan.fusion.chain_groups import chain_groups
from tunefarm.compiler.plan.fusion.fuse import fuse
from tunefarm.compiler.plan.optimise import optimise_for
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS, Numerics


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
        check_plan(plan)
        allowance = ResourceBudget() if allowance is None else allowance
        optimised = optimise_for(graph, target, None, allowance, numerics, plan)
        chain_groups(optimised, fuse(optimised, allowance, plan), plan)
    except PlanError as error:
        return str(error)
    return None


def check_plan(plan: GraphPlan, known: Collection[str] | None = None) -> None:
    """Raise PlanError for what can be seen without applying a plan, as a search asks often.

    Decisions must not contradict each other. `known`, the values of the graph before layouts, are
    all that can be decided of, but by `KeepDecomposed`, whose pattern may be gone by then.
    """
    ended = {decision.value for decision in plan.of(FusionBarrier)}
    for chain in plan.of(Chain):
        if chain.value in ended:
            raise PlanError(f"{chain}: the plan ends a kernel behind {chain.value!r} as well")
    if known is None:
        return
    for decision in plan.decisions:
        for value in () if isinstance(decision, KeepDecomposed) else decision.values:
            if value not in known:
                raise unknown_value(decision, value, known)
