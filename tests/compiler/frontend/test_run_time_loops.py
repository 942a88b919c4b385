"""Loops whose end is computed: as many steps as there are, and an error for one that never ends."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.frontend.loop_models import (
    CASES,
    LoopCase,
    check,
    floats,
    integer,
    loops_of,
    parsed,
)
from tunefarm import compiler
from tunefarm.compiler.errors import InputError, UnsupportedOperatorError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.limits import Limits
from tunefarm.compiler.pipeline import kernels_of

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
PASTED = """
g (float[n,3,4] masks, int64[n,4] boxes) => (float[n,8,9] y) {
  whole = Shape(masks) zero = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>()
  two = Constant<value_ints = [1, 1]>() size = Constant<value_ints = [8, 9]>()
  axes = Constant<value_ints = [0, 1]>() trips = Gather<axis = 0>(whole, zero)
  t = Constant<value = bool {1}>() none = Constant<value_ints = [0, 8, 9]>()
  empty = ConstantOfShape(none)
  y = Loop(trips, t, empty) <body = b (int64 i, bool c, float[k,8,9] a) => (bool d, float[l,8,9] r)
    { mask = Gather<axis = 0>(masks, i) box = Gather<axis = 0>(boxes, i)
      start, end = Split<axis = 0, num_outputs = 2>(box) wide = Sub(end, start)
      sizes = Concat<axis = 0>(two, wide) image = Unsqueeze(mask, axes)
      grown = Resize<mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel">
        (image, "", "", sizes)
      plane = Squeeze(grown, axes) first = Max(start, zero) last = Min(end, size)
      begin = Sub(first, start) stop = Sub(last, start) cut = Slice(plane, begin, stop, axes)
      y0, x0 = Split<axis = 0, num_outputs = 2>(first) rest = Sub(size, last)
      y1, x1 = Split<axis = 0, num_outputs = 2>(rest) shape = Shape(cut)
      columns = Gather<axis = 0>(shape, one) above = Concat<axis = 0>(y0, columns)
      below = Concat<axis = 0>(y1, columns) zeros_above = ConstantOfShape(above)
      zeros_below = ConstantOfShape(below) high = Concat<axis = 0>(zeros_above, cut, zeros_below)
      shape2 = Shape(high) rows = Gather<axis = 0>(shape2, zero)
      left = Concat<axis = 0>(rows, x0) right = Concat<axis = 0>(rows, x1)
      zeros_left = ConstantOfShape(left) zeros_right = ConstantOfShape(right)
      all = Concat<axis = 1>(zeros_left, high, zeros_right) row = Unsqueeze(all, zero)
      r = Concat<axis = 0>(a, row) d = Identity(c) }>
}
"""
PEAKS = """
g (float[n,2,4,4] maps, int64[n,2] boxes) => (float[n,2,1] y) {
  whole = Shape(maps) zero = Constant<value_ints = [0]>() t = Constant<value = bool {1}>()
  trips = Gather<axis = 0>(whole, zero) one = Constant<value_ints = [1]>()
  two = Constant<value_ints = [2, 1]>() lines = Constant<value_ints = [2, -1]>()
  none = Constant<value_ints = [0, 2, 1]>() empty = ConstantOfShape(none)
  y = Loop(trips, t, empty) <body = b (int64 i, bool c, float[k,2,1] a) => (bool d, float[l,2,1] r)
    { map = Gather<axis = 0>(maps, i) box = Gather<axis = 0>(boxes, i)
      sizes = Concat<axis = 0>(two, box) image = Unsqueeze(map, one)
      grown = Resize<mode = "cubic", cubic_coeff_a = -0.75>(image, "", "", sizes)
      flat = Reshape(grown, lines) most = ArgMax<axis = 1>(flat) places = Cast<to = 1>(most)
      row = Unsqueeze(places, zero) r = Concat<axis = 0>(a, row) d = Identity(c) }>
}
"""


def test_each_step_may_resize_to_sizes_that_it_computes() -> None:
    boxes = np.array([[2, 1, 6, 8], [-1, -2, 3, 5], [5, 4, 10, 5], [0, 0, 8, 9]], np.int64)
    calls = [{"masks": floats(n, 3, 4), "boxes": boxes[:n]} for n in (1, 4)]
    executable = check(parsed(PASTED), LoopCase(PASTED, calls, shapes={"n": ("1..9",)}))
    large = {"masks": floats(1, 3, 4), "boxes": np.array([[0, 0, 8, 1025]])}
    with pytest.raises(InputError, match="must give 1 to 1024 elements"):
        executable.run(large)
    sizes = np.array([[7, 5], [3, 9], [4, 4], [1, 6], [12, 2]])
    calls = [{"maps": floats(n, 2, 4, 4), "boxes": sizes[:n]} for n in (1, 5)]
    check(parsed(PEAKS), LoopCase(PEAKS, calls, shapes={"n": ("1..9",)}))


@pytest.mark.parametrize("name", CASES)
def test_steps_are_counted_at_run_time(name: str) -> None:
    check(CASES[name].proto, CASES[name])


def test_trip_count_and_first_condition_are_inputs() -> None:
    x = np.array([1, -2, 0.5], np.float32)
    calls = [
        {"m": np.array(m), "c": np.array(c), "x": x} for m, c in ((3, True), (8, True), (3, False))
    ]
    executable = check(parsed(COUNTED), LoopCase(COUNTED, calls), Limits(loop_steps=8))
    with pytest.raises(InputError, match="goes on after 8 steps"):
        executable.run({"m": np.array(9), "c": np.array(True), "x": x})


def test_a_loop_that_never_ends_is_an_error_of_the_run() -> None:
    one, many = np.array(1, np.float32), np.array(100, np.float32)
    calls = [{"x": one, "top": many}, {"x": many, "top": one}]
    executable = check(parsed(DOUBLED), LoopCase(DOUBLED, calls))
    with pytest.raises(
        InputError, match=r"^the loop of .* goes on after 1024 steps.*limits.loop_rows"
    ):
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


def test_a_loop_is_as_long_as_its_body_whatever_the_steps() -> None:
    graph = import_model_proto(parsed(DOUBLED), limits=Limits(loop_steps=4))
    calls = [call for call in kernels_of(graph).calls if isinstance(call, KernelCall)]
    assert [call.operators for call in calls if "cast" not in call.operators] == [
        ("add",),
        ("less",),
    ]


def test_few_steps_are_unrolled() -> None:
    text = (
        CASES["states that change places"]
        .text.replace("int64 m, ", "")
        .replace("t = Con", "m = Constant<value = int64 {4}>() t = Con")
    )
    case = LoopCase(text, [{"x": floats(3), "z": floats(3) + 1}], loops=0)
    calls = kernels_of(import_model_proto(case.proto)).calls
    assert len(check(case.proto, case).spec.steps) == len(calls)


def test_what_does_not_depend_on_states_is_computed_once() -> None:
    program = kernels_of(import_model_proto(parsed(CASES["branches in steps"].text)))
    begins = next(i for i, call in enumerate(program.calls) if not hasattr(call, "kernel"))
    before = [c.operators for c in program.calls[:begins] if isinstance(c, KernelCall)]
    assert ("exp",) in before


def test_a_state_that_grows_beyond_its_memory_is_an_error_of_the_run() -> None:
    case = CASES["a state that grows"]
    executable = check(case.proto, case, Limits(loop_rows=8))
    with pytest.raises(InputError, match="grows beyond 9"):
        executable.run({"m": integer(9), "x": floats(1, 2)})


def test_what_is_wrong_in_one_step_is_wrong_with_the_run() -> None:
    case = CASES["a loop in a loop"]
    executable = check(case.proto, case, Limits(loop_steps=4))
    inputs = {"m": integer(3), "x": floats(4)}
    executable.run({**inputs, "k": integer(2)})
    with pytest.raises(InputError, match="goes on after 4 steps"):
        executable.run({**inputs, "k": integer(3)})  # the last step of the outer loop asks for 5


def test_a_sequence_of_unknown_length_is_no_output() -> None:
    text = CASES["a sequence that grows"].text
    text = text.replace("(float[2,n] y, int64 count)", "(seq(float[2]) s, int64 count)")
    with pytest.raises(UnsupportedOperatorError, match="whose length is computed"):
        import_model_proto(parsed(text))


def test_an_endless_loop_says_what_its_steps_do_that_is_refused() -> None:
    """And not that so many steps are not unrolled."""
    text = """g (float[3] x) => (float[3] y) {
      m = Constant<value = int64 {9223372036854775807}>() t = Constant<value = bool {1}>()
      y = Loop(m, t, x) <body = b (int64 i, bool ci, float[3] p) => (bool co, float[3] r) {
        s = ReduceSum<keepdims = 0>(p) one = Constant<value = float {1}>() co = Less(s, one)
        u = If(co) <then_branch = b1 () => (float[3] v) { v = Exp(p) },
          else_branch = b2 () => (float w) { w = Identity(one) }>
        r = Add(p, u) }> }"""
    with pytest.raises(UnsupportedOperatorError, match=r"branches that give f32\[3\] and f32\[\]"):
        import_model_proto(parsed(text))


def test_a_state_that_becomes_another_kind_of_tensor_is_refused() -> None:
    text = """g (int64 m, float[3] x) => (float[n,3] y) {
      t = Constant<value = bool {1}>()
      y = Loop(m, t, x) <body = b (int64 i, bool ci, float[k] p) => (bool co, float[l] r)
        { co = Identity(ci) axes = Constant<value = int64[1] {0}>() r = Unsqueeze(p, axes) }> }"""
    with pytest.raises(UnsupportedOperatorError, match=r"state 'p'.* is f32\[3\] before a step"):
        import_model_proto(parsed(text))


def test_steps_that_are_known_are_no_loop() -> None:
    text = """g (float[3] x) => (float[3] y) {
      m = Constant<value = int64 {300}>() t = Constant<value = bool {1}>()
      z = Constant<value = float {0}>()
      k = Loop(m, t, z) <body = b (int64 i, bool ci, float p) => (bool co, float r)
        { co = Identity(ci) f = Cast<to = 1>(i) r = Add(p, f) }>
      y = Mul(x, k) }"""
    case = LoopCase(text, [{"x": floats(3)}], loops=0)
    check(case.proto, case)
    assert loops_of(import_model_proto(case.proto)) == 0
