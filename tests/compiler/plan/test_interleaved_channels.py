"""Convolutions of few channels over rows that hold all of them, and those that stay."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_close,
    conv,
    evaluate_graph,
    operators,
)
from tests.targets import target_named
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.pipeline import kernels_of
from tunefarm.compiler.plan import interleaved_channels
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.numerics import DEFAULT_NUMERICS, Numerics
from tunefarm.compiler.types.tensor_type import Attribute

ROW_BYTES = 64
TILES = target_named("sapphirerapids")
BF16 = Numerics.of("bf16")


def convolution(
    shape: tuple[int, ...],
    kernel: tuple[int, int],
    dtype: DType = DType.U8,
    outputs: int = 16,
    **attributes: Attribute,
) -> Graph:
    maker = GraphMaker()
    data = maker.input(*shape, dtype=dtype)
    groups = attributes.get("groups", 1)
    assert isinstance(groups, int)
    filters = (outputs, shape[1] // groups, *kernel)
    if dtype is DType.F32:
        weight, bias = maker.weights(*filters), maker.weights(outputs)
    else:
        values = np.arange(prod(filters)) * 7 % 23 - 11
        weight = maker.constant(values.reshape(filters).astype(np.int8))
        bias = maker.constant(np.arange(outputs, dtype=np.int32))
        attributes["accumulator"] = "i32"
    return maker.graph(maker.node("conv", data, weight, bias, **attributes))


def is_interleaved(graph: Graph, numerics: Numerics = DEFAULT_NUMERICS) -> bool:
    """Whether the pass rewrites it; the result means the same."""
    found = interleaved_channels.run(graph, ROW_BYTES, numerics)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.integers(0, 200, type.shape).astype(type.dtype.numpy)
        for name in graph.inputs
        for type in [graph.types[name]]
    }
    assert found.types[found.outputs[0]] == graph.types[graph.outputs[0]]
    assert_close(evaluate_graph(found, inputs), evaluate_graph(graph, inputs))
    return "transpose" in operators(found)


@given(
    channels=st.integers(1, 4),
    kernel=st.tuples(st.integers(1, 4), st.integers(5, 8)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 5)),
    pads=st.tuples(*[st.integers(0, 4)] * 4),
    extents=st.tuples(st.integers(4, 9), st.integers(8, 19)),
    batch=st.integers(1, 2),
    value=st.sampled_from([0, 126]),
)
@settings(max_examples=60, deadline=None)
def test_every_convolution_means_the_same(
    channels: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, ...],
    extents: tuple[int, int],
    batch: int,
    value: int,
) -> None:
    shape = (batch, channels, *extents)
    graph = convolution(shape, kernel, pads=pads, strides=strides, pad_value=value)
    wide = -(-kernel[1] * channels // 4) * 4  # bytes at least: windows of whole words
    assert is_interleaved(graph) or wide < ROW_BYTES // 4


@pytest.mark.parametrize("kernel", [(3, 3), (7, 7), (16, 16)])
def test_floats_follow_the_precision(kernel: tuple[int, int]) -> None:
    graph = convolution((1, 3, 40, 40), kernel, DType.F32, strides=(2, 2))
    assert not is_interleaved(graph)
    assert is_interleaved(graph, BF16)


@pytest.mark.parametrize(
    "graph",
    [
        convolution((1, 5, 20, 20), (7, 7)),
        convolution((1, 3, 20, 20), (3, 3)),
        convolution((1, 4, 20, 20), (7, 7), groups=2),
        convolution((1, 3, 20, 20), (7, 7), dilations=(1, 2)),
    ],
    ids=["channels", "short rows", "groups", "dilation"],
)
def test_others_stay(graph: Graph) -> None:
    assert not is_interleaved(graph)


def test_targets_without_tiles_keep_all() -> None:
    graph = convolution((1, 3, 20, 20), (7, 7))
    assert interleaved_channels.run(graph, 0, DEFAULT_NUMERICS) is graph


def test_first_layers_in_bytes_are_in_matrix_tiles() -> None:
    graph = convolution((1, 3, 64, 64), (7, 7), outputs=64, pads=(3,) * 4, strides=(2, 2))
    assert "matrix_tiles" in preferred(graph, "default")


def test_first_layers_in_bf16_are_in_matrix_tiles() -> None:
    maker = GraphMaker()
    x, weight = maker.input(1, 3, 64, 64), maker.weights(64, 3, 7, 7)
    first = maker.node("conv", x, weight, pads=(3,) * 4, strides=(2, 2))
    graph = maker.graph(conv(maker, maker.node("relu", first), 64))
    assert len(preferred(graph, "bf16") & {"matrix_tiles", "matrix_tiles_grouped"}) == 2


def preferred(graph: Graph, precision: str) -> set[str]:
    """The sketches of the kernels' default schedules."""
    program = kernels_of(graph, TILES, numerics=precision)
    kernels = [call.kernel for call in program.calls if isinstance(call, KernelCall)]
    return {schedule_space(item, TILES, 1, precision).sketches[0].name for item in kernels}
