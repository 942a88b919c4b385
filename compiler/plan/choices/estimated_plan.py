"""All that a build without records decides of a graph by estimates, as a plan to be shown or tried.

The pipeline decides the same on its way, of the graph that it optimises for itself.
"""

from __future__ import annotations

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.plan.choices.estimated_chains import estimated_chains
from tunefarm.compiler.plan.choices.graph_sites import BEFORE_LAYOUTS
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.plan.fusion.group_kernels import GroupKernels
from tunefarm.compiler.plan.optimise import optimise_for
from tunefarm.compiler.schedule.spaces import SpaceCache


def estimated_plan(
    graph: Graph,
    spaces: SpaceCache,
    allowance: ResourceBudget | None = None,
    plan: GraphPlan = DEFAULT_PLAN,
) -> GraphPlan:
    """`plan` with the chains that are expected to pay with it.

    `graph` is the one that is imported. Raises what `optimise_for` raises.
    """
    target, numerics = spaces.target, spaces.numerics
    stages: dict[str, Graph] = {}
    optimised = optimise_for(graph, target, stages.__setitem__, allowance, numerics, plan)
    known = {node.output for node in stages[BEFORE_LAYOUTS].nodes}
    kernels = GroupKernels(optimised, numerics.rounds_each)
    return plan.with_decisions(*estimated_chains(kernels, spaces, known).decisions)
