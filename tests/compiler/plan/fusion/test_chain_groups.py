from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    evaluate_graph,
    evaluate_program,
    random_inputs,
)
from tunefarm.compiler.errors import VerifyError
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.chain import chain_parts, rows_read
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.types.signature import ResultSource, Signature
from tunefarm.compiler.types.sizes import Symbol


def conv(maker: GraphMaker, data: str, outputs: int, kernel: int = 1, groups: int = 1) -> str:
    channels = maker.types[data].shape[1] * 4
    pads = (kernel // 2,) * 4
    weight = maker.weights(outputs, channels // groups, kernel, kernel)
    bias = maker.weights(outputs)
    return maker.node("conv", data, weight, bias, layout="NCHWc", pads=pads, groups=groups)


def residual(maker: GraphMaker) -> tuple[str, list[str]]:
    """Expand, filter and project, with the input added; and the values between."""
    x = maker.input(1, 1, 5, 6, 4)
    first = conv(maker, x, 8)
    second = conv(maker, maker.node("clip", first, min=0.0, max=6.0), 8, 3, 8)
    y = conv(maker, maker.node("clip", second, min=0.0, max=6.0), 4)
    return maker.node("add", y, x), [first, second]


def calls_of(graph: Graph, *values: str) -> list[KernelCall]:
    program = extract_kernels(graph, chains=values)
    return [call for call in program.calls if isinstance(call, KernelCall)]


@pytest.mark.parametrize("chosen", [(0,), (1,), (0, 1)], ids=str)
def test_chained_values_are_computed_in_their_readers_kernel(chosen: tuple[int, ...]) -> None:
    maker = GraphMaker()
    y, between = residual(maker)
    graph = maker.graph(y)
    program = extract_kernels(graph, chains=[between[number] for number in chosen])
    calls = [call for call in program.calls if isinstance(call, KernelCall)]
    assert len(calls) == 3 - len(chosen)
    assert {len(chain_parts(call.kernel)) for call in calls} <= {0, len(chosen) + 1}
    inputs = random_inputs(graph)
    (found,), (expected,) = evaluate_program(program, inputs), evaluate_graph(graph, inputs)
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_expensive_values_that_an_epilogue_reads_twice_are_part_of_it() -> None:
    maker = GraphMaker()
    first = conv(maker, maker.input(1, 1, 5, 6, 4), 4)
    gate = maker.node("sigmoid", first)
    y = conv(maker, maker.node("mul", gate, maker.node("sigmoid", gate)), 4, 3)
    graph = maker.graph(y)
    (call,) = calls_of(graph, first)
    parts = chain_parts(call.kernel)
    assert [[stage.name for stage in part.stages] for part in parts] == [
        ["conv", "mul"],
        ["pad", "conv_1", "bias_1"],
    ]
    assert rows_read(parts[1], "oh", 2) == 4


def test_each_part_has_its_padding_reduction_and_epilogue() -> None:
    maker = GraphMaker()
    y, between = residual(maker)
    (call,) = calls_of(maker.graph(y), *between)
    parts = chain_parts(call.kernel)
    assert [[stage.name for stage in part.stages] for part in parts] == [
        ["conv", "clip"],
        ["pad", "conv_1", "clip_1"],
        ["conv_2", "add"],
    ]
    assert call.kernel.anchor == "conv_2"
    assert [part.inputs[-1].name for part in parts[1:]] == ["clip", "clip_1"]


def test_what_is_no_chain_has_no_parts() -> None:
    maker = GraphMaker()
    y = maker.node("softmax", maker.input(3, 4), axis=1)
    (call,) = calls_of(maker.graph(y))
    assert chain_parts(call.kernel) == ()


def test_alike_blocks_with_and_without_a_chain_have_kernels_of_their_own() -> None:
    maker = GraphMaker()
    x = maker.input(1, 1, 5, 6, 4)
    first = conv(maker, x, 4)
    y = conv(maker, conv(maker, conv(maker, first, 4), 4), 4)
    assert len(calls_of(maker.graph(y), first)) == 3


def output_between(maker: GraphMaker) -> tuple[Graph, str]:
    first = conv(maker, maker.input(1, 1, 5, 6, 4), 4)
    return maker.graph(conv(maker, first, 4), first), first


def two_readers(maker: GraphMaker) -> tuple[Graph, str]:
    first = conv(maker, maker.input(1, 1, 5, 6, 4), 4)
    return maker.graph(maker.node("add", conv(maker, first, 4), first)), first


def plain_data(maker: GraphMaker) -> tuple[Graph, str]:
    x = maker.input(1, 4, 5, 6)
    first = maker.node("conv", x, maker.weights(4, 4, 1, 1))
    return maker.graph(maker.node("conv", first, maker.weights(4, 4, 1, 1))), first


def read_by_a_softmax(maker: GraphMaker) -> tuple[Graph, str]:
    first = maker.node("matmul", maker.input(3, 4), maker.weights(4, 5))
    return maker.graph(maker.node("softmax", first, axis=1)), first


def as_weights(maker: GraphMaker) -> tuple[Graph, str]:
    first = maker.node("matmul", maker.input(3, 4), maker.weights(4, 5))
    return maker.graph(maker.node("matmul", maker.input(2, 3), first)), first


def groups_of_several(maker: GraphMaker) -> tuple[Graph, str]:
    first = conv(maker, maker.input(1, 2, 5, 6, 4), 8, 1, 2)
    return maker.graph(conv(maker, first, 4)), first


def epilogue(maker: GraphMaker) -> tuple[Graph, str]:
    first = conv(maker, maker.input(1, 1, 5, 6, 4), 4)
    relu = maker.node("relu", first)
    return maker.graph(conv(maker, relu, 4)), relu


@pytest.mark.parametrize(
    "make",
    [
        output_between,
        two_readers,
        plain_data,
        read_by_a_softmax,
        as_weights,
        groups_of_several,
        epilogue,
    ],
)
def test_chains_that_do_not_fit_are_refused(
    make: Callable[[GraphMaker], tuple[Graph, str]],
) -> None:
    graph, value = make(GraphMaker())
    with pytest.raises(VerifyError, match=f"'{value}' cannot be computed in its reader's kernel"):
        calls_of(graph, value)


def with_computed_size(where: str) -> tuple[Graph, str]:
    """Two convolutions, and a size that is computed of their result, or of another input."""
    maker = GraphMaker()
    first = conv(maker, maker.input(1, 1, 5, 6, 4), 4)
    y = conv(maker, first, 4)
    read = y if where == "after" else maker.input(1, 1, 5, 6, 4)
    highest = maker.node("reduce_max", read, axes=(0, 1, 2, 3, 4), keepdims=False)
    count = maker.node("cast", highest, to="i64")
    graph = maker.graph(y, count)
    symbol = Symbol("n", 1, 9)
    signature = Signature((), (), (ResultSource(symbol, count, 0),), ())
    return replace(graph, dynamic=signature), first


def test_chains_stand_before_sizes_that_a_run_computes_not_behind_them() -> None:
    assert len(calls_of(*with_computed_size("after"))) < 4
    with pytest.raises(VerifyError, match="cannot be computed"):
        calls_of(*with_computed_size("before"))


def test_four_parts_are_too_many() -> None:
    maker = GraphMaker()
    y = maker.input(1, 1, 5, 6, 4)
    values = []
    for _ in range(4):
        y = conv(maker, y, 4)
        values.append(y)
    with pytest.raises(VerifyError, match="cannot be computed"):
        calls_of(maker.graph(y), *values[:3])
