from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.graph import fold_constants
from tunefarm.compiler.graph.serialize import structurally_equal
from tunefarm.compiler.types.dtypes import DType


def test_constant_nodes_become_constants() -> None:
    maker = GraphMaker()
    x = maker.input(4, 3)
    weight = maker.node("transpose", maker.weights(3, 4), perm=(1, 0))
    graph = maker.graph(maker.node("mul", x, maker.node("exp", weight)))
    folded = fold_constants.run(graph)
    assert operators(folded) == ["mul"]
    assert_same_meaning(graph, folded)
    assert structurally_equal(fold_constants.run(folded), folded)


def test_what_depends_on_an_input_stays() -> None:
    maker = GraphMaker()
    x = maker.input(4)
    graph = maker.graph(maker.node("add", maker.node("exp", x), maker.weights(4)))
    assert operators(fold_constants.run(graph)) == ["exp", "add"]


def test_large_growth_is_not_folded_but_small_is() -> None:
    maker = GraphMaker()
    one = maker.scalar(1.5)
    large = maker.node("expand", one, shape=(1 << 19,))  # 2 MiB from 4 bytes
    small = maker.node("expand", one, shape=(1 << 10,))
    folded = fold_constants.run(maker.graph(large, small))
    assert operators(folded) == ["expand"]
    assert folded.outputs == (large, small)
    assert small in folded.constants


def test_large_results_of_large_constants_are_folded() -> None:
    maker = GraphMaker()
    weight = maker.constant(np.ones((1024, 512), np.float32))
    graph = maker.graph(maker.node("transpose", weight, perm=(1, 0)))
    folded = fold_constants.run(graph)
    assert folded.nodes == ()
    assert folded.outputs == graph.outputs
    assert not folded.constants[graph.outputs[0]].flags.writeable


def test_weights_that_waited_are_folded_at_any_size() -> None:
    maker = GraphMaker()
    filters = maker.node(
        "dequantize",
        maker.constant(np.ones((512, 128, 3, 3), np.int8)),  # 2.25 MiB as floats
        maker.scalar(0.5),
        to="f32",
    )
    graph = maker.graph(maker.node("conv", maker.input(1, 128, 7, 7), filters))
    assert operators(fold_constants.early(graph)) == ["dequantize", "conv"]
    folded = fold_constants.run(graph)
    assert operators(folded) == ["conv"]
    assert_same_meaning(graph, folded)


@pytest.mark.parametrize("dtype", ["f16", "i8"])
def test_weights_that_are_widened_are_folded_at_any_size(dtype: str) -> None:
    """As in files of 16-bit weights: a convolution has no filters but those of its own type."""
    maker = GraphMaker()
    stored = maker.constant(np.ones((512, 128, 3, 3), DType(dtype).numpy))  # 2.25 MiB as floats
    filters = maker.node("cast", stored, to="f32")
    graph = maker.graph(maker.node("conv", maker.input(1, 128, 7, 7), filters))
    assert operators(fold_constants.early(graph)) == ["cast", "conv"]
    folded = fold_constants.run(graph)
    assert operators(folded) == ["conv"]
    assert_same_meaning(graph, folded)


def test_what_is_widened_for_pointwise_readers_stays_as_it_is_stored() -> None:
    maker = GraphMaker()
    stored = maker.constant(np.ones((1024, 512), np.float16))  # 2 MiB as floats
    added = maker.node("add", maker.input(1024, 512), maker.node("cast", stored, to="f32"))
    assert operators(fold_constants.run(maker.graph(added))) == ["cast", "add"]


def test_a_table_that_elements_are_looked_up_in_stays_as_it_is_stored() -> None:
    maker = GraphMaker()
    table = maker.constant(np.ones((4096, 128), np.int8))
    rows = maker.node("dequantize", table, maker.scalar(0.5), to="f32")
    picked = maker.node("gather", rows, maker.input(5, dtype=DType.I64), axis=0)
    graph = maker.graph(picked)
    assert operators(fold_constants.run(graph)) == ["dequantize", "gather"]


def test_a_large_table_that_is_added_stays_as_it_is_stored() -> None:
    maker = GraphMaker()
    table = maker.constant(np.ones((4096, 128), np.int8))
    wide = maker.node("dequantize", table, maker.scalar(0.5), to="f32")
    graph = maker.graph(maker.node("add", maker.input(4096, 128), wide))
    assert operators(fold_constants.run(graph)) == ["dequantize", "add"]
