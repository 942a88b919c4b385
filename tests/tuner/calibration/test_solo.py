"""What single contractions cost of the outputs, and which of them stay as they are."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm import compiler
from tunefarm.compiler.plan.apply_precisions import prepare
from tunefarm.compiler.plan.precision.contractions import contractions
from tunefarm.compiler.types.precision import Precision
from tunefarm.tuner.calibration.collect import SoloRuns, calibrate, noises, too_noisy, too_sensitive
from tunefarm.tuner.calibration.data import SampleForm, Samples
from tunefarm.tuner.calibration.ranges import Method


def test_a_contraction_that_reads_far_apart_values_is_the_noisiest() -> None:
    maker = GraphMaker()
    x = maker.input(4, 16)
    even = maker.node("matmul", x, maker.weights(16, 16))
    spread = maker.constant(np.where(np.arange(16) == 3, 1000.0, 1.0).astype(np.float32))
    scaled = maker.node("mul", even, spread)
    back = np.diag(np.where(np.arange(16) == 3, 0.001, 1.0)).astype(np.float32)
    graph = prepare(maker.graph(maker.node("matmul", scaled, maker.constant(back))))
    rng = np.random.default_rng(0)
    runs = [{graph.inputs[0]: rng.standard_normal((4, 16)).astype(np.float32)} for _ in range(4)]
    samples = Samples.of(runs, SampleForm(graph.signature))
    calibration = calibrate(graph, samples, Method(), compiler.build)
    solo = SoloRuns.of(graph, [Precision.INT8], calibration, samples, compiler.build)
    found = noises(solo, Precision.INT8)
    first, second = contractions(graph)
    assert found[first.identity] < 0.02 < found[second.identity]
    assert too_noisy([first, second], found, 0.02) == [second]
    assert too_noisy([first, second], found, 10.0) == []
    assert set(too_noisy([first, second], found, 0.0)) == {first, second}
    assert too_sensitive(graph, calibration, samples, compiler.build) == [second]
    with pytest.raises(KeyError):
        solo.outputs(first.identity, Precision.BF16)


def test_scores_beside_boxes_in_pixels_have_a_noise_of_their_own() -> None:
    maker = GraphMaker()
    x = maker.input(4, 16)
    pixels = maker.node("mul", maker.node("matmul", x, maker.weights(16, 4)), maker.scalar(1000.0))
    even = maker.node("matmul", x, maker.weights(16, 16))
    spread = maker.constant(np.where(np.arange(16) == 3, 1000.0, 1.0).astype(np.float32))
    back = np.diag(np.where(np.arange(16) == 3, 0.001, 1.0)).astype(np.float32)
    scores = maker.node("matmul", maker.node("mul", even, spread), maker.constant(back))
    graph = prepare(maker.graph(maker.node("concat", pixels, scores, axis=1)))
    rng = np.random.default_rng(0)
    runs = [{graph.inputs[0]: rng.standard_normal((4, 16)).astype(np.float32)} for _ in range(4)]
    samples = Samples.of(runs, SampleForm(graph.signature))
    calibration = calibrate(graph, samples, Method(), compiler.build)
    noisiest = [item for item in contractions(graph) if item.value == scores]
    assert noisiest and too_sensitive(graph, calibration, samples, compiler.build) == noisiest
