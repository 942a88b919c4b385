"""What can be decided of a graph is told in one order; a plan is legal if a build would take it."""

from __future__ import annotations

import pytest

from tests.benchmarks.chains import residual
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
)
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType

TARGET = host_target()


def network() -> Graph:
    """conv_0, relu_1, conv_2, sigmoid_3, mul_4 (a swish)."""
    maker = GraphMaker()
    y = maker.input(1, 16, 14, 14)
    y = maker.node("conv", y, maker.weights(16, 16, 3, 3), pads=(1,) * 4)
    y = maker.node("relu", y)
    y = maker.node("conv", y, maker.weights(16, 16, 3, 3), pads=(1,) * 4)
    return maker.graph(maker.node("mul", y, maker.node("sigmoid", y)))


def test_sites_of_a_network() -> None:
    sites = graph_sites(network(), TARGET)
    assert [node.output for node in sites.planned.nodes] == ["conv_0", "relu_1", "conv_2", "mul_4"]
    assert not sites.chains


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
    block = residual(112, 16, 96, 32, 2, TARGET.lanes(DType.F32))
    said = graph_sites(block.graph, TARGET).undecided(DEFAULT_PLAN).splitlines()
    assert said[0] == "# could be chained as well" and said[1].startswith("chain ")
    assert graph_sites(network(), TARGET).undecided(DEFAULT_PLAN) == ""
