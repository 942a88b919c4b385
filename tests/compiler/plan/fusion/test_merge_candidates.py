"""What may be merged: windows that read the same data alike, and are read in place afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime import InferenceSession

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_same_meaning,
    random_inputs,
)
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan.choices.graph_sites import graph_sites
from tunefarm.compiler.plan.decisions.graph_plan import GraphPlan, Merged
from tunefarm.compiler.plan.fusion.merge_candidates import merge_candidates
from tunefarm.compiler.plan.fusion.merge_contractions import run
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.target import host_target

LANES = 8


def before_layouts(name: str, size: Size) -> Graph:
    seen: dict[str, Graph] = {}
    graph = import_model_proto(build_model(name, size=size))
    optimise(graph, LANES, lambda stage, made: seen.update({stage: made}))
    return seen["cut_windows"]


def conv(maker: GraphMaker, x: str, outputs: int, size: int = 3) -> str:
    weight = maker.weights(outputs, maker.types[x].shape[1], size, size)
    return maker.node("conv", x, weight, pads=(size // 2,) * 4)


@pytest.mark.nightly
def test_merged_networks_give_what_onnxruntime_does() -> None:
    model = build_model("yolov8n", size=Size(image=32, width=0.25, classes=3))
    graph, session = import_model_proto(model), InferenceSession(model.SerializeToString())
    merges = graph_sites(graph, host_target()).merges
    assert merges
    built = Executable(compile_model(graph, plan=GraphPlan(merges)).spec)
    inputs = random_inputs(graph)
    outputs = built.run(inputs)
    for output, expected in zip(graph.outputs, session.run(None, dict(inputs)), strict=True):
        np.testing.assert_allclose(outputs[output], expected, rtol=1e-3, atol=1e-3)


def test_heads_of_a_detector() -> None:
    graph = before_layouts("yolov8n", Size(image=64, width=0.25, classes=3))
    found = merge_candidates(graph)
    names = [tuple(value.partition("_")[0] for value in decision.values) for decision in found]
    assert names == [(f"head{at}.box0.conv", f"head{at}.class0.conv") for at in range(3)]
    assert_same_meaning(graph, run(graph, LANES, GraphPlan(tuple(found))))


def test_what_begins_a_concat_comes_last_and_what_ends_one_first() -> None:
    maker = GraphMaker()
    x = maker.input(1, 16, 5, 5)
    begins, middle, other, ends = (conv(maker, x, 8) for _ in range(4))
    wide = conv(maker, maker.node("relu", other), 8)
    parts = (maker.node("relu", begins), middle, wide, maker.node("relu", ends))
    graph = maker.graph(conv(maker, maker.node("concat", *parts, axis=1), 8))
    assert merge_candidates(graph) == [Merged((ends, other, begins))]


def test_nothing_of_several_images_or_of_other_windows() -> None:
    maker = GraphMaker()
    x, y = maker.input(2, 16, 5, 5), maker.input(1, 16, 5, 5)
    several = [maker.node("relu", conv(maker, x, 8)) for _ in range(2)]
    windows = [maker.node("relu", conv(maker, y, 8, size)) for size in (1, 1, 3)]
    assert merge_candidates(maker.graph(*several, *windows)) == []


def test_nothing_that_is_an_output() -> None:
    maker = GraphMaker()
    x = maker.input(1, 16, 5, 5)
    first, second = conv(maker, x, 8), conv(maker, x, 8)
    assert merge_candidates(maker.graph(first, maker.node("relu", second))) == []
