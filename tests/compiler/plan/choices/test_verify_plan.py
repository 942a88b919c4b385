"""A plan is legal if a build would take it; else what a build would say is said."""

from __future__ import annotations

import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import compile_model, kernels_of
from tunefarm.compiler.plan.choices.graph_sites import graph_sites
from tunefarm.compiler.plan.choices.verify_plan import check_plan, verify_plan
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    PLAIN,
    Chain,
    Decision,
    FusionBarrier,
    GraphPlan,
    KeepDecomposed,
    Layout,
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


LEGAL = GraphPlan((Layout("conv_0", PLAIN), FusionBarrier("conv_2"), KeepDecomposed("mul_4")))


@pytest.mark.parametrize("plan", [DEFAULT_PLAN, LEGAL], ids=["rules", "legal"])
def test_plan_that_fits_is_legal(plan: GraphPlan) -> None:
    assert verify_plan(network(), plan, TARGET) is None


def test_decisions_are_followed() -> None:
    program = kernels_of(network(), TARGET, plan=LEGAL)
    (last,) = [calls[0] for calls in program.kernel_calls().values()][-1:]
    assert last.operators[:2] == ("sigmoid", "mul")


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (Layout("conv_00", PLAIN), "layout conv_00 NCHW: no node computes"),
        (FusionBarrier("conv_22"), "separate conv_22: no node computes 'conv_22' (did you mean"),
        (
            KeepDecomposed("mul_44"),
            "spelled mul_44: no pattern ends in 'mul_44' (did you mean mul_4?",
        ),
        (KeepDecomposed("conv_2"), "spelled conv_2: no pattern ends in 'conv_2'"),
    ],
    ids=lambda item: item.split(":")[0] if isinstance(item, str) else "",
)
def test_build_says_what_the_verifier_says(decision: Decision, said: str) -> None:
    plan = DEFAULT_PLAN.with_decisions(decision)
    problem = verify_plan(network(), plan, TARGET)
    assert problem is not None and said in problem
    with pytest.raises(PlanError) as caught:
        compile_model(network(), target=TARGET, plan=plan)
    assert str(caught.value) == problem
    assert "plan it anew" in problem


def test_plan_of_a_record_that_no_longer_fits_says_what_to_do() -> None:
    recorded = GraphPlan.from_json([{"decide": "separate", "value": "conv2"}])
    with pytest.raises(PlanError) as caught:
        compile_model(network(), target=TARGET, plan=recorded)
    assert caught.value.message == "separate conv2: no node computes 'conv2'"
    assert "did you mean 'conv_2'?" in caught.value.hint
    assert "of another compiler: plan it anew" in caught.value.hint


def test_contradiction_is_seen_without_a_graph() -> None:
    with pytest.raises(PlanError, match="ends a kernel behind 'a' as well"):
        check_plan(GraphPlan((Chain("a"), FusionBarrier("a"))))
    check_plan(GraphPlan((Chain("a"), FusionBarrier("b"))))


def test_unknown_values_are_seen_without_applying_a_plan() -> None:
    known = [node.output for node in graph_sites(network(), TARGET).planned.nodes]
    check_plan(GraphPlan((FusionBarrier("conv_0"), KeepDecomposed("gone"))), known)
    with pytest.raises(PlanError, match="no node computes 'conv_1'"):
        check_plan(GraphPlan((FusionBarrier("conv_1"),)), known)
