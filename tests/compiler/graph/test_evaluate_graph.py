"""The meaning of graphs with loops: step by step by hand, and as compiled code has it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm import compiler
from tunefarm.compiler.graph.evaluate_graph import evaluate_graph
from tunefarm.compiler.types.tensor_type import Attribute

X = np.array([1.0, 2.0, -1.0], np.float32)


def result(maker: GraphMaker, number: int, values: tuple[str, ...], **more: Attribute) -> str:
    return maker.node(
        "loop_result", "", "", "", *values, loop=1, states=1, most=4, number=number, **more
    )


@pytest.mark.parametrize("backward", [(), (0,)])
def test_states_rows_and_counts(backward: tuple[int, ...]) -> None:
    maker = GraphMaker()
    x = maker.input(3)
    state = maker.node("loop_state", x, loop=1, number=0)
    following = maker.node("add", state, x)
    values = (x, following, state)
    outputs = [result(maker, number, values, backward=backward) for number in range(4)]
    graph = maker.graph(*outputs)
    found = evaluate_graph(graph, {x: X})
    rows = np.stack([X * n for n in (1, 2, 3, 4)])
    expected = [X * 5, rows[::-1] if backward else rows, np.array(4), np.array(False)]
    compiled = compiler.build(graph).run({x: X})
    for name, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(found[name], wanted)
        np.testing.assert_array_equal(compiled[name], wanted)


def test_a_loop_in_a_loop_begins_anew_in_each_step() -> None:
    maker = GraphMaker()
    x = maker.input(3)
    outer = maker.node("loop_state", x, loop=1, number=0)
    inner = maker.node("loop_state", outer, loop=2, number=0)
    step = maker.node("add", inner, x)
    common: dict[str, Attribute] = {"states": 1, "number": 0, "backward": ()}
    last = maker.node("loop_result", "", "", "", outer, step, loop=2, most=3, **common)
    output = maker.node("loop_result", "", "", "", x, last, loop=1, most=2, **common)
    graph = maker.graph(output)
    np.testing.assert_array_equal(evaluate_graph(graph, {x: X})[output], X * 7)
    np.testing.assert_array_equal(compiler.build(graph).run({x: X})[output], X * 7)
