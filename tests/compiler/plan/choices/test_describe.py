"""A plan can be read: each question with its candidates, their costs and the choice."""

from __future__ import annotations

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.plan.choices.test_graph_sites import branches
from tests.compiler.plan.choices.test_plan_costs import MERGED, by_stages
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.choices.describe import PlanDescription, describe_plan
from tunefarm.compiler.plan.choices.graph_sites import graph_sites
from tunefarm.compiler.plan.choices.plan_costs import PlanCosts
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan
from tunefarm.compiler.target import host_target

TARGET = host_target()


def described(plan: GraphPlan = DEFAULT_PLAN, graph: Graph | None = None) -> PlanDescription:
    graph = branches() if graph is None else graph
    costs = PlanCosts(graph, TARGET, by_stages)
    return describe_plan(costs, graph_sites(graph, TARGET, plan=plan), plan)


def test_every_question_has_its_choices_and_what_is_chosen() -> None:
    for plan, chosen in ((DEFAULT_PLAN, "apart"), (GraphPlan((MERGED,)), "merged")):
        (asked,) = described(plan).questions
        assert (asked.kind, asked.places) == ("merge", ("conv_0 conv_1",))
        assert (asked.chosen, [each.name for each in asked.choices]) == (
            chosen,
            ["apart", "merged"],
        )


def test_what_looks_alike_is_asked_once() -> None:
    maker = GraphMaker()
    y = maker.input(1, 16, 6, 6)
    for _ in range(3):
        weights = (maker.weights(16, 16, 3, 3) for _ in range(2))
        first, other = (maker.node("conv", y, weight, pads=(1,) * 4) for weight in weights)
        y = maker.node("mul", first, other)
    (question,) = described(graph=maker.graph(y)).questions
    assert question.places[0] == "conv_0 conv_1" and len(question.places) == 3
    assert question.place == "conv_0 conv_1 (3 alike)"


def test_columns_stand_below_each_other() -> None:
    lines = str(described()).splitlines()
    head, *rows = lines[lines.index(next(line for line in lines if line.startswith("# merge"))) :]
    column = head.index("choice")
    assert [row[column:] for row in rows] == ["apart"]
    assert lines[1] == "as the rules decide"


def test_same_plan_is_described_in_the_same_words() -> None:
    assert str(described()) == str(described())
