"""The attack with quantised models finds a rounding that is planted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.attack.drawn_quantised import draw
from tests.attack.quantised import SAME, WRONG, Quantised
from tunefarm.compiler.frontend import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode


def test_planted_rounding_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = Quantised(tmp_path)
    seed = next(seed for seed in range(100) if draw(seed).kind == "QuantizeLinear")
    assert attack.attempt(seed).label == SAME
    right = converter.find_converter("", "QuantizeLinear", 21)
    assert right is not None

    def truncated(node: OnnxNode, graph: GraphBuilder) -> Value:
        value = right(node, graph)
        assert isinstance(value, Value)
        odd = graph.constant(np.ones((), value.dtype.numpy))
        return graph.emit("bitwise_or", value, odd)

    planted = {21: truncated}
    monkeypatch.setitem(converter._CONVERTERS, ("", "QuantizeLinear"), planted)
    outcome = attack.attempt(seed)
    assert outcome.label == WRONG
    assert outcome.broke
    assert "QuantizeLinear" in attack.minimise(seed, outcome)
