"""Switches that round what single contractions read."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, evaluate_graph, random_inputs
from tests.compiler.plan.precision.test_quantise import recurrent
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.precision import quantise
from tunefarm.compiler.plan.precision.contractions import contractions
from tunefarm.compiler.plan.precision.switch_precisions import switched
from tunefarm.compiler.types.precision import Calibration, Precision, PrecisionPlan

KINDS = (Precision.BF16, Precision.INT8)


def products() -> Graph:
    maker = GraphMaker()
    x = maker.input(3, 5)
    first = maker.node("relu", maker.node("matmul", x, maker.weights(5, 7)))
    return maker.graph(maker.node("matmul", first, maker.weights(7, 2)))


def calibration(graph: Graph) -> Calibration:
    ranges = {item.data_identity: (-4.0, 4.0) for item in contractions(graph)}
    return Calibration("minmax", 1, "", ranges)


@pytest.mark.parametrize("kind", KINDS)
def test_each_switch_rounds_what_one_contraction_reads(kind: Precision) -> None:
    graph = products()
    lowered, switches = switched(graph, KINDS, calibration(graph))
    assert len(switches) == 4
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    off = dict.fromkeys(switches.values(), np.zeros((), np.float32))
    (expected,) = evaluate_graph(graph, {graph.inputs[0]: x})
    (unswitched,) = evaluate_graph(lowered, {graph.inputs[0]: x, **off})
    np.testing.assert_array_equal(unswitched, expected)
    for item in contractions(graph):
        on = {switches[item.identity, kind]: np.ones((), np.float32)}
        (rounded,) = evaluate_graph(lowered, {graph.inputs[0]: x, **off, **on})
        error = np.abs(np.subtract(rounded, expected)).max() / np.abs(expected).max()
        assert 1e-5 < error < 0.05


def test_what_has_no_range_has_no_switch_for_int8() -> None:
    _, switches = switched(products(), KINDS, None)
    assert {kind for _, kind in switches} == {Precision.BF16}


@pytest.mark.parametrize(("kind", "linear"), [("RNN", False), ("GRU", True), ("LSTM", False)])
def test_a_switch_rounds_the_states_of_a_recurrence(kind: str, linear: bool) -> None:
    graph = recurrent(kind, linear)
    (item,) = contractions(graph)
    lowered, switches = switched(graph, KINDS, calibration(graph))
    assert list(switches) == [(item.identity, Precision.INT8)]
    (switch,) = switches.values()
    inputs = random_inputs(graph)
    rounded = quantise.run(graph, PrecisionPlan({item.identity: Precision.INT8}))
    for share, like in ((0.0, graph), (1.0, rounded)):
        (found,) = evaluate_graph(lowered, {**inputs, switch: np.array(share, np.float32)})
        (expected,) = evaluate_graph(like, inputs)
        np.testing.assert_allclose(np.float32(found), np.float32(expected), atol=1e-6)
