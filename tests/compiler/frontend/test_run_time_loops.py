"""Loops whose end is computed: as many steps as there are, and an error for one that never ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import compiler
from compiler.errors import InputError
from compiler.frontend.import_onnx import import_model_proto
from compiler.kernels.kernel import KernelCall
from compiler.limits import Limits
from compiler.pipeline import kernels_of
from compiler.runtime.executable import Executable

COUNTED = """
g (int64 m, bool c, float[3] x) => (float[3] y, float[n,3] s) {
  y, s = Loop(m, c, x) <body = b (int64 i, bool ci, float[3] a) => (bool co, float[3] r, float[3] q)
    { f = Cast<to=1>(i) r = Add(a, f) q = Mul(r, r) co = Identity(ci) }>
}
"""
DOUBLED = """
g (float x, float top) => (float y, float[n] s) {
  t = Constant<value = bool {1}>()
  y, s = Loop("", t, x) <body = b (int64 i, bool ci, float a) => (bool co, float r, float q)
    { r = Add(a, a) co = Less(r, top) q = Identity(a) }>
}
"""


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>{text}')


def check(
    text: str, calls: Sequence[Mapping[str, Any]], limits: Limits | None = None
) -> Executable:
    proto = parsed(text)
    executable = compiler.build(import_model_proto(proto, limits=limits))
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    for inputs in calls:
        ours = executable.run(inputs)
        for name, wanted in zip(names, session.run(names, dict(inputs)), strict=True):
            assert ours[name].shape == wanted.shape
            np.testing.assert_allclose(ours[name], wanted, rtol=1e-6)
    return executable


def test_trip_count_and_first_condition_are_inputs() -> None:
    x = np.array([1, -2, 0.5], np.float32)
    calls = [
        {"m": np.array(m), "c": np.array(c), "x": x} for m, c in ((3, True), (8, True), (3, False))
    ]
    executable = check(COUNTED, calls, Limits(loop_steps=8))
    with pytest.raises(InputError, match="goes on after 8 steps"):
        executable.run({"m": np.array(9), "c": np.array(True), "x": x})


def test_a_loop_that_never_ends_is_an_error_of_the_run() -> None:
    one, many = np.array(1, np.float32), np.array(100, np.float32)
    executable = check(DOUBLED, [{"x": one, "top": many}, {"x": many, "top": one}])
    with pytest.raises(InputError, match="goes on after 64 steps"):
        executable.run({"x": np.array(0, np.float32), "top": many})


def test_a_branch_that_is_not_taken_may_loop_for_ever() -> None:
    proto = parsed("""
        g (bool c, float x) => (float y) {
          y = If(c) <then_branch = t () => (float u) { u = Neg(x) },
            else_branch = e () => (float v) {
              o = Constant<value = bool {1}>()
              v = Loop("", o, x) <body = b (int64 i, bool ci, float a) => (bool co, float r)
                { r = Add(a, a) co = Less(r, x) }> }> }""")
    executable = compiler.build(import_model_proto(proto))
    x = np.array(-1, np.float32)  # twice as much is always less
    assert executable.run({"c": np.array(True), "x": x})["y"] == 1
    with pytest.raises(InputError, match="goes on after"):
        executable.run({"c": np.array(False), "x": x})


def test_each_step_behind_the_first_runs_only_where_the_loop_goes_on() -> None:
    graph = import_model_proto(parsed(DOUBLED), limits=Limits(loop_steps=4))
    calls = [call for call in kernels_of(graph).calls if isinstance(call, KernelCall)]
    body = [bool(call.guards) for call in calls if call.operators in (("add",), ("less",))]
    assert body == [False] * 2 + [True] * 6
