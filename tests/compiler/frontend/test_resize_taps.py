"""Where a resize reads: positions in the middle of two elements."""

from __future__ import annotations

import numpy as np
import pytest

from tunefarm.compiler.frontend.graph_builder import GraphBuilder
from tunefarm.compiler.frontend.operators.resize_taps import (
    Interpolation,
    ResizedAxis,
    positions_along,
    taps_of,
)
from tunefarm.compiler.limits import ResourceBudget


@pytest.mark.parametrize(("rounding", "nearest"), [("floor", 14), ("ceil", 15)])
def test_a_middle_is_one_though_float32_falls_beside_it(rounding: str, nearest: int) -> None:
    axis = ResizedAxis(0, 18, 21, float(np.float32(21) / np.float32(18)))
    graph = GraphBuilder("resized", ResourceBudget())
    positions = positions_along(axis, "half_pixel", graph)
    assert positions[17] > 14.5
    how = Interpolation("nearest", "half_pixel", f"round_prefer_{rounding}", 0.0, False, False, 0.0)
    (places,), _ = taps_of(axis, positions, how, graph)
    assert places[17] == nearest
