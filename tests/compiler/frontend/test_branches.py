"""Branches of an If that not all sizes allow: what they ask for binds the runs that take them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_model

from tests.compiler.frontend.onnx_models import node
from tests.onnxruntime_session import assert_agrees
from tunefarm import compiler
from tunefarm.compiler.errors import InputError, ShapeError, UnsupportedOperatorError
from tunefarm.compiler.frontend.import_onnx import import_model_proto

RNG = np.random.default_rng(7)
X = RNG.standard_normal((2, 16)).astype(np.float32)

BODIES = {
    "Reshape": "{0} = Reshape (x, shape{1})",
    "MatMul": "{0} = MatMul (x, square{1})",
    "Add": "{0} = Add (x, row{1})",
    "Concat": "a = Reshape (x, shape{1}) {0} = Concat <axis = 1> (x, a)",
    "Split": "{0}, b = Split <axis = 1> (x, halves{1})",
    "Gather": "a = Gather <axis = 1> (x, last{1}) {0} = Reshape (a, column)",
    "Expand": "{0} = Expand (x, shape{1})",
    "Conv": "a = Unsqueeze (x, one) b = Conv <kernel_shape = [1]> (a, taps) "
    "{0} = Reshape (b, shape{1})",
}
"""Of each operator a body that only takes rows of the size which the ending of names says."""


def branches(body: str, sizes: tuple[int, int] = (16, 8)) -> onnx.ModelProto:
    """A model whose flag chooses the body for rows of the first size or for rows of the second."""
    then, otherwise = (body.format(name, end) for name, end in (("t", 1), ("e", 2)))
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, n] x, bool flag) => (float[p, q] y) {{
        y = If (flag) <then_branch = then () => (float[p, q] t) {{ {then} }},
                       else_branch = other () => (float[p, q] e) {{ {otherwise} }}>
    }}"""
    model = parse_model(text)
    for end, size in zip("12", sizes, strict=True):
        for name, array in {
            "shape": np.array([2, size]),
            "square": np.eye(size, dtype=np.float32),
            "row": np.ones((2, size), np.float32),
            "halves": np.array([size // 2, size // 2]),
            "last": np.array(size - 1),
        }.items():
            model.graph.initializer.append(numpy_helper.from_array(array, name + end))
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name)
        for name, array in {
            "column": np.array([2, 1]),
            "one": np.array([1]),
            "taps": np.ones((1, 1, 1), np.float32),
        }.items()
    )
    return model


def run(model: onnx.ModelProto, n: int | str, feed: dict[str, object]) -> dict[str, np.ndarray]:
    return compiler.build(import_model_proto(model, {"n": [n]})).run(feed)


@pytest.mark.parametrize("size", [16, 8])
@pytest.mark.parametrize("operator", [name for name in BODIES if name != "Gather"])
def test_a_branch_that_does_not_fit_is_an_error_of_the_run_that_takes_it(
    operator: str, size: int
) -> None:
    model = branches(BODIES[operator])
    x, fits = X[:, :size], size == 16
    executable = compiler.build(import_model_proto(model, {"n": [size]}))
    feed = {"x": x, "flag": np.array(fits)}
    assert_agrees(executable.run, model, feed, rtol=1e-5)
    with pytest.raises(InputError, match=f"'flag' is {not fits}") as refused:
        executable.run({"x": x, "flag": np.array(not fits)})
    assert "these sizes do not allow" in refused.value.message


def test_an_index_beyond_the_end_is_no_error_where_its_branch_is_not_taken() -> None:
    model = branches(BODIES["Gather"])
    found = run(model, 8, {"x": X[:, :8], "flag": np.array(False)})
    np.testing.assert_array_equal(found["y"], X[:, 7:8])


@pytest.mark.parametrize("operator", ["Reshape", "Add", "Expand"])
def test_conditions_of_sizes_bind_the_runs_that_take_their_branch(operator: str) -> None:
    model = branches(BODIES[operator])
    executable = compiler.build(import_model_proto(model, {"n": ["2..16"]}))
    calls = [{"x": X[:, :size], "flag": np.array(size == 16)} for size in (16, 8)]
    assert_agrees(executable.run, model, *calls, rtol=1e-5)
    for size, flag in ((16, False), (8, True), (12, True), (12, False)):
        with pytest.raises(InputError, match="n") as refused:
            executable.run({"x": X[:, :size], "flag": np.array(flag)})
        assert "must be equal" in refused.value.message or "allow" in refused.value.message


