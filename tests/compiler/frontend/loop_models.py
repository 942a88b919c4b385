"""Models with loops as text, and calls of them: what they give is compared with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import parser

from tests.onnxruntime_session import assert_agrees
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.limits import Limits
from tunefarm.compiler.operators.loop import RESULT
from tunefarm.compiler.runtime.execution.executable import Executable

Calls = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class LoopCase:
    """A model, the arguments of runs, its loops if their number matters, and open sizes."""

    text: str
    calls: Calls
    loops: int | None = 1
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)

    @property
    def proto(self) -> onnx.ModelProto:
        return parsed(self.text)


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>{text}')


def loops_of(graph: Graph) -> int:
    """How many loops a graph has."""
    return len({node.attributes["loop"] for node in graph.nodes if node.operator == RESULT})


def check(
    proto: onnx.ModelProto,
    case: LoopCase,
    limits: Limits | None = None,
    tolerance: float = 1e-5,
) -> Executable:
    """Build, and compare each run with onnxruntime."""
    graph = import_model_proto(proto, case.shapes, limits=limits)
    assert case.loops is None or loops_of(graph) == case.loops
    executable = compiler.build(graph)
    assert_agrees(executable.run, proto, *case.calls, rtol=tolerance, atol=tolerance / 10)
    return executable


def floats(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def integer(value: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(value, np.int64)


_VECTORS = {"x": floats(3), "z": floats(3) + 1}
_ROWS = {"w": floats(4, 4) / 2, "h": floats(1, 4)}

CASES = {
    "states that change places": LoopCase(
        """g (int64 m, float[3] x, float[3] z) => (float[3] a, float[3] c) {
          t = Constant<value = bool {1}>()
          a, c = Loop(m, t, x, z) <body = b (int64 i, bool ci, float[3] p, float[3] q)
            => (bool co, float[3] r, float[3] s)
            { co = Identity(ci) r = Identity(q) s = Add(p, q) }> }""",
        [{"m": integer(count), **_VECTORS} for count in (0, 1, 2, 9, -3)],
    ),
    "parts of several axes at the number of the step, and at a counter": LoopCase(
        """g (float[b,t,5] x) => (float[b,5] y, float[t,b,5] rows) {
          z = Constant<value = int64[1] {0}>() u = Constant<value = int64[1] {1}>()
          v = Constant<value = int64[1] {2}>() f = Constant<value = int64[1] {5}>()
          axes = Constant<value = int64[2] {0, 1}>() far = Constant<value = int64[2] {99, 99}>()
          steps = Constant<value = int64[2] {1, 99}>() k = Constant<value = int32 {0}>()
          s = Shape(x) t1 = Slice(s, u, v) n = Squeeze(t1, z) b1 = Slice(s, z, u)
          s2 = Concat<axis = 0>(b1, f) a0 = ConstantOfShape(s2)
          y, k2, rows = Loop(n, "", a0, k) <body = b (int64 i, bool ci, float[b,5] a, int32 c)
            => (bool co, float[b,5] r, int32 c2, float[b,5] row) {
              co = Identity(ci) i1 = Unsqueeze(i, z) at = Concat<axis = 0>(z, i1)
              p1 = Slice(x, at, far, axes, steps) p = Squeeze(p1, u)
              c64 = Cast<to = 7>(c) c1 = Unsqueeze(c64, z) c3 = Add(c1, u)
              q1 = Slice(x, c1, c3, u) q = Squeeze(q1, u)
              o = Constant<value = int32 {1}>() c2 = Add(c, o)
              d = Add(p, q) e = Add(d, a) r = Tanh(e) row = Identity(r) }> }""",
        [{"x": floats(2, 3, 5)}, {"x": floats(1, 1, 5)}, {"x": floats(4, 9, 5)}],
        shapes={"x": ("b:1..4", "t:1..9", 5)},
    ),
    "a step's number that is a place in an inner loop first": LoopCase(
        """g (int64 k, float[b,t,5] x) => (float[b,5] y) {
          z = Constant<value = int64[1] {0}>() u = Constant<value = int64[1] {1}>()
          v = Constant<value = int64[1] {2}>() f = Constant<value = int64[1] {5}>()
          s = Shape(x) t1 = Slice(s, u, v) n = Squeeze(t1, z) b1 = Slice(s, z, u)
          s2 = Concat<axis = 0>(b1, f) a0 = ConstantOfShape(s2)
          y = Loop(n, "", a0) <body = b (int64 i, bool ci, float[b,5] a)
            => (bool co, float[b,5] r) {
              co = Identity(ci)
              w = Loop(k, ci, a) <body = c (int64 j, bool cj, float[b,5] d)
                => (bool cc, float[b,5] e) {
                  cc = Identity(cj) i1 = Unsqueeze(i, z) i2 = Add(i1, u) p1 = Slice(x, i1, i2, u)
                  p = Squeeze(p1, u) g = Add(d, p) e = Tanh(g) }>
              m1 = Unsqueeze(i, z) m2 = Add(m1, u) q1 = Slice(x, m1, m2, u) q = Squeeze(q1, u)
              r = Sub(w, q) }> }""",
        [{"k": integer(k), "x": floats(*s)} for k, s in ((2, (2, 3, 5)), (0, (1, 1, 5)))],
        loops=2,
        shapes={"x": ("b:1..4", "t:1..9", 5)},
    ),
    "a loop in a loop": LoopCase(
        """g (int64 m, int64 k, float[4] x) => (float[4] y, float[n,4] rows) {
          t = Constant<value = bool {1}>()
          y, rows = Loop(m, t, x) <body = b (int64 i, bool ci, float[4] p)
            => (bool co, float[4] r, float[4] row) {
              co = Identity(ci) most = Add(k, i)
              r = Loop(most, ci, p) <body = c (int64 j, bool cj, float[4] a)
                => (bool cc, float[4] e) {
                  cc = Identity(cj) fj = Cast<to = 1>(j) fi = Cast<to = 1>(i)
                  d = Add(a, fj) f = Mul(fi, x) e = Add(d, f) }>
              row = Mul(r, r) }> }""",
        [
            {"m": integer(m), "k": integer(k), "x": floats(4)}
            for m, k in ((0, 1), (1, 0), (3, 2), (3, -4))
        ],
        loops=2,
    ),
    "an end that each step computes": LoopCase(
        """g (float x, float top) => (float y, float[n] s) {
          m = Constant<value = int64 {9223372036854775807}>() t = Constant<value = bool {1}>()
          y, s = Loop(m, t, x) <body = b (int64 i, bool ci, float a) => (bool co, float r, float q)
            { r = Add(a, a) co = Less(r, top) q = Identity(a) }> }""",
        [
            {"x": np.array(1, np.float32), "top": np.array(top, np.float32)}
            for top in (0, 5, 1000, 1e20)
        ],
    ),
    "a list that each step counts, and windows over what was in it": LoopCase(
        """g (float[2] x, float top) => (float[1,2,n] y) {
          m = Constant<value = int64 {9223372036854775807}>() t = Constant<value = bool {1}>()
          none = SequenceEmpty<dtype = 1>() zero = Constant<value_ints = [0]>()
          a, all = Loop(m, t, x, none) <body = b (int64 i, bool ci, float[2] p, seq(float[2]) q)
            => (bool co, float[2] r, seq(float[2]) s) {
              r = Add(p, p) s = SequenceInsert(q, r) n = SequenceLength(s)
              seven = Constant<value = int64 {7}>() few = Less(n, seven)
              sum = ReduceSum<keepdims = 0>(r) low = Less(sum, top) co = And(few, low) }>
          rows = ConcatFromSequence<axis = 1, new_axis = 1>(all) data = Unsqueeze(rows, zero)
          w = ConstantOfShape<value = float[1] {0.5}>(shape) y = Conv<pads = [1, 1]>(data, w)
          }""".replace(
            "zero = Constant<", "shape = Constant<value_ints = [2, 2, 3]>() zero = Constant<"
        ),
        [{"x": floats(2), "top": np.array(top, np.float32)} for top in (-9e9, 9e9, 20)],
    ),
    "branches in steps": LoopCase(
        """g (int64 m, float[3] x, bool c) => (float[3] y) {
          t = Constant<value = bool {1}>() big = Exp(x)
          y = Loop(m, t, x) <body = b (int64 i, bool ci, float[3] p) => (bool co, float[3] r) {
            co = Identity(ci) two = Constant<value = int64 {2}>() rest = Mod(i, two)
            zero = Constant<value = int64 {0}>() even = Equal(rest, zero)
            r = If(even) <then_branch = t1 () => (float[3] u) { u = Add(p, big) },
              else_branch = e1 () => (float[3] v) { w = Sin(p)
                v = If(c) <then_branch = t2 () => (float[3] u2) { u2 = Mul(w, big) },
                  else_branch = e2 () => (float[3] v2) { v2 = Neg(w) }> }> }> }""",
        [
            {"m": integer(m), "x": floats(3), "c": np.array(c)}
            for m, c in ((0, True), (1, False), (5, True), (4, False))
        ],
    ),
    "a loop in a branch": LoopCase(
        """g (bool c, int64 m, float[3] x) => (float[3] y) {
          y = If(c) <then_branch = t () => (float[3] u) { u = Neg(x) },
            else_branch = e () => (float[3] v) { o = Constant<value = bool {1}>()
              v = Loop(m, o, x) <body = b (int64 i, bool ci, float[3] a) => (bool co, float[3] r)
                { r = Add(a, x) co = Identity(ci) }> }> }""",
        [
            {"c": np.array(c), "m": integer(m), "x": floats(3)}
            for c in (True, False)
            for m in (0, 3)
        ],
    ),
    "two hundred rows": LoopCase(
        """g (float[200,4] x, float[1,4] h, float[4,4] w) => (float[1,4] y, float[200,1,4] ys) {
          y, ys = Scan<num_scan_inputs = 1, body = b (float[1,4] s, float[4] row)
            => (float[1,4] n, float[1,4] o)
            { m = MatMul(s, w) a = Add(m, row) n = Tanh(a) o = Mul(n, n) }>(h, x) }""",
        [{"x": floats(200, 4), **_ROWS}],
    ),
    "columns from the last on": LoopCase(
        """g (float[4,99] x, float[4] h) => (float[4] y, float[4,99] ys) {
          y, ys = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
            scan_output_axes = [1], scan_output_directions = [1], body = b (float[4] s, float[4] v)
            => (float[4] n, float[4] o)
            { f = Constant<value = float {0.5}>() m = Mul(s, f) n = Add(m, v) o = Mul(n, n)
              e = Exp(o) k = Sin(e) }>(h, x) }""",
        [{"x": floats(4, 99), "h": floats(4)}],
    ),
    "an axis whose size is open": LoopCase(
        """g (float[B,L,4] x, float[B,4] h) => (float[B,4] y, float[B,L,4] ys) {
          y, ys = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
            scan_output_axes = [1], scan_output_directions = [1], body = b
            (float[B,4] s, float[B,4] v) => (float[B,4] n, float[B,4] o)
            { f = Constant<value = float {0.5}>() m = Mul(s, f) n = Add(m, v)
              o = Softmax<axis = 0>(n) }>(h, x) }""",
        [{"x": floats(b, n, 4), "h": floats(b, 4)} for b, n in ((1, 1), (4, 16), (3, 7))],
        shapes={"x": ("B:1..4", "L:1..16", 4), "h": ("B:1..4", 4)},
    ),
    "rows that lie in two pieces": LoopCase(
        """g (float[L,4] x, float[4] h) => (float[4] y, float[n,4] ys) {
          twice = Constant<value = int64[2] {2, 1}>() rows = Tile(x, twice)
          y, ys = Scan<num_scan_inputs = 1, body = b (float[4] s, float[4] v)
            => (float[4] n, float[4] o) { n = Add(s, v) o = Tanh(n) }>(h, rows) }""",
        [{"x": floats(n, 4), "h": floats(4)} for n in (1, 7, 16)],
        shapes={"x": ("L:1..16", 4)},
    ),
    "as many steps as rows": LoopCase(
        """g (float[L,4] x) => (float[4] y, float[n,4] ys) {
          s = Shape(x) z = Constant<value = int64 {0}>() n = Gather(s, z)
          t = Constant<value = bool {1}>() first = Constant<value = float[4] {0, 0, 0, 0}>()
          y, ys = Loop(n, t, first) <body = b (int64 i, bool ci, float[4] p)
            => (bool co, float[4] r, float[4] q)
            { co = Identity(ci) v = Gather(x, i) u = Add(p, v) r = Tanh(u) q = Mul(r, r) }> }""",
        [{"x": floats(n, 4)} for n in (1, 7, 16)],
        shapes={"x": ("L:1..16", 4)},
    ),
    "states that no step changes": LoopCase(
        """g (int64 m, float[3] x, int64[1] shape) => (float[1,3] y, int64[1] same) {
          t = Constant<value = bool {1}>() one = Constant<value = int64[2] {1, 3}>()
          f = Reshape(x, one)
          y, o, same = Loop(m, t, f, one, shape) <body = b
            (int64 i, bool ci, float[1,3] p, int64[2] s, int64[1] k)
            => (bool co, float[1,3] r, int64[2] s2, int64[1] k2)
            { co = Identity(ci) q = Reshape(x, s) r = Add(p, q) s2 = Identity(s)
              k2 = Identity(k) }> }""",
        [{"m": integer(m), "x": floats(3), "shape": np.array([5])} for m in (0, 1, 4)],
    ),
    "a state that grows": LoopCase(
        """g (int64 m, float[1,2] x) => (float[n,2] y) {
          t = Constant<value = bool {1}>()
          y = Loop(m, t, x) <body = b (int64 i, bool ci, float[k,2] p) => (bool co, float[l,2] r)
            { co = Identity(ci) axes = Constant<value = int64[1] {0}>()
              mean = ReduceMean<keepdims = 1>(p, axes) v = Sin(mean)
              r = Concat<axis = 0>(p, v) }> }""",
        [{"m": integer(m), "x": floats(1, 2)} for m in (0, 1, 5)],
    ),
    "a state that shrinks": LoopCase(
        """g (int64 m, float[6] x) => (float[n] y) {
          t = Constant<value = bool {1}>()
          y = Loop(m, t, x) <body = b (int64 i, bool ci, float[k] p) => (bool co, float[l] r)
            { co = Identity(ci) one = Constant<value = int64[1] {1}>()
              end = Constant<value = int64[1] {99}>() r = Slice(p, one, end) }> }""",
        [{"m": integer(m), "x": floats(6)} for m in (0, 1, 5)],
    ),
    "a sequence that grows": LoopCase(
        """g (int64 m, float[2] x) => (float[2,n] y, int64 count) {
          t = Constant<value = bool {1}>() e = SequenceEmpty() s0 = SequenceInsert(e, x)
          y0, s = Loop(m, t, x, s0) <body = b (int64 i, bool ci, float[2] p, seq(float[2]) q)
            => (bool co, float[2] r, seq(float[2]) u)
            { co = Identity(ci) r = Sin(p) u = SequenceInsert(q, r) }>
          y = ConcatFromSequence<axis = 1, new_axis = 1>(s) count = SequenceLength(s) }""",
        [{"m": integer(m), "x": floats(2)} for m in (0, 1, 5)],
    ),
}
