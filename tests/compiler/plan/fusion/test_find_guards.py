"""Branches at run time: what is needed on one side only does not run on the other."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.onnxruntime_session import assert_agrees
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.pipeline import compile_model, kernels_of
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.runtime.spec.executable_spec import CallStep, Place

NESTED = """
g (bool c, bool d, float[4,16] x, float[16,16] w) => (float[4,16] y, float[4,16] z) {
  s = Sigmoid(x)
  m = MatMul(s, w)
  y, z = If(c) <
    then_branch = t () => (float[4,16] u, float[4,16] p) {
      a = MatMul(m, w)
      u = If(d) <then_branch = t2 () => (float[4,16] u2) { u2 = Exp(a) },
                 else_branch = e2 () => (float[4,16] u3) { k = Tanh(s) u3 = MatMul(k, w) }>
      p = Identity(m)
    },
    else_branch = e () => (float[4,16] v, float[4,16] q) { v = Neg(m) q = Identity(x) }>
}
"""


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>{text}')


def arguments(c: bool, d: bool) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(shape, np.float32) for shape in ((4, 16), (16, 16)))
    return {"c": np.array(c), "d": np.array(d), "x": x, "w": w}


@pytest.mark.parametrize(("c", "d"), list(itertools.product((False, True), repeat=2)))
def test_the_branch_that_is_taken_gives_the_results(c: bool, d: bool) -> None:
    proto = parsed(NESTED)
    assert_agrees(compiler.build(import_model_proto(proto)).run, proto, arguments(c, d))


def test_a_kernel_is_guarded_by_the_conditions_that_all_its_readers_share() -> None:
    program = kernels_of(import_model_proto(parsed(NESTED)))
    found = [
        ("_".join(call.operators), " and ".join(map(str, call.guards)))
        for call in program.calls
        if isinstance(call, KernelCall)
    ]
    assert ("sigmoid", "") in found
    assert ("matmul", "") in found  # of s: both branches read it
    assert ("matmul_exp", "c and d") in found
    assert ("tanh", "c and not d") in found
    assert ("matmul", "c and not d") in found
    assert [guards for name, guards in found if name == "choose"] == ["c", "", ""]


@pytest.mark.parametrize("taken", [False, True])
def test_untaken_branches_leave_their_memory_alone(taken: bool) -> None:
    proto = parsed("""
        g (bool c, float[4,16] x, float[16,16] w) => (float[4,16] y) {
          y = If(c) <then_branch = t () => (float[4,16] u) { u = MatMul(x, w) },
                     else_branch = e () => (float[4,16] v) { v = Neg(x) }> }""")
    executable = Executable(compile_model(import_model_proto(proto)).spec)
    given = arguments(taken, False)
    del given["d"]
    frame = executable.new_frame()
    frame.arena.view(np.uint8)[:] = 77
    executable.run_in(frame, given)
    places = {
        step.guards[0].taken: step.buffers[-1]
        for step in executable.spec.steps
        if isinstance(step, CallStep) and step.guards
    }
    for side, place in places.items():
        assert place.place is Place.ARENA
        written = frame.arena[place.number : place.number + 4 * 16 * 4]
        assert bool(np.all(written == 77)) == (side != taken)


def test_a_condition_that_is_computed_late_comes_before_what_it_guards() -> None:
    proto = parsed("""
        g (float[4] x) => (float[4] y) {
          a = Tanh(x)
          zero = Constant<value_float=0.0>()
          s = ReduceSum<keepdims=0>(x)
          c = Greater(s, zero)
          y = If(c) <then_branch = t () => (float[4] u) { u = Exp(a) },
                     else_branch = e () => (float[4] v) { v = Neg(x) }> }""")
    executable = compiler.build(import_model_proto(proto))
    for x in (np.ones(4, np.float32), -np.ones(4, np.float32)):
        wanted = np.exp(np.tanh(x)) if x[0] > 0 else -x
        np.testing.assert_allclose(executable.run({"x": x})["y"], wanted, rtol=1e-5)
    guarded = [
        call
        for call in kernels_of(import_model_proto(proto)).calls
        if isinstance(call, KernelCall) and call.guards
    ]
    assert len(guarded) == 2


def test_branches_of_different_shapes_are_refused() -> None:
    proto = parsed("""
        g (bool c, float[4,2] x) => (float[4] y) {
          y = If(c) <then_branch = t () => (float[4,2] u) { u = Exp(x) },
                     else_branch = e () => (float[4] v) { v = ReduceSum<keepdims=0>(x) }> }""")
    with pytest.raises(compiler.errors.UnsupportedOperatorError, match="branches that give"):
        import_model_proto(proto)
