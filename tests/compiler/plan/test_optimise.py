from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_same_meaning,
    extracted,
    kernel_names,
    operators,
)
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import structurally_equal
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.optimise import PASS_NAMES, optimise


def residual_network() -> Graph:
    maker = GraphMaker()

    def conv(x: str, outputs: int, size: int, stride: int = 1) -> str:
        channels = maker.types[x].shape[1]
        weight = maker.weights(outputs, channels, size, size, scale=1 / (channels * size))
        y = maker.node("conv", x, weight, strides=(stride, stride), pads=(size // 2,) * 4)
        positive = maker.constant(abs(maker.rng.standard_normal(outputs).astype("float32")) + 0.5)
        rest = [maker.weights(outputs) for _ in range(3)]
        return maker.node("batch_norm", y, *rest, positive)

    x = maker.node("relu", conv(maker.input(1, 3, 20, 20), 12, 5, 2))
    y = maker.node("relu", conv(x, 12, 3))
    x = maker.node("relu", maker.node("add", conv(y, 12, 3), x))
    y = maker.node("add", conv(x, 24, 3, 2), conv(x, 24, 1, 2))
    y = maker.node("reduce_mean", maker.node("relu", y), axes=(2, 3), keepdims=False)
    y = maker.node("matmul", y, maker.weights(24, 10))
    return maker.graph(maker.node("softmax", maker.node("add", y, maker.weights(10)), axis=1))


@pytest.mark.parametrize("block", [None, 4, 8, 16])
def test_meaning_is_kept(block: int | None) -> None:
    graph = residual_network()
    optimised = optimise(graph, block)
    assert_same_meaning(graph, optimised)
    assert structurally_equal(optimise(optimised, block), optimised)
    names = kernel_names(extracted(optimised))
    assert names.count("conv_relu") == 2
    assert names.count("conv_add_relu") == 2


def test_blocked_network_has_no_conversions_inside() -> None:
    optimised = optimise(residual_network(), 4)
    assert not any(name.endswith("_blocked") for name in operators(optimised))
    optimised = optimise(residual_network(), 16)
    assert [n for n in operators(optimised) if n.endswith("_blocked")] == ["from_blocked"]


def test_observer_sees_every_pass_in_order() -> None:
    seen: list[str] = []
    final: list[Graph] = []

    def observe(name: str, graph: Graph) -> None:
        seen.append(name)
        final.append(graph)

    result = optimise(residual_network(), 8, observe)
    assert tuple(seen) == PASS_NAMES
    assert len(set(seen)) == len(seen)
    assert final[-1] == result


def test_broken_graph_is_refused_before_the_first_pass() -> None:
    graph = residual_network()
    with pytest.raises(VerifyError):
        optimise(replace(graph, outputs=("nowhere",)), 8)


def test_equal_models_give_equal_programs() -> None:
    first, second = (extract_kernels(optimise(residual_network(), 8)) for _ in range(2))
    assert first.calls == second.calls


def test_attention_is_found_behind_a_softmax_that_is_spelled_out() -> None:
    maker = GraphMaker()
    query, key, value = (maker.input(2, 9, 8) for _ in range(3))
    exponential = maker.node("exp", maker.node("matmul", query, key, transpose_b=True))
    total = maker.node("reduce_sum", exponential, axes=(2,), keepdims=True)
    weights = maker.node("div", exponential, total)
    graph = maker.graph(maker.node("matmul", weights, value))
    assert "attention" in operators(optimise(graph, 8))
