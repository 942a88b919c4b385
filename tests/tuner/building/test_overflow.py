"""Numbers that f16 does not hold are told when a model is built."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.frontend.onnx_models import model, node, tensor
from tests.compiler.graph.graph_helpers import GraphMaker
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.target import host_target
from tunefarm.configs.settings import load_settings
from tunefarm.tuner.building.lowered import compile_with, overflow_note


def products(factor: float) -> Graph:
    maker = GraphMaker()
    data = maker.input(4, 64)
    large = maker.node("mul", maker.node("relu", data), maker.scalar(factor))
    weights = maker.constant(np.ones((64, 64), np.float32))
    graph = maker.graph(maker.node("matmul", large, weights))
    nodes = (*graph.nodes[:-1], replace(graph.nodes[-1], source="wide"))
    return replace(graph, nodes=nodes)


@pytest.mark.parametrize(
    ("numerics", "factor", "named"), [("f16", 1e6, True), ("f16", 1.0, False), ("bf16", 1e6, False)]
)
def test_contractions_that_read_what_f16_does_not_hold_are_named(
    numerics: str, factor: float, named: bool
) -> None:
    settings = load_settings(None, {"compile.numerics": numerics, "cache.enabled": False})
    graph = products(factor)
    built = compile_with(graph, None, settings, host_target())
    note = overflow_note(graph, built, settings)
    assert note.endswith("65504, bf16 does not: operands of wide") is named
    assert bool(note) is named


def test_they_are_named_where_sizes_are_open() -> None:
    nodes = [node("Mul", "x factor", "large"), node("MatMul", "large w", name="wide")]
    constants = {"factor": np.array(1e6, np.float32), "w": np.ones((64, 64), np.float32)}
    proto = model(nodes, [tensor("x", ["b", 64])], constants=constants)
    graph = import_model_proto(proto, shapes={"b": ("1..4",)})
    settings = load_settings(None, {"compile.numerics": "f16", "cache.enabled": False})
    note = overflow_note(graph, compile_with(graph, None, settings, host_target()), settings)
    assert note.endswith("bf16 does not: operands of wide")
