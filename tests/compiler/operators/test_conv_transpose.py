"""Transposed convolutions whose taps are apart, and whose results are: built and compared."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_close,
    evaluate_graph,
    random_inputs,
)
from tunefarm.compiler import build


@pytest.mark.parametrize(("stride", "dilation"), itertools.product((1, 2, 3, 4), (1, 2, 3)))
def test_strides_dilations_and_pads_go_together(stride: int, dilation: int) -> None:
    for taps, pads in itertools.product((1, 2, 3, 4), ((0, 0), (1, 0), (2, 1))):
        size = 6 * stride + (taps - 1) * dilation + 1 - sum(pads)
        if size < 1:
            continue
        maker = GraphMaker()
        y = maker.node(
            "conv_transpose",
            maker.input(1, 2, 7),
            maker.weights(2, 3, taps),
            strides=(stride,),
            dilations=(dilation,),
            pads=pads,
            shape=(size,),
        )
        graph = maker.graph(y)
        inputs = random_inputs(graph)
        found = [np.asarray(build(graph).run(inputs)[y])]
        assert_close(found, evaluate_graph(graph, inputs))
