"""NonMaxSuppression: the boxes that onnxruntime keeps, for several contents and limits."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from tests.onnxruntime_session import assert_agrees
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto

TEXT = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2,13,4] b, float[2,3,13] s, int64[1] m) => (int64[n,3] y) {
  i = Constant<value_float=0.4>() t = Constant<value_float=0.3>()
  y = NonMaxSuppression<center_point_box=CENTER>(b, s, m, i, t)
}"""


@pytest.mark.parametrize("center", [0, 1])
def test_boxes_that_are_kept_are_those_of_onnxruntime(center: int) -> None:
    proto = parser.parse_model(TEXT.replace("CENTER", str(center)))
    executable = compiler.build(import_model_proto(proto))
    rng = np.random.default_rng(center)
    boxes = rng.uniform(0, 1, (2, 13, 4)).astype(np.float32)
    scores = rng.uniform(0, 1, (2, 3, 13)).astype(np.float32)
    for given in (scores, np.zeros_like(scores), np.ones_like(scores)):
        for most in (0, 2, 13, 100):
            inputs = {"b": boxes, "s": given, "m": np.array([most])}
            assert_agrees(executable.run, proto, inputs, rtol=0, atol=0)


def test_many_boxes_none_of_which_is_one_too_many() -> None:
    text = TEXT.replace("CENTER", "0").replace("13", "700").replace("int64[1] m", "int64[1] k")
    text = text.replace("  i =", "  m = Constant<value_ints=[9223372036854775807]>() i =")
    proto = parser.parse_model(text.replace(", int64[1] k", ""))
    rng = np.random.default_rng(5)
    corners = rng.uniform(0, 30, (2, 700, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(1, 3, (2, 700, 2))], 2)
    scores = rng.uniform(0, 1, (2, 3, 700)).astype(np.float32)
    inputs = {"b": boxes.astype(np.float32), "s": scores}
    executable = compiler.build(import_model_proto(proto))
    assert len(executable.run(inputs)["y"]) > 600
    assert_agrees(executable.run, proto, inputs, rtol=0, atol=0)
