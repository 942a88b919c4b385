from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.graph import common_subexpressions
from tunefarm.compiler.graph.serialize import structurally_equal
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.types.padded_shape import PaddedShape
from tunefarm.compiler.types.sizes import Symbol

N, M = Symbol.of("n", 1, 4), Symbol.of("m", 1, 4)


def test_equal_nodes_and_equal_constants_are_merged() -> None:
    maker = GraphMaker()
    x = maker.input(2, 2)
    ones = [maker.constant(np.ones(2, np.float32)) for _ in range(2)]
    left, right = (maker.node("exp", maker.node("add", x, one)) for one in ones)
    graph = maker.graph(maker.node("mul", left, right))
    merged = common_subexpressions.run(graph)
    assert operators(merged) == ["add", "exp", "mul"]
    assert len(merged.constants) == 1
    assert_same_meaning(graph, merged)
    assert structurally_equal(common_subexpressions.run(merged), merged)


@pytest.mark.parametrize("other", [None, (((N, 4),),), (((M, 4),),)])
def test_padding_of_merged_values_is_what_both_have(other: PaddedShape | None) -> None:
    maker = GraphMaker()
    x = maker.input(4)
    left, right = maker.node("exp", x), maker.node("exp", x)
    graph = maker.graph(maker.node("mul", left, right))
    same: PaddedShape = (((N, 4),),)
    unread = {left: same} if other is None else {left: same, right: other}
    merged = common_subexpressions.run(replace(graph, unread=unread))
    assert merged.unread == ({left: same} if other == same else {})


def test_a_default_attribute_equals_its_absence() -> None:
    maker = GraphMaker()
    x = maker.input(2, 2)
    left = maker.node("matmul", x, x)
    right = maker.node("matmul", x, x, transpose_a=False)
    merged = common_subexpressions.run(maker.graph(maker.node("add", left, right)))
    assert operators(merged) == ["matmul", "add"]


def test_different_things_stay_apart() -> None:
    maker = GraphMaker()
    x = maker.input(2, 2)
    zero = maker.constant(np.zeros(2, np.float32))
    minus_zero = maker.constant(np.full(2, -0.0, np.float32))
    integer_zero = maker.constant(np.zeros(2, np.int32))
    parts = [
        maker.node("div", x, zero),
        maker.node("div", x, minus_zero),
        maker.node("div", zero, x),
        maker.node("pow", x, integer_zero),
        maker.node("leaky_relu", x, alpha=0.1),
        maker.node("leaky_relu", x, alpha=0.2),
    ]
    graph = maker.graph(*parts)
    assert operators(common_subexpressions.run(graph)) == operators(graph)


def test_two_equal_outputs_keep_their_names() -> None:
    maker = GraphMaker()
    x = maker.input(3)
    graph = maker.graph(maker.node("exp", x), maker.node("exp", x))
    merged = common_subexpressions.run(graph)
    assert operators(merged) == ["exp", "identity"]
    assert_same_meaning(graph, merged)


def test_two_equal_constants_that_are_both_outputs_keep_their_names() -> None:
    maker = GraphMaker()
    first, second = (maker.constant(np.array([1.0, 2.0], np.float32)) for _ in range(2))
    graph = maker.graph(first, second)
    merged = common_subexpressions.run(graph)
    verify_graph(merged)
    assert merged.outputs == graph.outputs
    assert_same_meaning(graph, merged)
