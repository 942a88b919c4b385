"""Bounds that a user gives to sizes of results, and shapes that a file declares of them."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.compiler.frontend.onnx_models import model, node, tensor
from tunefarm import compiler
from tunefarm.compiler.errors import DeclaredShapeWarning, InputError, ShapeError
from tunefarm.compiler.frontend.import_onnx import import_model_proto


def _nonzero() -> onnx.ModelProto:
    proto = model([node("NonZero", "x")], [tensor("x", ["n"])], opset=18)
    proto.graph.output[0].CopyFrom(tensor("y", [1, "k"], TensorProto.INT64))
    return proto


def test_a_computed_size_out_of_the_bounds_that_were_given_is_refused() -> None:
    executable = compiler.build(import_model_proto(_nonzero(), {"n": ("1..6",), "k": ("1..2",)}))
    found = executable.run({"x": np.array([0, 1, 0, 5, 0], np.float32)})
    np.testing.assert_array_equal(found["y"], [[1, 3]])
    for values in ([1, 1, 1], [0]):
        with pytest.raises(InputError, match=r"axis 1 of output 'y' is out of .* k=1\.\.2"):
            executable.run({"x": np.array(values, np.float32)})


def test_bounds_that_a_size_always_keeps_cost_nothing() -> None:
    graph = import_model_proto(_nonzero(), {"n": ("1..6",), "k": ("0..6",)})
    assert not graph.signature.checks


def test_bounds_that_a_size_never_keeps_are_refused_at_import() -> None:
    with pytest.raises(ShapeError, match=r"--shape k=7\.\.9: axis 1 of output 'y' has 0 to 6"):
        import_model_proto(_nonzero(), {"n": ("1..6",), "k": ("7..9",)})


@pytest.mark.parametrize(
    ("declared", "said"),
    [([2, 3], "[2, 3]"), ([12], "[12]"), ([], "[]"), (["n", 5], "[n, 5]"), ([0, 5], "[?, 5]")],
)
def test_outputs_of_other_shapes_than_declared_are_warned_of(
    declared: list[int | str], said: str
) -> None:
    nodes = [node("Relu", "x"), node("Neg", "x", "z")]
    nodes += [node("Abs", "x", "right")]
    proto = model(nodes, [tensor("x", [4, 3])], ["y", "z", "right"])
    proto.graph.output[0].CopyFrom(tensor("y", declared))
    proto.graph.output[1].CopyFrom(tensor("z", [1, 3]))
    proto.graph.output[2].CopyFrom(tensor("right", [4, 3]))
    with pytest.warns(DeclaredShapeWarning) as caught:
        graph = import_model_proto(proto)
    (warning,) = caught
    text = f"'y' as {said}, not [4, 3]; 'z' as [1, 3], not [4, 3]: the computed shapes count"
    assert text in str(warning.message)
    assert all(graph.types[name].shape == (4, 3) for name in graph.outputs)


def test_a_fixed_shape_of_a_dynamic_result_is_warned_of() -> None:
    proto = model([node("Relu", "x")], [tensor("x", ["n", 3])])
    proto.graph.output[0].CopyFrom(tensor("y", [1, 3]))
    with pytest.warns(DeclaredShapeWarning, match=r"'y' as \[1, 3\], not \[n, 3\]"):
        import_model_proto(proto, {"n": ("1..4",)})


@pytest.mark.parametrize("declared", [[4, 3], ["n", 3], [None, 3], [0, -1], None])
def test_shapes_that_may_be_those_are_not_warned_of(
    declared: list[int | str | None] | None,
) -> None:
    proto = model([node("Relu", "x")], [tensor("x", [4, 3])])
    proto.graph.output[0].CopyFrom(tensor("y", declared))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import_model_proto(proto)


def test_a_session_warns_once_of_what_a_file_declares(tmp_path: Path) -> None:
    proto = model([node("Relu", "x")], [tensor("x", ["n", 3])])
    proto.graph.output[0].CopyFrom(tensor("y", [9, 3]))
    onnx.save(proto, tmp_path / "m.onnx")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = compiler.InferenceSession(str(tmp_path / "m.onnx"))
        for size in (1, 2, 3, 4):
            assert session.run(None, {"x": np.ones((size, 3), np.float32)})[0].shape == (size, 3)
        assert session.builds is not None
        session.builds.wait()
    assert [item.category for item in caught].count(DeclaredShapeWarning) == 1
