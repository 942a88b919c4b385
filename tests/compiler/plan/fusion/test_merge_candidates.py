"""What may be merged: only what reads the same data alike, and can be read in place afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime import InferenceSession

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_same_meaning,
    operators,
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
from tunefarm.compiler.plan.fusion.merge_contractions import merged_name, run
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.target import host_target

LANES = 8


def before_layouts(name: str, size: Size) -> Graph:
    seen: dict[str, Graph] = {}
    graph = import_model_proto(build_model(name, size=size))
    optimise(graph, LANES, lambda stage, made: seen.update({stage: made}))
    return seen["cut_windows"]


def conv(maker: GraphMaker, x: str, outputs: int, size: int = 1) -> str:
    weight = maker.weights(outputs, maker.types[x].shape[1], size, size)
    return maker.node("conv", x, weight, pads=(size // 2,) * 4)


def matmul(maker: GraphMaker, x: str, columns: int) -> str:
    return maker.node("matmul", x, maker.weights(maker.types[x].shape[-1], columns))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("encoder", Size(layers=1, tokens=9, width=0.125)),
        pytest.param("yolov8n", Size(image=32, width=0.25, classes=3), marks=pytest.mark.nightly),
        ("decoder_step", Size(layers=1, tokens=7, width=0.25, classes=32)),
    ],
)
def test_merged_networks_give_what_onnxruntime_does(name: str, size: Size) -> None:
    model = build_model(name, size=size)
    graph, session = import_model_proto(model), InferenceSession(model.SerializeToString())
    merges = graph_sites(graph, host_target()).merges
    assert merges
    built = Executable(compile_model(graph, plan=GraphPlan(merges)).spec)
    inputs = random_inputs(graph)
    outputs = built.run(inputs)
    for output, expected in zip(graph.outputs, session.run(None, dict(inputs)), strict=True):
        np.testing.assert_allclose(outputs[output], expected, rtol=1e-3, atol=1e-3)


def test_query_key_and_value_of_an_encoder() -> None:
    graph = before_layouts("encoder", Size(layers=2, tokens=8, width=0.125))
    found = merge_candidates(graph)
    assert [len(decision.values) for decision in found] == [3, 3]
    result = run(graph, LANES, GraphPlan(tuple(found)))
    assert_same_meaning(graph, result)
    assert [merged_name(decision) in result.types for decision in found] == [True, True]
    assert operators(result).count("attention") == 2
    assert operators(result).count("matmul") == operators(graph).count("matmul") - 4


def test_heads_of_a_detector() -> None:
    graph = before_layouts("yolov8n", Size(image=64, width=0.25, classes=3))
    found = merge_candidates(graph)
    names = [tuple(value.partition("_")[0] for value in decision.values) for decision in found]
    assert names == [(f"head{at}.box0.conv", f"head{at}.class0.conv") for at in range(3)]
    assert_same_meaning(graph, run(graph, LANES, GraphPlan(tuple(found))))


def test_step_of_a_decoder_has_products_of_any_columns() -> None:
    graph = before_layouts("decoder_step", Size(layers=1, tokens=8, width=0.5, classes=64))
    found = merge_candidates(graph)
    assert [len(decision.values) for decision in found] == [3, 2]
    assert_same_meaning(graph, run(graph, LANES, GraphPlan(tuple(found))))


def test_products_of_several_rows_have_as_many_columns() -> None:
    maker = GraphMaker()
    x = maker.input(4, 16)
    values = [maker.node("relu", matmul(maker, x, columns)) for columns in (8, 12, 8)]
    graph = maker.graph(*values)
    first, _, third = (node.output for node in graph.nodes if node.operator == "matmul")
    assert merge_candidates(graph) == [Merged((first, third))]


def test_what_begins_a_concat_comes_last_and_what_ends_one_first() -> None:
    maker = GraphMaker()
    x = maker.input(1, 16, 5, 5)
    begins, middle, other, ends = (conv(maker, x, 8) for _ in range(4))
    wide = conv(maker, maker.node("relu", other), 8, 3)
    parts = (maker.node("relu", begins), middle, wide, maker.node("relu", ends))
    graph = maker.graph(conv(maker, maker.node("concat", *parts, axis=1), 8))
    assert merge_candidates(graph) == [Merged((ends, other, begins))]


def test_nothing_of_several_images_or_of_other_windows() -> None:
    maker = GraphMaker()
    x, y = maker.input(2, 16, 5, 5), maker.input(1, 16, 5, 5)
    several = [maker.node("relu", conv(maker, x, 8)) for _ in range(2)]
    windows = [maker.node("relu", conv(maker, y, 8, size)) for size in (1, 3)]
    assert merge_candidates(maker.graph(*several, *windows)) == []


def test_nothing_that_is_an_output() -> None:
    maker = GraphMaker()
    x = maker.input(4, 16)
    first, second = matmul(maker, x, 8), matmul(maker, x, 8)
    assert merge_candidates(maker.graph(first, maker.node("relu", second))) == []
