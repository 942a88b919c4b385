"""Inputs take over the padding that is appended to them, and nothing else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.compiler.frontend.onnx_models import model, tensor
from tests.compiler.frontend.sized_models import check_sizes
from tests.compiler.graph.graph_helpers import operators
from tests.compiler.runtime.sized_graphs import SizedMaker, symbol
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.widen_places import widen_places
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.extents import Shapes
from tunefarm.compiler.types.signature import AxisSource


def cache() -> onnx.ModelProto:
    nodes = "present = Concat past new axis=2; total = ReduceSum present axes keepdims=0"
    inputs = [tensor("past", ["b", 2, "past", 3]), tensor("new", ["b", 2, 1, 3])]
    return model(nodes, inputs, ["total", "present"], {"axes": np.array([2])})


SHAPES: Shapes = {"past": ("b:1..2", 2, "past:0..6", 3), "new": ("b:1..2", 2, 1, 3)}


def test_cache_lies_in_one_way_before_and_after_a_step() -> None:
    rng = np.random.default_rng(0)
    calls = [
        {name: rng.standard_normal((b, 2, n, 3)).astype(np.float32) for name, n in lengths}
        for b, lengths in ((1, (("past", 3), ("new", 1))), (2, (("past", 6), ("new", 1))))
    ]
    graph = check_sizes(cache(), SHAPES, calls)
    assert "pad" not in operators(graph)
    assert graph.types["past"] == graph.types["present"]


def padded(value: float = 0.0, before: int = 0, *, also: bool = False) -> Graph:
    """What a pad makes of the input x: f32[3, n:0..4], and perhaps another reader of x."""
    maker = SizedMaker()
    n, length = symbol("n", 0, 4)
    x = maker.port("x", DType.F32, 3, (length, 4))
    maker.sources.append(AxisSource(n, x, 1))
    pad = maker.node("pad", x, pads=(0, before, 0, 2), value=value)
    filled = maker.filled(pad, 1, length)
    outputs = [maker.node("reduce_sum", filled, axes=(1,), keepdims=False)]
    if also:
        outputs.append(maker.node("reduce_max", x, axes=(0,), keepdims=False))
    return maker.sized({outputs[0]: (3,), **({outputs[1]: ((length, 4),)} if also else {})})


def test_padding_at_the_end_is_taken_over() -> None:
    graph = widen_places(padded())
    assert graph.types["x"].shape == (3, 6)
    assert str(graph.signature.inputs[0]) == "f32[3, n:0..4]"
    assert "pad" not in operators(graph)


@pytest.mark.parametrize("graph", [padded(before=1), padded(also=True)], ids=["before", "read"])
def test_other_padding_stays(graph: Graph) -> None:
    assert widen_places(graph) is graph
