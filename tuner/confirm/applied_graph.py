"""The graph of the model that was measured, by the rules and by its plan: to be recorded, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.plan.choices.program_steps import ProgramStep, program_steps
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.configs.settings import Settings
from tunefarm.tuner.from_settings import limits_of, numerics_of
from tunefarm.tuner.records.model_graphs import ModelGraphs
from tunefarm.tuner.records.model_latencies import ModelTimes


def with_graphs(
    times: ModelTimes,
    graph: Graph,
    numerics: Numerics | None,
    target: Target,
    settings: Settings,
    plans: Sequence[GraphPlan] = (),
) -> ModelTimes:
    """The times with the model's graph by the rules, and by the plan that its steps are of.

    That is one of `plans`, or the rules. A model whose steps are of neither has none, as one that
    is several programs. `numerics` is the settings' precision if None.
    """

    def steps(plan: GraphPlan) -> tuple[ProgramStep, ...]:
        admitted = numerics_of(settings, numerics)
        limits = limits_of(settings)
        return program_steps(kernels_of(graph, target, None, None, limits, admitted, plan))

    rules = steps(DEFAULT_PLAN)
    for plan in plans:
        if plan == DEFAULT_PLAN:
            continue
        try:
            planned = steps(plan)
        except PlanError:
            continue
        found = ModelGraphs(rules, planned)
        if found.is_of(times.steps):
            return replace(times, graphs=found)
    found = ModelGraphs(rules)
    return replace(times, graphs=found) if found.is_of(times.steps) else times
