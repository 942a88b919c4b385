"""What can be decided of a graph is told in one order; a plan is legal if a build would take it."""

from __future__ import annotations

import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan.choices.graph_sites import graph_sites, verify_plan
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    PLAIN,
    Chain,
    Decision,
    GraphPlan,
    Layout,
    Merged,
)
from tunefarm.compiler.target import host_target

TARGET = host_target()


def network() -> Graph:
    """conv_0, relu_1, conv_2, sigmoid_3, mul_4 (a swish)."""
    maker = GraphMaker()
    y = maker.input(1, 16, 14, 14)
    y = maker.node("conv", y, maker.weights(16, 16, 3, 3), pads=(1,) * 4)
    y = maker.node("relu", y)
    y = maker.node("conv", y, maker.weights(16, 16, 3, 3), pads=(1,) * 4)
    return maker.graph(maker.node("mul", y, maker.node("sigmoid", y)))


def branches() -> Graph:
    """conv_0 and conv_1 read the same data."""
    maker = GraphMaker()
    x = maker.input(1, 16, 6, 6)
    weights = (maker.weights(32, 16, 3, 3) for _ in range(2))
    first, other = (maker.node("conv", x, weight, pads=(1,) * 4) for weight in weights)
    return maker.graph(maker.node("mul", first, other))


def test_sites_of_a_network() -> None:
    sites = graph_sites(network(), TARGET)
    assert [node.output for node in sites.planned.nodes] == ["conv_0", "relu_1", "conv_2", "mul_4"]
    assert not sites.merges and not sites.chains


def test_what_is_merged_is_still_a_site() -> None:
    merged = Merged(("conv_0", "conv_1"))
    for plan in (DEFAULT_PLAN, GraphPlan((merged,))):
        assert graph_sites(branches(), TARGET, plan=plan).merges == (merged,)


@pytest.mark.parametrize("plan", [DEFAULT_PLAN, GraphPlan((Layout("conv_0", PLAIN),))])
def test_plan_that_fits_is_legal(plan: GraphPlan) -> None:
    assert verify_plan(network(), plan, TARGET) is None


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (Layout("conv_00", PLAIN), "layout conv_00 NCHW: no node computes"),
        (Chain("conv_22"), "chain conv_22: no node computes 'conv_22' (did you mean 'conv_2'?"),
    ],
)
def test_build_says_what_the_verifier_says(decision: Decision, said: str) -> None:
    plan = DEFAULT_PLAN.with_decisions(decision)
    problem = verify_plan(network(), plan, TARGET)
    assert problem is not None and said in problem
    with pytest.raises(PlanError) as caught:
        compile_model(network(), target=TARGET, plan=plan)
    assert str(caught.value) == problem
    assert "plan it anew" in problem


def test_what_could_be_decided_is_told_once_for_places_that_look_alike() -> None:
    maker = GraphMaker()
    y = maker.input(1, 16, 6, 6)
    for _ in range(3):
        weights = (maker.weights(16, 16, 3, 3) for _ in range(2))
        first, other = (maker.node("conv", y, weight, pads=(1,) * 4) for weight in weights)
        y = maker.node("mul", first, other)
    graph, merged = maker.graph(y), GraphPlan((Merged(("conv_0", "conv_1")),))
    assert graph_sites(graph, TARGET).undecided(DEFAULT_PLAN).splitlines() == [
        "# could be merged as well",
        "merged conv_0 conv_1 (3 alike)",
    ]
    assert graph_sites(graph, TARGET, plan=merged).undecided(merged).endswith("(2 alike)")
    assert graph_sites(network(), TARGET).undecided(DEFAULT_PLAN) == ""
