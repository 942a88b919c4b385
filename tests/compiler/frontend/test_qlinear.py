"""onnxruntime's operators on integers give what onnxruntime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.frontend.import_onnx import import_model_proto
from compiler.plan.extract_kernels import extract_kernels
from compiler.plan.optimise import optimise
from compiler.types.dtypes import DType
from tests.compiler.graph.graph_helpers import evaluate_program

Values = npt.NDArray[Any]
_SHAPE = (1, 6, 5, 7)


def _bytes(seed: int, *shape: int, signed: bool = False) -> Values:
    rng = np.random.default_rng(seed)
    low, high, dtype = (-128, 127, np.int8) if signed else (0, 255, np.uint8)
    return rng.integers(low, high, shape, endpoint=True).astype(dtype)


def _scale(value: float) -> Values:
    return np.array(value, np.float32)


def _zero(value: int) -> Values:
    return np.array(value, np.uint8)


_ONE = [_bytes(0, *_SHAPE), _scale(0.04), _zero(120)]
_TWO = [_bytes(1, *_SHAPE), _scale(0.07), _zero(3)]
_RESULT = [_scale(0.09), _zero(99)]
_GEMM = [_bytes(2, 3, 8), _scale(0.04), _zero(9)]
_WEIGHT = [_bytes(3, 5, 8, signed=True), np.linspace(0.01, 0.05, 5, dtype=np.float32)]
_WEIGHT += [np.zeros(5, np.int8)]

CASES: dict[str, tuple[str, list[Values], dict[str, Any]]] = {
    "add": ("QLinearAdd", [*_ONE, *_TWO, *_RESULT], {}),
    "mul": ("QLinearMul", [*_ONE, *_TWO, *_RESULT], {}),
    "sigmoid": ("QLinearSigmoid", [*_ONE, _scale(1 / 256), _zero(0)], {}),
    "leaky relu": ("QLinearLeakyRelu", [*_ONE, *_RESULT], {"alpha": 0.25}),
    "pool": ("QLinearGlobalAveragePool", [*_ONE, *_RESULT], {"channels_last": 0}),
    "concat": ("QLinearConcat", [*_RESULT, *_ONE, *_TWO], {"axis": 1}),
    "gemm": (
        "QGemm",
        [*_GEMM, *_WEIGHT, np.arange(5, dtype=np.int32) * 100, *_RESULT],
        {"transB": 1, "alpha": 1.0},
    ),
    "gemm to floats": ("QGemm", [*_GEMM, *_WEIGHT], {"transB": 1, "alpha": 1.0}),
}


def _model(operator: str, operands: list[Values], given: dict[str, Any]) -> onnx.ModelProto:
    """Bytes of activations are inputs, all else constant."""
    names = [f"x{number}" for number in range(len(operands))]
    fixed = [
        numpy_helper.from_array(array, name)
        for name, array in zip(names, operands, strict=True)
        if array.dtype != np.uint8 or array.ndim == 0
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.UINT8, array.shape)
        for name, array in zip(names, operands, strict=True)
        if array.dtype == np.uint8 and array.ndim
    ]
    node = helper.make_node(operator, names, ["y"], domain="com.microsoft", **given)
    result = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([node], "case", inputs, [result], fixed)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("case", CASES)
def test_operator_gives_what_onnxruntime_gives(case: str) -> None:
    operator, operands, given = CASES[case]
    model = _model(operator, operands, given)
    names = [value.name for value in model.graph.input]
    feeds = {name: operands[int(name[1:])] for name in names}
    graph = optimise(import_model_proto(model), 16)
    (found,) = evaluate_program(extract_kernels(graph), feeds)
    kind = "FLOAT" if found.dtype == np.float32 else "UINT8"
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DataType.Value(kind)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected: Any = session.run(None, feeds)[0]
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    # It rounds on its way in places of its own: by one quantum at most.
    atol = 1e-5 if found.dtype == np.float32 else 1.0
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=1e-5, atol=atol)


def test_a_gemm_on_integers_is_one_product_of_integers() -> None:
    graph = optimise(import_model_proto(_model(*CASES["gemm"])), 16)
    (product,) = (node for node in graph.nodes if node.operator == "matmul")
    assert graph.types[product.output].dtype is DType.I32
