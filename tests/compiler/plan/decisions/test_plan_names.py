"""Values of the graph before layouts are found whatever form later passes gave them."""

from __future__ import annotations

import pytest

from tests.compiler.graph.graph_helpers import (
    two_convolutions,
)
from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.decisions.graph_plan import FusionBarrier, GraphPlan
from tunefarm.compiler.plan.decisions.plan_names import PlanNames
from tunefarm.compiler.plan.fusion.fuse import fuse
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import BF16_NUMERICS


def kernels(graph: Graph, *values: str) -> list[str]:
    plan = GraphPlan(tuple(map(FusionBarrier, values)))
    return ["_".join(n.operator for n in group.nodes) for group in fuse(graph, plan=plan)]


def test_blocked_value_is_found_by_the_name_it_had() -> None:
    graph = optimise(two_convolutions(), 8)
    node = PlanNames(graph).node("conv_0")
    assert node is not None and node.output == "conv_0_blocked"
    assert kernels(graph, "conv_0")[1:3] == ["conv", "relu"]


def test_last_value_is_made_before_it_is_converted_back() -> None:
    graph = optimise(two_convolutions(), 8)
    node = PlanNames(graph).node("relu_3")
    assert node is not None and node.operator == "relu"
    assert graph.nodes[-1].output == "relu_3"


def test_conversion_of_an_input_makes_no_value_of_the_graph() -> None:
    graph = optimise(two_convolutions(), 8)
    assert graph.nodes[0].output == "x0_blocked"
    assert PlanNames(graph).node("x0") is None


def test_kernel_that_stores_narrow_floats_ends_behind_its_cast() -> None:
    graph = optimise(two_convolutions(), None, numerics=BF16_NUMERICS, summed=(DType.BF16,))
    stored = PlanNames(graph).stored("relu_1")
    assert stored is not None and graph.types[stored].dtype is DType.BF16
    assert "conv" in kernels(graph, "relu_1")[1]


def test_values_are_named_as_they_were() -> None:
    before = two_convolutions()
    graph, known = optimise(before, 8), {node.output for node in before.nodes}
    names = PlanNames(graph)
    assert [names.value(node, known) for node in graph.nodes] == [
        None,
        "conv_0",
        "relu_1",
        "conv_2",
        "relu_3",
        None,
    ]


@pytest.mark.parametrize("value", ["nothing", "x0", "conv_1"])
def test_cut_behind_a_value_that_no_node_makes_is_refused(value: str) -> None:
    graph = optimise(two_convolutions(), 8)
    with pytest.raises(PlanError, match=f"separate {value}: no node computes") as caught:
        kernels(graph, value)
    assert "plan it anew" in caught.value.hint


def test_refusal_names_the_nearest_value() -> None:
    with pytest.raises(PlanError, match="did you mean 'relu_1'"):
        kernels(optimise(two_convolutions(), 8), "relu1")
