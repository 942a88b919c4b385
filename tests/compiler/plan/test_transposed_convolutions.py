from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan import transposed_convolutions
from tunefarm.compiler.types.tensor_type import Attribute

BLOCK = 8


def transposed(
    data: tuple[int, ...], weight: tuple[int, ...], bias: bool = False, **attributes: Attribute
) -> Graph:
    maker = GraphMaker()
    groups = attributes.get("groups", 1)
    assert isinstance(groups, int)
    operands = [maker.input(*data), maker.weights(*weight)]
    if bias:
        operands.append(maker.weights(weight[1] * groups))
    return maker.graph(maker.node("conv_transpose", *operands, **attributes))


def rewritten(graph: Graph) -> Graph:
    result = transposed_convolutions.run(graph, BLOCK)
    assert_same_meaning(graph, result)
    return result


@st.composite
def drawn(draw: st.DrawFn) -> Graph:
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    groups = draw(st.sampled_from([1, 1, 2]))
    plane = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    kernel = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    strides = (1,) * rank if draw(st.booleans()) else tuple(draw(st.integers(1, 3)) for _ in plane)
    dilations = (1,) * rank if draw(st.booleans()) else (2,) * rank
    pads = tuple(draw(st.integers(0, 3)) for _ in range(2 * rank))
    shape = tuple(
        (extent - 1) * s + (k - 1) * d + 1 - before - after + draw(st.integers(0, 2))
        for extent, k, s, d, before, after in zip(
            plane, kernel, strides, dilations, pads[:rank], pads[rank:], strict=True
        )
    )
    assume(min(shape) >= 1)
    inputs, outputs = groups * draw(st.integers(1, 3)), draw(st.sampled_from([1, 3, 5]))
    return transposed(
        (draw(st.integers(1, 2)), inputs, *plane),
        (inputs, outputs, *kernel),
        draw(st.booleans()),
        groups=groups,
        strides=strides,
        dilations=dilations,
        pads=pads,
        shape=shape,
    )


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(drawn())
def test_drawn_geometries_keep_their_meaning(graph: Graph) -> None:
    rewritten(graph)


def test_strides_of_one_are_a_convolution() -> None:
    graph = transposed((1, 6, 7, 5), (6, 5, 3, 2), True, groups=2, pads=(1, 0, 1, 1), shape=(7, 5))
    assert operators(rewritten(graph)) == ["conv"]


def test_a_row_is_a_plane_of_one_row() -> None:
    graph = transposed((2, 3, 7), (3, 8, 4), strides=(2,), pads=(1, 1), shape=(14,))
    assert operators(rewritten(graph)) == ["reshape", "conv_transpose", "reshape"]


def test_few_channels_are_interleaved_from_those_of_all_phases() -> None:
    graph = transposed((1, 4, 3, 5), (4, 2, 3, 3), True, strides=(2, 2), shape=(7, 11))
    assert operators(rewritten(graph)) == ["conv", "reshape", "transpose", "reshape", "slice"]


def test_what_is_no_whole_phase_is_cut_off() -> None:
    graph = transposed((1, 4, 3, 5), (4, 8, 3, 3), strides=(2, 2), shape=(7, 11))
    result = rewritten(graph)
    assert operators(result) == ["conv_transpose", "slice"]
    assert result.nodes[0].attributes["shape"] == (8, 12)


@pytest.mark.parametrize("extent", [8, 12])
def test_whole_phases_stay(extent: int) -> None:
    graph = transposed((1, 4, extent, 4), (4, 8, 2, 2), strides=(2, 2), shape=(2 * extent, 8))
    assert rewritten(graph).nodes == graph.nodes


def test_weights_that_are_computed_stay() -> None:
    maker = GraphMaker()
    node = maker.node("conv_transpose", maker.input(1, 2, 3), maker.input(2, 2, 3), shape=(5,))
    graph = maker.graph(node)
    assert rewritten(graph).nodes == graph.nodes
