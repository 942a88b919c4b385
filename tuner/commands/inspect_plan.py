"""What the graph of a model decides, as text: the plan that a build takes, and what else it has."""

from __future__ import annotations

import math
from functools import partial

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import structural_hash
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.workload_key import workload_key
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.plan.choices.describe import describe_plan
from tunefarm.compiler.plan.choices.estimate import Estimator
from tunefarm.compiler.plan.choices.estimated_plan import estimated_plan
from tunefarm.compiler.plan.choices.graph_sites import graph_sites
from tunefarm.compiler.plan.choices.layout_questions import layout_questions
from tunefarm.compiler.plan.choices.plan_costs import Cost, KernelCost, PlanCosts
from tunefarm.compiler.plan.choices.verify_plan import verify_plan
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.settings import Settings
from tunefarm.db.store import Store
from tunefarm.tuner.building.lowered import LoweredModel
from tunefarm.tuner.building.recorded_plan import PlanToApply, plan_to_apply
from tunefarm.tuner.from_settings import limits_of
from tunefarm.tuner.plans.costs import KernelCosts
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.records.trials import task_key

BY_ESTIMATES = "by estimates, without a database"
"""How a plan is called that an untuned build takes."""


def applied_plan(
    imported: Graph,
    lowered: LoweredModel,
    settings: Settings,
    target: Target,
    store: Store | None,
) -> PlanToApply:
    """The plan that a build of the model takes from the store, or by estimates where there is none;
    what does not fit is said."""
    found = plan_to_apply(store, structural_hash(imported), settings, target)
    allowance = ResourceBudget(limits_of(settings))
    if found.by_estimates:
        spaces = SpaceCache(target, settings.compile.threads, lowered.numerics)
        plan = estimated_plan(lowered.graph, spaces, allowance)
        return (
            PlanToApply() if plan == DEFAULT_PLAN else PlanToApply(GraphChoice(plan, BY_ESTIMATES))
        )
    if found.plan == DEFAULT_PLAN:
        return found
    problem = verify_plan(lowered.graph, found.plan, target, lowered.numerics, allowance)
    if problem is None:
        return found
    note = f"the recorded plan does not fit the model, the rules decide: {problem}"
    return PlanToApply(None, (*found.notes, note))


def plan_text(
    applied: PlanToApply,
    lowered: LoweredModel,
    settings: Settings,
    target: Target,
    store: Store | None,
) -> str:
    """A plan that fits: its candidates, what they cost, and the choice.

    Kernels cost what was measured if the store knows it, else what is estimated. Raises what the
    passes raise for a graph.
    """
    graph, numerics, plan = lowered.graph, lowered.numerics, applied.plan
    allowance = ResourceBudget(limits_of(settings))
    cost = kernel_cost(settings, target, store, numerics)
    costs = PlanCosts(graph, target, cost, numerics, allowance)
    sites = graph_sites(graph, target, numerics, plan, allowance)
    said = [*applied.notes, *(() if applied.choice is None else (str(applied.choice),))]
    notes = "".join(f"# {note}\n" for note in said)
    return f"{notes}{describe_plan(costs, sites, plan, (layout_questions,))}"


def kernel_cost(
    settings: Settings, target: Target, store: Store | None, numerics: Numerics
) -> KernelCost:
    """What kernels cost: as the store's records have it, else estimated."""
    threads, name = settings.compile.threads, settings.compile.numerics
    estimator = Estimator(SpaceCache(target, threads, numerics))
    kernels: dict[str, FusedKernel] = {}

    recorded = None
    if store is not None:
        key_of = partial(task_key, target=target, threads=threads, numerics=name)
        recorded = KernelCosts(store, kernels, key_of, estimator)

    def cost(kernel: FusedKernel) -> Cost | None:
        if recorded is None:
            return Cost(estimator(kernel).seconds)
        key = workload_key(kernel)
        kernels[key] = kernel
        found = recorded[key]
        if not math.isfinite(found.seconds):
            return None
        return Cost(found.seconds, found.seconds if found.measured else 0.0)

    return cost