def test_nested_branches_that_do_not_fit() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, n] x, bool outer, bool inner) => (float[p, q] y)
    <int64[2] wide = {2, 16}, int64[2] small = {2, 8}> {
        y = If (outer) <
            then_branch = a () => (float[p, q] t) {
                t = If (inner) <then_branch = b () => (float[p, q] u) { u = Reshape (x, wide) },
                                else_branch = c () => (float[p, q] v) { v = Reshape (x, small) }>
            },
            else_branch = d () => (float[p, q] w) { w = Neg (x) }>
    }"""
    executable = compiler.build(import_model_proto(parse_model(text), {"n": [8]}))
    x = X[:, :8]

    def y(outer: bool, inner: bool) -> np.ndarray:
        return executable.run({"x": x, "outer": np.array(outer), "inner": np.array(inner)})["y"]

    np.testing.assert_array_equal(y(True, False), x)
    np.testing.assert_array_equal(y(False, True), -x)
    np.testing.assert_array_equal(y(False, False), -x)
    with pytest.raises(InputError, match="'inner' is True"):
        y(True, True)


def test_a_recurrence_whose_rows_do_not_fit() -> None:
    nodes = [node("LSTM", "x w r", "_ t", hidden_size=4), node("Shape", "x", "other")]
    value = helper.make_tensor_value_info
    y = value("t", TensorProto.FLOAT, None)
    then = helper.make_graph(nodes[:1], "then", [], [y])
    other = [node("ReduceMean", "x axes", "m"), node("Expand", "m to", "e")]
    otherwise = helper.make_graph(other, "other", [], [value("e", TensorProto.FLOAT, None)])
    graph = helper.make_graph(
        [node("If", "flag", then_branch=then, else_branch=otherwise)],
        "g",
        [value("x", TensorProto.FLOAT, [5, 1, "n"]), value("flag", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, [1, 1, 4])],
        [
            numpy_helper.from_array(RNG.standard_normal((1, 16, 3)).astype(np.float32), "w"),
            numpy_helper.from_array(RNG.standard_normal((1, 16, 4)).astype(np.float32), "r"),
            numpy_helper.from_array(np.array([0, 1, 2]), "axes"),
            numpy_helper.from_array(np.array([1, 1, 4]), "to"),
        ],
    )
    opsets = [helper.make_opsetid("", 18)]
    executable = compiler.build(
        import_model_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8), {"n": [6]})
    )
    x = RNG.standard_normal((5, 1, 6)).astype(np.float32)
    found = executable.run({"x": x, "flag": np.array(False)})["y"]
    np.testing.assert_allclose(found, np.full((1, 1, 4), x.mean()), rtol=1e-5)
    with pytest.raises(InputError, match="LSTM"):
        executable.run({"x": x, "flag": np.array(True)})


def test_branches_that_both_do_not_fit_are_an_error_of_the_build() -> None:
    with pytest.raises(ShapeError, match="Reshape"):
        import_model_proto(branches(BODIES["Reshape"]), {"n": [12]})


def test_an_operator_that_there_is_not_is_refused_in_any_branch() -> None:
    model = branches("{0} = Neg (x)")
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "else_branch":
            attribute.g.node[0].op_type = "Nosuch"
    with pytest.raises(UnsupportedOperatorError, match="Nosuch"):
        import_model_proto(model, {"n": [8]})


@pytest.mark.parametrize("kind", ["Loop", "If"])
def test_bodies_that_list_their_initializers_as_inputs(kind: str) -> None:
    """As graphs before IR version 4 do."""
    value = helper.make_tensor_value_info
    two = numpy_helper.from_array(np.array(2.0, np.float32), "two")
    listed = value("two", TensorProto.FLOAT, [])
    scale = helper.make_node("Mul", ["v" if kind == "Loop" else "x", "two"], ["scaled"])
    out = value("scaled", TensorProto.FLOAT, [2, 16])
    if kind == "Loop":
        body = helper.make_graph(
            [scale, helper.make_node("Identity", ["go"], ["on"])],
            "body",
            [
                value("step", TensorProto.INT64, []),
                value("go", TensorProto.BOOL, []),
                value("v", TensorProto.FLOAT, [2, 16]),
                listed,
            ],
            [value("on", TensorProto.BOOL, []), out],
            [two],
        )
        node = helper.make_node("Loop", ["three", "", "x"], ["y"], body=body)
    else:
        body = helper.make_graph([scale], "body", [listed], [out], [two])
        other = helper.make_graph([helper.make_node("Neg", ["x"], ["scaled"])], "other", [], [out])
        node = helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=other)
    inputs = [value("x", TensorProto.FLOAT, [2, 16])]
    if kind == "If":
        inputs.append(value("flag", TensorProto.BOOL, []))
    graph = helper.make_graph(
        [node],
        "g",
        inputs,
        [value("y", TensorProto.FLOAT, [2, 16])],
        [numpy_helper.from_array(np.array(3), "three")],
    )
    opsets = [helper.make_opsetid("", 13)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=7)
    feed: dict[str, object] = {"x": X}
    if kind == "If":
        feed["flag"] = np.array(True)
    found = compiler.build(import_model_proto(model)).run(feed)["y"]
    np.testing.assert_array_equal(found, X * (8 if kind == "Loop" else 2))


@pytest.mark.parametrize(
    ("node", "hint"),
    [
        ("y = Squeeze (x, first)", "b:1|2..3 in --shape"),
        ("a = Slice (x, one, end) y = Squeeze (a)", "sizes of b apart with which it is 1"),
    ],
)
def test_a_squeezed_axis_that_may_be_1_says_what_to_build(node: str, hint: str) -> None:
    model = parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[b, 3] x) => (float[p, q] y)
        <int64[1] first = {{0}}, int64[1] one = {{1}}, int64[1] end = {{9}}> {{ {node} }}"""
    )
    with pytest.raises(ShapeError) as refused:
        import_model_proto(model, {"b": ["1..3"]})
    assert hint in refused.value.hint


