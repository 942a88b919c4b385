"""A plan can be read: each question with its candidates, their costs and the choice."""

from __future__ import annotations

from tests.compiler.graph.graph_helpers import GraphMaker
from tests.compiler.plan.choices.test_plan_costs import by_stages
from tests.compiler.plan.choices.test_verify_plan import network
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.choices.describe import PlanDescription, describe_plan
from tunefarm.compiler.plan.choices.graph_sites import graph_sites
from tunefarm.compiler.plan.choices.plan_costs import PlanCosts
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    FusionBarrier,
    GraphPlan,
    KeepDecomposed,
    Merged,
)
from tunefarm.compiler.target import host_target

TARGET = host_target()


def described(plan: GraphPlan = DEFAULT_PLAN, graph: Graph | None = None) -> PlanDescription:
    graph = network() if graph is None else graph
    costs = PlanCosts(graph, TARGET, by_stages)
    return describe_plan(costs, graph_sites(graph, TARGET, plan=plan), plan)


def test_every_question_has_its_choices_and_what_is_chosen() -> None:
    asked = described().questions
    assert [(item.kind, item.places, item.chosen) for item in asked] == [
        ("pattern", ("mul_4",), "swish"),
        ("cut", ("conv_0",), "conv+relu"),
        ("cut", ("conv_2",), "conv+swish"),
    ]


def test_decided_otherwise_is_chosen_otherwise() -> None:
    plan = GraphPlan((KeepDecomposed("mul_4"), FusionBarrier("conv_0")))
    chosen = {item.places[0]: item.chosen for item in described(plan).questions}
    assert chosen["mul_4"] == "spelled"
    assert chosen["conv_0"] == "cut"


def test_what_looks_alike_is_asked_once() -> None:
    maker = GraphMaker()
    y = maker.input(5, 8)
    for _ in range(3):
        y = maker.node("relu", maker.node("matmul", y, maker.weights(8, 8)))
    (question,) = described(graph=maker.graph(y)).questions
    assert question.places == ("matmul_0", "matmul_2", "matmul_4")
    assert question.place == "matmul_0 (3 alike)"


def test_products_of_the_same_data_may_be_merged() -> None:
    maker = GraphMaker()
    x = maker.input(1, 64)
    first, other = (maker.node("matmul", x, maker.weights(64, 32)) for _ in range(2))
    graph = maker.graph(maker.node("mul", first, other))
    place = f"{first} {other}"
    asked = {item.kind: item for item in described(graph=graph).questions}
    assert (asked["merge"].places, asked["merge"].chosen) == ((place,), "apart")
    plan = GraphPlan((Merged((first, other)),))
    asked = {item.kind: item for item in described(plan, graph).questions}
    assert (asked["merge"].places, asked["merge"].chosen) == ((place,), "merged")


def test_columns_stand_below_each_other() -> None:
    lines = str(described()).splitlines()
    head, *rows = lines[lines.index(next(line for line in lines if line.startswith("# cut"))) :]
    column = head.index("choice")
    assert [row[column:] for row in rows] == ["conv+relu", "conv+swish"]
    assert lines[1] == "as the rules decide"
    assert "measured" in lines[0]


def test_same_plan_is_described_in_the_same_words() -> None:
    assert str(described()) == str(described())
