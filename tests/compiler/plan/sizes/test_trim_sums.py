from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning
from tunefarm.compiler.plan.layouts import choose_layouts
from tunefarm.compiler.plan.sizes import trim_sums
from tunefarm.compiler.types.dtypes import DType

BLOCK = 8


@pytest.mark.parametrize(("channels", "kept"), [(5, 5), (12, 12), (16, 16), (20, 20)])
def test_sums_end_with_the_channels(channels: int, kept: int) -> None:
    maker = GraphMaker()
    x = maker.input(1, channels, 5, 6)
    for _ in range(2):
        weight = maker.weights(channels, channels, 3, 3)
        x = maker.node("conv", x, weight, maker.weights(channels), pads=(1,) * 4)
    blocked = choose_layouts.run(maker.graph(x), BLOCK)
    trimmed = trim_sums.run(blocked)
    assert_same_meaning(blocked, trimmed)
    last = trimmed.nodes[-2]
    assert last.operator == "conv"
    assert trimmed.types[last.inputs[1]].shape == (-(-channels // BLOCK) * BLOCK, kept, 3, 3)


def test_zeros_of_true_channels_stay() -> None:
    maker = GraphMaker()
    weight = maker.constant(np.zeros((BLOCK, 2 * BLOCK, 1, 1), np.float32))
    x = maker.input(1, 2, 4, 4, BLOCK)
    graph = maker.graph(maker.node("conv", x, weight, layout="NCHWc"))
    assert trim_sums.run(graph).nodes == graph.nodes


def test_narrow_and_depthwise_filters_stay_whole() -> None:
    maker = GraphMaker()
    weight = np.zeros((BLOCK, BLOCK, 1, 1), np.float32)
    weight[:, :3] = 1.0
    narrow = maker.constant(weight.astype(DType.I8.numpy))
    x = maker.input(1, 1, 4, 4, BLOCK, dtype=DType.I8)
    y = maker.node("conv", x, narrow, layout="NCHWc", accumulator="i32", channels=3)
    deep = maker.constant(weight[:, :1])
    z = maker.node(
        "conv", maker.input(1, 1, 4, 4, BLOCK), deep, layout="NCHWc", groups=BLOCK, channels=3
    )
    graph = maker.graph(y, z)
    assert trim_sums.run(graph).nodes == graph.nodes
