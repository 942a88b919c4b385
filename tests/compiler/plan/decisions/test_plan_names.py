"""Values of the graph before layouts are found whatever form later passes gave them."""

from __future__ import annotations

import pytest

from tests.compiler.graph.graph_helpers import two_convolutions
from tunefarm.compiler.plan.decisions.graph_plan import Chain
from tunefarm.compiler.plan.decisions.plan_names import PlanNames
from tunefarm.compiler.plan.optimise import optimise


def test_blocked_value_is_found_by_the_name_it_had() -> None:
    node = PlanNames(optimise(two_convolutions(), 8)).node("conv_0")
    assert node is not None and node.output == "conv_0_blocked"


def test_last_value_is_made_before_it_is_converted_back() -> None:
    graph = optimise(two_convolutions(), 8)
    node = PlanNames(graph).node("relu_3")
    assert node is not None and node.operator == "relu"
    assert graph.nodes[-1].output == "relu_3"


def test_conversion_of_an_input_makes_no_value_of_the_graph() -> None:
    graph = optimise(two_convolutions(), 8)
    assert graph.nodes[0].output == "x0_blocked"
    assert PlanNames(graph).node("x0") is None


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


@pytest.mark.parametrize(("value", "near"), [("relu1", "did you mean 'relu_1'? "), ("nothing", "")])
def test_error_of_an_unknown_value_names_the_nearest(value: str, near: str) -> None:
    error = PlanNames(optimise(two_convolutions(), 8)).unknown(Chain(value), value)
    assert error.message == f"chain {value}: no node computes {value!r}"
    assert error.hint.startswith(near + "the plan is of another model")
