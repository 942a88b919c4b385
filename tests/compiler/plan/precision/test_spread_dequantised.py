"""Readers that can widen integers for themselves read integers."""

from __future__ import annotations

import numpy as np

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    evaluate_graph,
    evaluate_program,
    operators,
)
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.precision import spread_dequantised
from tunefarm.compiler.types.dtypes import DType


def _shared(*readers: str) -> Graph:
    """One dequantized value, read by a mean over space, itself times that, and convolutions."""
    maker = GraphMaker()
    x = maker.input(1, 4, 5, 5, dtype=DType.U8)
    start = maker.node("dequantize", x, maker.scalar(0.25), to="f32")
    found = []
    for reader in readers:
        if reader == "mean":
            found.append(maker.node("reduce_mean", start, axes=(2, 3), keepdims=True))
        elif reader == "square":
            found.append(maker.node("mul", start, start))
        else:
            found.append(maker.node("conv", start, maker.weights(2, 4, 1, 1)))
    return maker.graph(*found)


def _check(graph: Graph, count: int) -> Graph:
    spread = spread_dequantised.run(graph)
    assert operators(spread).count("dequantize") == count
    x = np.random.default_rng(0).integers(0, 256, (1, 4, 5, 5)).astype(np.uint8)
    inputs = {graph.inputs[0]: x}
    for found, expected in zip(
        evaluate_graph(spread, inputs), evaluate_graph(graph, inputs), strict=True
    ):
        np.testing.assert_array_equal(found, expected, strict=True)
    return spread


def test_kernels_of_pointwise_readers_and_reductions_read_bytes() -> None:
    spread = _check(_shared("mean", "square", "square"), 3)
    program = extract_kernels(spread)
    assert len(program.calls) == 3
    assert evaluate_program(program, {spread.inputs[0]: np.ones((1, 4, 5, 5), np.uint8)})


def test_contractions_share_one() -> None:
    _check(_shared("conv", "conv"), 1)
    _check(_shared("conv", "mean", "conv"), 2)
    _check(_shared("mean", "conv"), 2)


def test_a_single_reader_keeps_the_graph() -> None:
    graph = _shared("mean")
    assert spread_dequantised.run(graph) is graph
