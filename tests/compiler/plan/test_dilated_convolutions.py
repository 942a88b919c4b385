"""Dilated convolutions over residue classes, and those that stay; all mean the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_close,
    assert_same_meaning,
    evaluate_graph,
    operators,
    random_inputs,
)
from tunefarm.compiler import build
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan import dilated_convolutions


def convolution(
    shape: tuple[int, ...],
    outputs: int,
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int],
    kernel: int = 3,
    **attributes: int | tuple[int, ...],
) -> Graph:
    maker = GraphMaker()
    groups = attributes.get("groups", 1)
    assert isinstance(groups, int)
    weight = maker.weights(outputs, shape[1] // groups, kernel, kernel)
    data, bias = maker.input(*shape), maker.weights(outputs)
    result = maker.node("conv", data, weight, bias, dilations=dilations, pads=pads, **attributes)
    return maker.graph(maker.node("relu", result))


def is_split(graph: Graph, is_direct: bool = False) -> bool:
    """Whether the pass splits it; the result means the same."""
    found = dilated_convolutions.run(graph, 8, is_direct)
    assert_same_meaning(graph, found)
    return operators(found).count("transpose") == 2


@given(
    dilations=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    begins=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    extents=st.tuples(st.integers(24, 30), st.integers(24, 30)),
    batch=st.integers(1, 2),
    uneven=st.integers(0, 1),
)
@settings(max_examples=6, deadline=None)
def test_every_split_means_the_same(
    dilations: tuple[int, int],
    begins: tuple[int, int],
    extents: tuple[int, int],
    batch: int,
    uneven: int,
) -> None:
    pads = [begin * d for begin, d in zip(begins, dilations, strict=True)]
    pads += [pad + uneven for pad in pads]
    graph = convolution((batch, 32, *extents), 32, dilations, (pads[0], pads[1], *pads[2:]))  # type: ignore[arg-type]
    inputs = random_inputs(graph)
    expected = evaluate_graph(graph, inputs)
    assert_close(evaluate_graph(dilated_convolutions.run(graph, 8, False), inputs), expected)
    assert_close([np.asarray(value) for value in build(graph).run(inputs).values()], expected)


@pytest.mark.parametrize("dilation", [2, 3, 4, 6, 8])
def test_windows_of_all_pixels_are_split(dilation: int) -> None:
    assert is_split(convolution((1, 32, 40, 37), 32, (dilation,) * 2, (dilation,) * 4))


@pytest.mark.parametrize(
    "graph",
    [
        convolution((1, 32, 40, 40), 32, (1, 1), (1, 1, 1, 1)),
        convolution((1, 32, 40, 40), 32, (2, 2), (1, 1, 1, 1)),
        convolution((1, 32, 40, 40), 8, (2, 2), (2, 2, 2, 2)),
        convolution((1, 32, 40, 40), 32, (2, 2), (2, 2, 2, 2), strides=(2, 2)),
        convolution((1, 64, 40, 40), 64, (2, 2), (2, 2, 2, 2), groups=2),
        convolution((1, 32, 40, 40), 32, (2, 2), (4, 4, 4, 4), kernel=5),
        convolution((1, 32, 40, 40), 32, (39, 39), (39, 39, 39, 39)),
        convolution((1, 32, 40, 40), 32, (12, 12), (12, 12, 12, 12)),
    ],
    ids=[
        "plain",
        "shifted",
        "few channels",
        "strides",
        "groups",
        "kernel",
        "two rows each",
        "taps in the padding",
    ],
)
def test_others_stay(graph: Graph) -> None:
    assert not is_split(graph)


def test_direct_sums_stay() -> None:
    assert not is_split(convolution((1, 32, 40, 40), 32, (2, 2), (2, 2, 2, 2)), is_direct=True)
