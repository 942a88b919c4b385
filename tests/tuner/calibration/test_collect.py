"""Collected ranges are those of the values that contractions read."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, evaluate_graph, random_inputs
from tests.tuner.calibration.sized_rows import SHAPES, kept, sized_rows, sized_run, sums
from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan.apply_precisions import prepare
from tunefarm.compiler.plan.precision.contractions import contractions
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.tuner.calibration import collect
from tunefarm.tuner.calibration.collect import calibrate, with_outputs
from tunefarm.tuner.calibration.data import SampleForm, Samples
from tunefarm.tuner.calibration.ranges import Method


def network() -> Graph:
    maker = GraphMaker()
    x = maker.input(2, 6)
    y = maker.node("relu", maker.node("matmul", x, maker.weights(6, 5)))
    z = maker.node("tanh", maker.node("matmul", y, maker.weights(5, 4)))
    return prepare(maker.graph(maker.node("matmul", z, maker.weights(4, 3))))


def samples_of(graph: Graph, count: int = 3) -> Samples:
    runs = [random_inputs(graph, seed) for seed in range(count)]
    return Samples.of(runs, SampleForm(graph.signature))


class Compiled:
    """Compiles graphs, and counts them."""

    def __init__(self) -> None:
        self.outputs: list[int] = []

    def __call__(self, graph: Graph) -> Executable:
        self.outputs.append(len(graph.outputs))
        return Executable(compile_model(graph).spec)


@pytest.mark.parametrize(("most", "batches"), [(1 << 20, [2]), (40, [1, 1])])
def test_ranges_are_those_of_the_data_of_contractions(
    most: int, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MOST_BYTES", most)
    graph, compile = network(), Compiled()
    samples = samples_of(graph)
    found = calibrate(graph, samples, Method.of("minmax"), compile)
    assert compile.outputs == batches
    assert (found.method, found.samples, found.data) == ("minmax", 3, samples.digest)
    assert len(found.ranges) == 3
    for item in contractions(graph):
        values = [
            run[item.data]
            if item.data in graph.inputs
            else evaluate_graph(with_outputs(graph, [item.data]), dict(run))[0]
            for run in samples
        ]
        expected = float(np.min(values)), float(np.max(values))
        assert found.ranges[item.data_identity] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_padding_has_no_part_in_ranges() -> None:
    graph = prepare(import_model_proto(sized_rows(), shapes=SHAPES))
    runs = [sized_run(1, 3), sized_run(3, 5), sized_run(2, 1)]
    samples = Samples.of(runs, SampleForm(graph.signature))
    found = calibrate(graph, samples, Method.of("minmax"), Compiled()).ranges
    first, second = contractions(graph)
    for item, read in ((first, sums), (second, kept)):
        values = np.concatenate([read(run).reshape(-1) for run in runs])
        wanted = values.min(), values.max()
        assert found[item.data_identity] == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_a_model_without_contractions_is_refused() -> None:
    maker = GraphMaker()
    graph = maker.graph(maker.node("relu", maker.input(2, 3)))
    with pytest.raises(SettingsError, match="no contraction that could be computed in int8"):
        calibrate(graph, samples_of(graph), Method.of("minmax"), Compiled())
