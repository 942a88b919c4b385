"""Casts to f32 and back around an operator are left out where they say what it does anyway."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.graph import recognise_patterns
from tunefarm.compiler.types.dtypes import DType

NARROW = pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])


@NARROW
def test_softmax_in_f32_is_that_of_the_stored_type(dtype: DType) -> None:
    maker = GraphMaker()
    wide = maker.node("cast", maker.input(3, 7, dtype=dtype), to="f32")
    graph = maker.graph(maker.node("cast", maker.node("softmax", wide, axis=1), to=str(dtype)))
    after = recognise_patterns.run(graph)
    assert operators(after) == ["softmax"]
    assert_same_meaning(graph, after, tolerance=0)


@NARROW
@pytest.mark.parametrize("exact", [True, False])
def test_parameters_are_stored_where_that_loses_nothing(dtype: DType, exact: bool) -> None:
    maker = GraphMaker()
    wide = maker.node("cast", maker.input(3, 7, dtype=dtype), to="f32")
    values = np.linspace(0.1, 1, 7)
    scale, bias = (
        maker.constant((values.astype(dtype.numpy) if exact else values).astype(np.float32))
        for _ in range(2)
    )
    norm = maker.node("layer_norm", wide, scale, bias, axis=1)
    graph = maker.graph(maker.node("cast", norm, to=str(dtype)))
    after = recognise_patterns.run(graph)
    assert operators(after) == (["layer_norm"] if exact else ["cast", "layer_norm", "cast"])
    assert_same_meaning(graph, after, tolerance=0)


@NARROW
def test_rms_norm_in_f32_takes_the_scale_behind_it(dtype: DType) -> None:
    maker = GraphMaker()
    x = maker.input(3, 7, dtype=dtype)
    wide = maker.node("cast", x, to="f32")
    square = maker.node("pow", wide, maker.scalar(2.0))
    mean = maker.node("reduce_mean", square, axes=(1,), keepdims=True)
    shifted = maker.node("add", mean, maker.scalar(1e-3))
    inverse = maker.node("reciprocal", maker.node("sqrt", shifted))
    normal = maker.node("cast", maker.node("mul", wide, inverse), to=str(dtype))
    scale = maker.constant(np.linspace(0.1, 1, 7).astype(dtype.numpy))
    graph = maker.graph(maker.node("mul", scale, normal))
    after = recognise_patterns.run(graph)
    assert operators(after) == ["rms_norm"]
    assert_same_meaning(graph, after, tolerance=2 * dtype.epsilon)


def test_casts_between_other_types_stay() -> None:
    for source, target in ((DType.BF16, DType.F16), (DType.F16, DType.F64)):
        maker = GraphMaker()
        wide = maker.node("cast", maker.input(3, 7, dtype=source), to="f32")
        graph = maker.graph(maker.node("cast", maker.node("softmax", wide, axis=1), to=str(target)))
        assert recognise_patterns.run(graph) == graph


def test_what_others_read_in_f32_stays() -> None:
    maker = GraphMaker()
    wide = maker.node("cast", maker.input(3, 7, dtype=DType.F16), to="f32")
    softmax = maker.node("softmax", wide, axis=1)
    graph = maker.graph(maker.node("cast", softmax, to="f16"), maker.node("neg", softmax))
    assert recognise_patterns.run(graph) == graph
