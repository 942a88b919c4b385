from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.graph import fold_batch_norm
from tunefarm.compiler.graph.serialize import structurally_equal


def batch_norm(maker: GraphMaker, x: str, channels: int) -> str:
    variance = maker.constant(maker.rng.random(channels, dtype=np.float32) + 0.5)
    parameters = (maker.weights(channels), maker.weights(channels), maker.weights(channels))
    return maker.node("batch_norm", x, *parameters, variance, epsilon=1e-3)


def conv(maker: GraphMaker) -> str:
    return maker.node("conv", maker.input(1, 3, 6, 6), maker.weights(4, 3, 3, 3))


def grouped_conv_with_bias(maker: GraphMaker) -> str:
    x = maker.input(1, 6, 6, 6)
    return maker.node("conv", x, maker.weights(4, 3, 3, 3), maker.weights(4), groups=2)


def transposed_conv(maker: GraphMaker) -> str:
    x = maker.input(1, 6, 3, 3)
    weight = maker.weights(6, 2, 2, 2)
    return maker.node(
        "conv_transpose", x, weight, maker.weights(4), groups=2, strides=(2, 2), shape=(6, 6)
    )


def matmul(maker: GraphMaker) -> str:
    return maker.node("matmul", maker.input(5, 3), maker.weights(3, 4))


def matmul_transposed_with_bias(maker: GraphMaker) -> str:
    product = maker.node("matmul", maker.input(5, 3), maker.weights(4, 3), transpose_b=True)
    return maker.node("add", maker.weights(4), product)


@pytest.mark.parametrize(
    "contraction",
    [conv, grouped_conv_with_bias, transposed_conv, matmul, matmul_transposed_with_bias],
)
def test_norm_is_folded_into_constant_weights(contraction: Callable[[GraphMaker], str]) -> None:
    maker = GraphMaker()
    graph = maker.graph(maker.node("relu", batch_norm(maker, contraction(maker), 4)))
    folded = fold_batch_norm.run(graph)
    kind = graph.nodes[0].operator
    expected = [kind, "add", "relu"] if kind == "matmul" else [kind, "relu"]
    assert operators(folded) == expected
    assert_same_meaning(graph, folded)
    assert structurally_equal(fold_batch_norm.run(folded), folded)


def test_norm_of_anything_else_becomes_mul_and_add() -> None:
    maker = GraphMaker()
    graph = maker.graph(batch_norm(maker, maker.input(2, 4, 3, 3), 4))
    folded = fold_batch_norm.run(graph)
    assert operators(folded) == ["mul", "add"]
    assert_same_meaning(graph, folded)


def test_contraction_that_is_needed_elsewhere_keeps_its_weights() -> None:
    maker = GraphMaker()
    y = conv(maker)
    graph = maker.graph(batch_norm(maker, y, 4), y)
    folded = fold_batch_norm.run(graph)
    assert operators(folded) == ["conv", "mul", "add"]
    assert_same_meaning(graph, folded)


def test_weights_known_at_run_time_only_are_not_folded() -> None:
    maker = GraphMaker()
    y = maker.node("conv", maker.input(1, 3, 6, 6), maker.input(4, 3, 3, 3))
    graph = maker.graph(batch_norm(maker, y, 4))
    assert operators(fold_batch_norm.run(graph)) == ["conv", "mul", "add"]


def test_addition_over_another_axis_is_not_folded() -> None:
    maker = GraphMaker()
    product = maker.node("matmul", maker.input(4, 3), maker.weights(3, 4))
    shifted = maker.node("add", product, maker.weights(4, 1))
    graph = maker.graph(batch_norm(maker, shifted, 4))
    folded = fold_batch_norm.run(graph)
    assert operators(folded) == ["matmul", "add", "mul", "add"]
    assert_same_meaning(graph, folded)


def test_parameters_known_at_run_time_only_leave_the_norm() -> None:
    maker = GraphMaker()
    x, scale = maker.input(2, 4, 3), maker.input(4)
    variance = maker.constant(np.ones(4, np.float32))
    y = maker.node("batch_norm", x, scale, maker.weights(4), maker.weights(4), variance)
    assert operators(fold_batch_norm.run(maker.graph(y))) == ["batch_norm"]
