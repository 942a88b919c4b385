"""RotaryEmbedding of ONNX and of onnxruntime: one operator, and what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.compiler.frontend.onnx_models import model, tensor
from tests.onnxruntime_session import exact_session
from tunefarm.compiler import build
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.tensor_type import Array

HEADS, TOKENS, FEATURES = 3, 5, 8


def model_of(feeds: dict[str, Array], domain: str = "", **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node("RotaryEmbedding", list(feeds), ["y"], domain=domain, **attributes)
    return model([node], feeds, [tensor("y", feeds["x"].shape)], opset=23)


def drawn(rank: int, pairs: int) -> dict[str, Array]:
    """Data of two texts, and tables of ten positions."""
    rng = np.random.default_rng(0)
    shape = (2, HEADS, TOKENS, FEATURES) if rank == 4 else (2, TOKENS, HEADS * FEATURES)
    tables = {name: rng.standard_normal((10, pairs)).astype(np.float32) for name in ("cos", "sin")}
    return {"x": rng.standard_normal(shape).astype(np.float32), **tables}


def assert_one_operator(model: onnx.ModelProto, feeds: dict[str, Array], expected: Any) -> None:
    graph = import_model_proto(model)
    assert [node.operator for node in graph.nodes].count("rotary") == 1
    found: Any = build(graph).run(feeds)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rank", "interleaved", "width", "by_position"),
    [(3, 0, 4, True), (3, 1, 0, False), (4, 0, 0, True), (4, 1, 4, False)],
)
def test_of_onnx(rank: int, interleaved: int, width: int, by_position: bool) -> None:
    feeds = drawn(rank, (width or FEATURES) // 2)
    positions = np.array([[0, 1, 2, 3, 4], [9, 7, 5, 3, 1]])
    if by_position:
        feeds["positions"] = positions
    else:
        feeds |= {name: feeds[name][positions] for name in ("cos", "sin")}
    model = model_of(feeds, num_heads=HEADS, interleaved=interleaved, rotary_embedding_dim=width)
    outputs: Any = ReferenceEvaluator(model).run(None, feeds)
    assert_one_operator(model, feeds, outputs[0])


@pytest.mark.parametrize(
    ("rank", "interleaved", "first", "attributes"),
    [
        (3, 0, False, {}),
        (3, 1, True, {}),
        (4, 0, True, {}),
        (4, 0, False, {"scale": 2.0}),  # onnxruntime does not read it
    ],
)
def test_of_onnxruntime(
    rank: int, interleaved: int, first: bool, attributes: dict[str, float]
) -> None:
    data, cosine, sine = drawn(rank, FEATURES // 2).values()
    positions = np.array([3]) if first else np.array([[0, 1, 2, 3, 4], [9, 7, 5, 3, 1]])
    feeds = {"x": data, "positions": positions, "cos": cosine, "sin": sine}
    model = model_of(feeds, "com.microsoft", interleaved=interleaved, **attributes)
    session = exact_session(model)
    assert_one_operator(model, feeds, np.asarray(session.run(None, feeds)[0]))


def test_what_is_not_computed_is_refused() -> None:
    data, cosine, sine = drawn(3, FEATURES // 2).values()
    feeds = {"x": data, "positions": np.array([3]), "cos": cosine, "sin": sine}
    for attributes in ({"is_packed_batching": 1}, {"rotary_embedding_dim": 6}):
        with pytest.raises(TunefarmError, match="RotaryEmbedding"):
            import_model_proto(model_of(feeds, "com.microsoft", **attributes))
