from __future__ import annotations

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.graph import dead_code


def test_what_no_output_needs_is_dropped_and_inputs_stay() -> None:
    maker = GraphMaker()
    x, unused = maker.input(3), maker.input(4)
    maker.node("exp", maker.node("add", x, maker.weights(3)))
    graph = maker.graph(maker.node("relu", x))
    clean = dead_code.run(graph)
    assert operators(clean) == ["relu"]
    assert clean.constants == {}
    assert clean.inputs == (x, unused)
    assert_same_meaning(graph, clean)
    assert dead_code.run(clean) == clean


def test_what_an_output_needs_stays() -> None:
    maker = GraphMaker()
    x = maker.input(3)
    a = maker.node("exp", x)
    graph = maker.graph(a, maker.node("add", a, maker.weights(3)))
    assert dead_code.run(graph) == graph
