"""Tensors without elements: nothing reads or makes them at run time, and they are passed all the
same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.compiler.frontend.onnx_models import model, tensor
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.tensor_type import Array


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], constants: dict[str, Array]
) -> onnx.ModelProto:
    return model(nodes, [tensor(*item) for item in inputs.items()], constants=constants)


def _node(operator: str, inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], **attributes)


AXIS = np.array([1], np.int64)
CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, list[int]], dict[str, Array]]] = {
    "pointwise": ([_node("Add", "x z")], {"x": [0, 4], "z": [4]}, {}),
    "moved": ([_node("Transpose", "x")], {"x": [3, 0, 2]}, {}),
    "sliced": (
        [_node("Slice", "x a a", "s"), _node("Relu", "s")],
        {"x": [4, 4]},
        {"a": np.array([2], np.int64)},
    ),
    "joined": ([_node("Concat", "x z", axis=1)], {"x": [2, 0, 3], "z": [2, 5, 3]}, {}),
    "product of nothing": ([_node("MatMul", "x z")], {"x": [3, 0], "z": [0, 4]}, {}),
    "product": ([_node("MatMul", "x z")], {"x": [0, 3], "z": [3, 4]}, {}),
    "sum": ([_node("ReduceSum", "x a")], {"x": [2, 0, 3]}, {"a": AXIS}),
    "of a large one": (
        [_node("Softmax", "x", "s"), _node("ReduceProd", "s a")],
        {"x": [2, 0, 3000]},
        {"a": AXIS},
    ),
    "convolution": (
        [_node("Conv", "x w")],
        {"x": [1, 3, 8, 8]},
        {"w": np.ones((0, 3, 3, 3), np.float32)},
    ),
    "padded": ([_node("Pad", "x p")], {"x": [0, 3]}, {"p": np.array([1, 0, 1, 1], np.int64)}),
    "itself": ([_node("Identity", "x")], {"x": [0, 3]}, {}),
    "beside others": (
        [_node("Concat", "x z", "c", axis=0), _node("Relu", "c")],
        {"x": [0, 3], "z": [5, 3]},
        {},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_empty_tensors_are_passed_and_joined(name: str, tmp_path: Path) -> None:
    nodes, inputs, constants = CASES[name]
    model = _model(nodes, inputs, constants)
    rng = np.random.default_rng(0)
    arrays = {key: rng.standard_normal(shape, np.float32) for key, shape in inputs.items()}
    (expected,) = ReferenceEvaluator(model).run(None, arrays)
    assert isinstance(expected, np.ndarray)
    executable = compiler.build(import_model_proto(model))
    executable.save(tmp_path / "empty.tuned")
    for run in (executable, compiler.load(tmp_path / "empty.tuned")):
        found = run.run(arrays)["y"]
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_no_node_of_the_graph_has_an_empty_operand() -> None:
    nodes, inputs, constants = CASES["of a large one"]
    graph = import_model_proto(_model(nodes, inputs, constants))
    assert not graph.nodes
    assert graph.inputs == ("x",)
