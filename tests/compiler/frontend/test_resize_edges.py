"""Resizing of dynamic sizes: what lies behind the last element is in no result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.compiler.frontend.onnx_models import model, node, tensor
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto

MOST = 13


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel"])
@pytest.mark.parametrize("scale", [0.5, 1.5, 2.0, 2.5, 3.0])
def test_no_result_is_of_what_lies_behind(
    scale: float, coordinates: str, rounding: str, tmp_path: Path
) -> None:
    how: Any = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    nodes = [
        node("Exp", "x", "e"),
        node("Resize", f"e _ [1.0,1,{scale}]", "r", mode="nearest", **how),
        node("Neg", "r"),
    ]
    path = tmp_path / "net.onnx"
    onnx.save(model(nodes, [tensor("x", [1, 2, "w"])], opset=17), path)
    executable = compiler.build(path, shapes={"w": (f"2..{MOST}",)})
    session = onnxruntime.InferenceSession(path)
    for width in range(2, MOST + 1):
        executable.run({"x": np.full((1, 2, MOST), 50.0, np.float32)})
        x = np.random.default_rng(width).standard_normal((1, 2, width)).astype(np.float32)
        expected: Any = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(executable.run({"x": x})["y"], expected, rtol=1e-5)


@pytest.mark.parametrize("how", [{"exclude_outside": 1}, {"exclude_outside": 1, "antialias": 1}])
def test_what_grows_is_smoothed_by_as_many_nodes_as_without(how: dict[str, Any]) -> None:
    """Outside of the first and the last element lies the other of two: nothing is left out."""

    def operators(**attributes: Any) -> list[str]:
        resize = node("Resize", "x _ [1.0,1,2,2]", mode="linear", **attributes)
        proto = model([node("Exp", "x", "e"), resize], [tensor("x", [1, 2, "h", "w"])], opset=18)
        graph = import_model_proto(proto, {"h": ("2..9",), "w": ("2..9",)})
        return sorted(item.operator for item in graph.nodes)

    assert operators(**how) == operators()


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1)])
def test_reshapes_keep_the_axes_that_stay(axes: tuple[int, ...], tmp_path: Path) -> None:
    nodes = [
        node("Exp", "x", "e"),
        node("Reshape", "e [0,0,-1]", "r"),
        node("Transpose", "r", "t", perm=list(axes)),
        node("Softmax", "t"),
    ]
    path = tmp_path / "net.onnx"
    onnx.save(model(nodes, [tensor("x", ["b", 5, "h", "w"])], opset=17), path)
    bounds: Any = {"b": ("1..3",), "h": ("1..6",), "w": ("1..7",)}
    executable = compiler.build(path, shapes=bounds)
    session = onnxruntime.InferenceSession(path)
    executable.run({"x": np.full((3, 5, 6, 7), 50.0, np.float32)})
    for sizes in ((1, 1, 1), (2, 3, 4), (3, 6, 7), (1, 6, 2), (3, 1, 7)):
        x = np.random.default_rng(sum(sizes)).standard_normal((sizes[0], 5, *sizes[1:]))
        inputs = {"x": x.astype(np.float32)}
        expected: Any = session.run(None, inputs)[0]
        np.testing.assert_allclose(executable.run(inputs)["y"], expected, rtol=1e-5)
