"""Products whose rows and columns both end at run time, in the vectors of each CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.runnable_targets import runnable_targets
from tunefarm.compiler import build
from tunefarm.compiler.target import Target

TEXT = (
    '<ir_version: 10, opset_import: ["" : 23]>'
    " g (float[19, n] w, float[m, 19] x) => (float[m, n] y) { y = MatMul (x, w) }"
)


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.cpu)
def test_all_rows_have_all_columns(tmp_path: Path, target: Target) -> None:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    bounds = {"n": ("20..21",), "m": ("22..23",)}
    executable = build(tmp_path / "m.onnx", shapes=bounds, target=target)
    rng = np.random.default_rng(0)
    for rows, columns in ((22, 20), (23, 21)):
        x = rng.standard_normal((rows, 19)).astype(np.float32)
        w = rng.standard_normal((19, columns)).astype(np.float32)
        found = executable.run({"x": x, "w": w})["y"]
        np.testing.assert_allclose(found, x @ w, rtol=1e-4, atol=1e-4)
