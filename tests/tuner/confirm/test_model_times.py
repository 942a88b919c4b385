"""What is recorded of a graph is that of the model that was measured."""

from __future__ import annotations

import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.plan.choices.program_steps import program_steps
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan, Merged
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import load_settings
from tunefarm.tuner.confirm.model_times import with_graphs
from tunefarm.tuner.records.model_latencies import ModelGraphs, ModelStep, ModelTimes

TARGET = host_target()
MERGED = GraphPlan((Merged(("conv_0", "conv_1")),))
UNKNOWN = GraphPlan((Merged(("conv_0", "other")),))


def network() -> Graph:
    maker = GraphMaker()
    x = maker.input(1, 16, 28, 28)
    first, other = (maker.node("conv", x, maker.weights(16, 16, 3, 3)) for _ in range(2))
    return maker.graph(maker.node("mul", first, other))


def recorded(applied: GraphPlan, *plans: GraphPlan) -> ModelGraphs | None:
    """Of a model that was built with the plan `applied`, and copies its result."""
    steps = program_steps(kernels_of(network(), TARGET, plan=applied))
    built = tuple(ModelStep(step.name, step.key, None, step.reads) for step in steps)
    times = ModelTimes(1e-3, "20", steps=(*built, ModelStep("copy", "", None, (0,))))
    settings = load_settings(environment={})
    return with_graphs(times, network(), None, TARGET, settings, plans).graphs


@pytest.mark.parametrize(
    ("applied", "plans", "is_planned"),
    [
        (DEFAULT_PLAN, (), False),
        (DEFAULT_PLAN, (MERGED,), False),  # the plan lost
        (MERGED, (UNKNOWN, DEFAULT_PLAN, MERGED), True),
    ],
)
def test_the_graph_of_the_plan_that_is_applied_is_recorded(
    applied: GraphPlan, plans: tuple[GraphPlan, ...], is_planned: bool
) -> None:
    found = recorded(applied, *plans)
    assert found is not None
    values = [[step.value for step in steps] for steps in (found.rules, found.planned)]
    merged = [[value for value in steps if "merged" in value] for steps in values]
    assert values[0] and [bool(values[1]), *map(len, merged)] == [is_planned, 0, is_planned]
    assert found.applied == (found.planned or found.rules)


def test_steps_of_another_plan_have_no_graph() -> None:
    assert recorded(MERGED) is None
