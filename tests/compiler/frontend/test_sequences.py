"""Sequences and optionals: lists at import, lists at run time, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from tests.onnxruntime_session import exact_session
from tunefarm import compiler
from tunefarm.compiler.errors import ImportModelError, InputError, ShapeError, TunefarmError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.extents import FixedInput

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(4, dtype=np.float32) - 7


def parsed(text: str, opset: int = 18) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')


def theirs(proto: onnx.ModelProto, inputs: dict[str, Any]) -> dict[str, Any]:
    session = exact_session(proto)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def same(ours: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert len(ours) == len(wanted)
        for one, other in zip(ours, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    else:
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ("p = Constant<value_int=-1>() s = SequenceInsert(xs, b, p)", "seq(float[]) s"),
        ("p = Constant<value_int=0>() s = SequenceErase(xs, p)", "seq(float[]) s"),
        ("s = SequenceErase(xs)", "seq(float[]) s"),
        ("p = Constant<value_int=-2>() y = SequenceAt(xs, p)", "float[2,3] y"),
        ("n = SequenceLength(xs)", "int64 n"),
        ("s = SplitToSequence<axis=1>(b2)", "seq(float[]) s"),
        ("k = Constant<value_int=2>() s = SplitToSequence<axis=1>(b2, k)", "seq(float[]) s"),
        (
            "k = Constant<value_ints=[1,2,1]>() t = SplitToSequence<axis=1>(b2, k) "
            "s = ConcatFromSequence<axis=1>(t)",
            "float[1,4] s",
        ),
        (
            "e = SequenceEmpty() t = SequenceInsert(e, b) u = SequenceInsert(t, b) "
            "s = ConcatFromSequence<axis=-1, new_axis=1>(u)",
            "float[4,2] s",
        ),
        (
            "s = SequenceMap(xs) <body = g (float[] v) => (float[] w) { w = Neg(v) }>",
            "seq(float[]) s",
        ),
    ],
)
def test_what_comes_of_sequences_is_what_onnxruntime_says(nodes: str, outputs: str) -> None:
    proto = parsed(
        f"g (seq(float[]) xs, float[4] b) => ({outputs})"
        f"{{ one = Constant<value_ints=[1,4]>() b2 = Reshape(b, one) {nodes} }}"
    )
    inputs = {"xs": [A, B], "b": B}
    shapes = {"xs[0]": (2, 3), "xs[1]": (4,)}
    ours = compiler.build(import_model_proto(proto, shapes)).run(inputs)
    for name, wanted in theirs(proto, inputs).items():
        same(ours[name], wanted)


def test_a_member_at_a_computed_position() -> None:
    proto = parsed(
        "g (float[3] a, float[3] b, int64 p) => (float[3] y)"
        "{ s = SequenceConstruct(a, b) y = SequenceAt(s, p) }"
    )
    executable = compiler.build(import_model_proto(proto))
    a, b = B[:3], B[1:]
    for position in (0, 1, -1, -2):
        given = {"a": a, "b": b, "p": np.array(position)}
        np.testing.assert_array_equal(executable.run(given)["y"], [a, b][position])


def test_lists_survive_being_saved(tmp_path: Path) -> None:
    proto = parsed("g (seq(float[2]) xs) => (seq(float[2]) ys) { ys = Identity(xs) }")
    compiler.build(import_model_proto(proto, {"xs": (3,)})).save(tmp_path / "m.tuned")
    executable = compiler.load(tmp_path / "m.tuned")
    given = [np.full(2, number, np.float32) for number in range(3)]
    same(executable.run({"xs": given})["ys"], given)
    with pytest.raises(InputError, match="has 2 tensors, the model was built for 3"):
        executable.run({"xs": given[:2]})


def optional_model() -> onnx.ModelProto:
    return parsed(
        "g (optional(float[2]) x, float[2] d) => (float[2] y, bool h) {"
        "  h = OptionalHasElement(x)"
        "  y = If(h) <then_branch = t () => (float[2] u) { u = OptionalGetElement(x) },"
        "             else_branch = e () => (float[2] v) { v = Identity(d) }> }"
    )


def test_an_optional_input_is_there_or_not_as_it_was_built() -> None:
    x, d = np.ones(2, np.float32), np.zeros(2, np.float32)
    with_content = compiler.build(import_model_proto(optional_model()))
    found = with_content.run({"x": x, "d": d})
    assert found["h"]
    np.testing.assert_array_equal(found["y"], x)
    without: Any = {"x": None}
    empty = compiler.build(import_model_proto(optional_model(), without))
    found = empty.run({"x": None, "d": d})
    assert not found["h"]
    np.testing.assert_array_equal(found["y"], d)
    with pytest.raises(InputError, match="built for one without content"):
        empty.run({"x": x, "d": d})


def test_content_of_an_empty_optional_is_refused() -> None:
    proto = parsed("g (optional(float[2]) x) => (float[2] y) { y = OptionalGetElement(x) }")
    empty: Any = {"x": None}
    with pytest.raises(ShapeError, match="the optional 'x' is empty"):
        import_model_proto(proto, empty)


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({}, "whose length must be known"),
        ({"xs": (2, 3)}, "is no length"),
        ({"xs": (1,), "xs[1]": (2,)}, "has the length 1"),
        ({"xs": (2,)}, "no shape at all"),
        ({"xs[9999999]": (2,)}, "more than"),
    ],
)
def test_lengths_that_cannot_be(shapes: dict[str, Any], reason: str) -> None:
    proto = parsed("g (seq(float[]) xs) => (int64 n) { n = SequenceLength(xs) }")
    with pytest.raises(ImportModelError, match=reason):
        import_model_proto(proto, shapes)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("p = Constant<value_int=3>() y = SequenceAt(xs, p)", "position 3 is outside"),
        ("e = SequenceEmpty() y = SequenceAt(e, p)", "empty sequence"),
        (
            "p = Constant<value_int=0>() i = SequenceEmpty<dtype=7>() y = SequenceInsert(i, b)",
            "tensor of f32",
        ),
        ("y = Relu(xs)", "has the type seq"),
        ("y = SequenceLength(b)", "has the element type f32"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(nodes: str, reason: str) -> None:
    proto = parsed(
        f"g (seq(float[2]) xs, float[2] b, int64 q) => (float y) {{ {nodes} }}".replace(
            "(e, p)", "(e, q)"
        )
    )
    with pytest.raises(TunefarmError, match=reason):
        import_model_proto(proto, {"xs": (2,)})


def test_scan_of_version_8_scans_each_element_of_its_batch() -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "v"], ["t"]), helper.make_node("Mul", ["t", "v"], ["u"])],
        "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "sv"],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "tu"],
    )
    node = helper.make_node(
        "Scan", ["", "s0", "x"], ["y", "z"], body=body, num_scan_inputs=1, directions=[1]
    )
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("s0", TensorProto.FLOAT, [3, 2]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4, 2]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 2]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [3, 4, 2]),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=8)
    rng = np.random.default_rng(1)
    inputs = {
        "s0": rng.integers(-4, 5, (3, 2)).astype(np.float32),
        "x": rng.integers(-4, 5, (3, 4, 2)).astype(np.float32),
    }
    ours = compiler.build(import_model_proto(proto)).run(inputs)
    for name, wanted in theirs(proto, inputs).items():
        np.testing.assert_array_equal(ours[name], wanted)


OPEN = "agraph (float[n,3] x, float[m,3] z, int64 i)"
OPEN_BOUNDS = {"n": ("1..5",), "m": ("1..4",)}


@pytest.mark.parametrize("position", [0, 1, -2])
def test_one_of_tensors_of_several_sizes_is_taken(position: int) -> None:
    proto = parsed(
        f"{OPEN} => (float[k,3] y) {{ s = SequenceConstruct(x, z) y = SequenceAt(s, i) }}"
    )
    executable = compiler.build(import_model_proto(proto, OPEN_BOUNDS))
    call = {"x": np.ones((5, 3), np.float32), "z": A, "i": np.array(position)}
    np.testing.assert_array_equal(executable.run(call)["y"], [call["x"], A][position])
    with pytest.raises(InputError, match="SequenceAt node 'y' asks for what is not there"):
        executable.run({**call, "i": np.array(2)})


@pytest.mark.parametrize("keeps", [0, 1])
def test_an_axis_of_open_size_splits_into_its_rows(keeps: int) -> None:
    proto = parsed(
        f"agraph (float[n,3] x, int64 i) => (float[a,3] y, float[{'1,' if keeps else ''}3] r) {{"
        f"s = SplitToSequence<axis=0, keepdims={keeps}>(x)"
        f"y = ConcatFromSequence<axis=0, new_axis={1 - keeps}>(s) r = SequenceAt(s, i) }}"
    )
    executable = compiler.build(import_model_proto(proto, {"n": ("1..5",)}))
    for rows in (A, A[:1]):
        call = {"x": rows, "i": np.array(-1)}
        wanted = theirs(proto, call)
        found = executable.run(call)
        for name in ("y", "r"):
            np.testing.assert_array_equal(found[name], wanted[name])


def test_a_loop_that_appends_what_has_a_size_of_its_own_says_so() -> None:
    proto = parsed(
        """agraph (int64 m, float[4] x) => (float[k] y) {
            s0 = SequenceEmpty()
            zero = Constant<value_ints=[0]>()
            s = Loop(m, "", s0) <body = b (int64 i, bool go, seq(float[]) before) =>
                (bool go_, seq(float[]) after) {
                go_ = Identity(go)
                end = Unsqueeze(i, zero)
                part = Slice(x, zero, end)
                after = SequenceInsert(before, part)
            }>
            y = ConcatFromSequence<axis=0>(s)
        }"""
    )
    with pytest.raises(TunefarmError, match=r"whose sizes each step computes .* at run time"):
        import_model_proto(proto)
    graph = import_model_proto(proto, {"m": FixedInput.of(np.array(3))})
    assert graph.types["y"].shape == (3,)
