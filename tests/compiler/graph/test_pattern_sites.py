"""Patterns that are to stay spelled out do, in every pass that finds patterns."""

from __future__ import annotations

import math

import pytest

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_same_meaning,
    operators,
    random_inputs,
)
from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.pattern_sites import PatternSites
from tunefarm.compiler.plan.decisions.graph_plan import GraphPlan, KeepDecomposed
from tunefarm.compiler.plan.optimise import optimise, sites_of


def gelu(maker: GraphMaker, x: str) -> str:
    gate = maker.node("erf", maker.node("div", x, maker.scalar(math.sqrt(2))))
    half = maker.node("mul", x, maker.node("add", gate, maker.scalar(1)))
    return maker.node("mul", half, maker.scalar(0.5))


def softmax(maker: GraphMaker, x: str) -> str:
    powers = maker.node("exp", x)
    return maker.node("div", powers, maker.node("reduce_sum", powers, axes=(3,), keepdims=True))


def layer_norm(maker: GraphMaker, x: str) -> tuple[str, str]:
    """Without and with its scale."""
    centre = maker.node("sub", x, maker.node("reduce_mean", x, axes=(1,), keepdims=True))
    square = maker.node("mul", centre, centre)
    mean = maker.node("reduce_mean", square, axes=(1,), keepdims=True)
    root = maker.node("sqrt", maker.node("add", mean, maker.scalar(1e-5)))
    bare = maker.node("div", centre, root)
    return bare, maker.node("mul", bare, maker.weights(maker.types[x].shape[1]))


def attention(maker: GraphMaker, spelled: bool = True) -> tuple[str, str]:
    """The weights and the result."""
    query, key, value = (maker.input(2, 3, 8, 4) for _ in range(3))
    turned = maker.node("transpose", key, perm=(0, 1, 3, 2))
    scores = maker.node("matmul", query, turned)
    weights = softmax(maker, scores) if spelled else maker.node("softmax", scores, axis=3)
    return weights, maker.node("matmul", weights, value)


def planned(graph: Graph, *values: str) -> tuple[list[str], PatternSites]:
    """The operators of the optimised graph, which means the same, and what was found."""
    plan = GraphPlan(tuple(map(KeepDecomposed, values)))
    sites = sites_of(plan)
    result = optimise(graph, None, plan=plan, sites=sites)
    assert random_inputs(graph)
    assert_same_meaning(graph, result, tolerance=1e-4)
    return operators(result), sites


def test_one_of_two_patterns_stays() -> None:
    maker = GraphMaker()
    first = gelu(maker, maker.input(5, 7))
    graph = maker.graph(gelu(maker, maker.node("neg", first)))
    assert planned(graph)[0] == ["gelu", "neg", "gelu"]
    found = planned(graph, first)[0]
    assert found.count("gelu") == 1
    assert "erf" in found


def test_no_smaller_pattern_takes_what_is_to_stay() -> None:
    maker = GraphMaker()
    bare, scaled = layer_norm(maker, maker.input(6, 10))
    graph = maker.graph(scaled)
    assert planned(graph)[0] == ["layer_norm"]
    found, sites = planned(graph, scaled)
    assert "layer_norm" not in found
    assert [site.value for site in sites.found] == [scaled]
    with pytest.raises(PlanError, match=f"no pattern ends in '{bare}'"):
        planned(graph, bare)


def test_attention_stays_as_two_products() -> None:
    maker = GraphMaker()
    _, result = attention(maker)
    graph = maker.graph(result)
    assert planned(graph)[0] == ["attention"]
    assert [name for name in planned(graph, result)[0] if name != "transpose"] == [
        "matmul",
        "softmax",
        "matmul",
    ]


def test_attention_of_a_softmax_that_stays_is_none() -> None:
    maker = GraphMaker()
    weights, result = attention(maker)
    found = planned(maker.graph(result), weights)[0]
    assert "attention" not in found
    assert "softmax" not in found
    assert "exp" in found


def test_sites_are_told_in_the_order_of_the_graph() -> None:
    maker = GraphMaker()
    weights, result = attention(maker)
    last = gelu(maker, result)
    _, sites = planned(maker.graph(last))
    assert [(site.operator, site.value) for site in sites.found] == [
        ("softmax", weights),
        ("gelu", last),
        ("attention", result),
    ]
    assert sites.found == planned(maker.graph(last))[1].found


@pytest.mark.parametrize("value", ["nothing", "matmul_1"])
def test_what_ends_no_pattern_cannot_stay_spelled(value: str) -> None:
    maker = GraphMaker()
    graph = maker.graph(attention(maker, spelled=False)[1])
    with pytest.raises(PlanError, match=f"spelled {value}: no pattern ends in") as caught:
        planned(graph, value)
    assert "plan it anew" in caught.value.hint