SQUEEZES = {
    "x": "y = Squeeze (x)",
    "sum": "s = ReduceSum <keepdims = 1> (x, axes) y = Squeeze (s)",
    "inside": "a = Relu (x) b = Unsqueeze (a, axes) y = Squeeze (b)",
}


@pytest.mark.parametrize("body", SQUEEZES.values(), ids=SQUEEZES)
@pytest.mark.parametrize("bounds", ["1..2", "0..4", "2..4"])
def test_a_rank_that_a_size_decides_is_refused(body: str, bounds: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[b, 3] x) => (float[p] y) <int64[1] axes = {{1}}> {{ {body} }}"""
    model = parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    if bounds != "2..4":
        with pytest.raises(ShapeError, match=r"rank of its result depends on axis 0, b") as refused:
            import_model_proto(model, {"b": [bounds]})
        apart = {"1..2": "1|2", "0..4": "0|1|2..4"}[bounds]
        assert f"b:{apart} in --shape" in refused.value.hint
    for sizes, rows in (("2..4", 3), (1, 1), (4, 4)) if bounds == "2..4" else ((1, 1),):
        executable = compiler.build(import_model_proto(model, {"b": [sizes]}))
        x = RNG.standard_normal((rows, 3)).astype(np.float32)
        assert_agrees(executable.run, model, {"x": x}, rtol=1e-5)


def test_a_branch_that_is_not_taken_may_compute_any_size() -> None:
    proto = parse_model("""<ir_version: 8, opset_import: ["" : 18]>
        g (bool c, float[1,1,3,4] x, int64[2] s) => (float y) {
          two = Constant<value_ints = [1, 1]>() q = Concat<axis = 0>(two, s)
          y = If (c) <then_branch = t () => (float u)
              { r = Resize<mode = "linear">(x, "", "", q) u = ReduceSum<keepdims = 0>(r) },
            else_branch = e () => (float v) { v = ReduceMax<keepdims = 0>(x) }> }""")
    executable = compiler.build(import_model_proto(proto))
    x = RNG.random((1, 1, 3, 4), np.float32)
    for flag, sizes in ((True, (5, 6)), (False, (5, 6)), (False, (0, -70000)), (False, (2**40, 2))):
        given = {"c": np.array(flag), "x": x, "s": np.array(sizes)}
        assert_agrees(executable.run, proto, given)
    with pytest.raises(InputError, match="must give 1 to 1024 elements"):
        executable.run({"c": np.array(True), "x": x, "s": np.array([0, 2])})
