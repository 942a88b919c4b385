"""Every class of values is asked about: its candidates, what they cost, and how it lies."""

from __future__ import annotations

from tests.compiler.graph.graph_helpers import (
    two_convolutions,
)
from tests.compiler.plan.choices.test_plan_costs import by_stages
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.choices.describe import Question
from tunefarm.compiler.plan.choices.graph_sites import graph_sites
from tunefarm.compiler.plan.choices.layout_questions import layout_questions
from tunefarm.compiler.plan.choices.plan_costs import Cost, KernelCost, PlanCosts
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, PLAIN, GraphPlan, Layout
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType

TARGET = host_target()
LANES = f"NCHW{TARGET.lanes(DType.F32)}c"


def asked(plan: GraphPlan = DEFAULT_PLAN, cost: KernelCost = by_stages) -> dict[str, Question]:
    graph = two_convolutions()
    sites = graph_sites(graph, TARGET, plan=plan)
    found = layout_questions(PlanCosts(graph, TARGET, cost), sites, plan)
    return {question.places[0]: question for question in found}


def test_rules_are_shown_as_the_choice() -> None:
    found = asked()
    assert [(item.place, item.chosen) for item in found.values()] == [
        ("conv_0 +1", LANES),
        ("conv_2 +1", LANES),
    ]
    assert {choice.name for choice in found["conv_0"].choices} >= {"NCHW", "NHWC", LANES}
    assert all(choice.cost is not None for choice in found["conv_0"].choices)


def test_decided_layout_is_the_choice() -> None:
    values = ("conv_0", "relu_1")
    found = asked(GraphPlan(tuple(Layout(value, PLAIN) for value in values)))
    assert (found["conv_0"].chosen, found["conv_2"].chosen) == ("NCHW", LANES)


def test_conversions_are_part_of_a_candidate() -> None:
    def only_conversions(kernel: FusedKernel) -> Cost:
        return Cost(1.0 if "blocked" in kernel.name else 0.0)

    costs = {str(item.name): item.cost for item in asked(cost=only_conversions)["conv_0"].choices}
    plain, blocked = costs["NCHW"], costs[LANES]
    assert plain is not None and blocked is not None
    assert (plain.seconds, blocked.seconds) == (1.0, 1.0)  # before the second, or the first one


def test_unknown_kernels_leave_costs_open() -> None:
    found = asked(cost=lambda kernel: None)
    assert all(choice.cost is None for item in found.values() for choice in item.choices)
