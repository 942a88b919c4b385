"""onnxruntime's operators on integers give what onnxruntime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from tests.compiler.frontend.onnx_models import model, untyped
from tests.compiler.graph.graph_helpers import evaluate_program
from tests.onnxruntime_session import exact_session
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.types.dtypes import DType

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

_DATA = np.random.default_rng(4).standard_normal((2, 3, 8)).astype(np.float32)
_RIGHT = _bytes(5, 8, 5, signed=True)
_CHOSEN = np.random.default_rng(6).integers(0, 2, _SHAPE).astype(np.bool_)
_WINDOW = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}

CASES: dict[str, tuple[str, list[Values], dict[str, Any]]] = {
    "add": ("QLinearAdd", [*_ONE, *_TWO, *_RESULT], {}),
    "mul": ("QLinearMul", [*_ONE, *_TWO, *_RESULT], {}),
    "sigmoid": ("QLinearSigmoid", [*_ONE, _scale(1 / 256), _zero(0)], {}),
    "leaky relu": ("QLinearLeakyRelu", [*_ONE, *_RESULT], {"alpha": 0.25}),
    "pool": ("QLinearGlobalAveragePool", [*_ONE, *_RESULT], {"channels_last": 0}),
    "concat": ("QLinearConcat", [*_RESULT, *_ONE, *_TWO], {"axis": 1}),
    "softmax": ("QLinearSoftmax", [*_ONE, _scale(1 / 256), _zero(0)], {"axis": -1, "opset": 13}),
    "old softmax": ("QLinearSoftmax", [*_ONE, _scale(1 / 256), _zero(0)], {"axis": 2, "opset": 11}),
    "average pool": ("QLinearAveragePool", [*_ONE, *_RESULT], _WINDOW),
    "average pool of padding": (
        "QLinearAveragePool",
        [*_ONE, *_RESULT],
        {**_WINDOW, "count_include_pad": 1},
    ),
    "average pool of channels behind": (
        "QLinearAveragePool",
        [*_ONE, *_RESULT],
        {"kernel_shape": [2, 2], "channels_last": 1},
    ),
    "quantise": ("QuantizeLinear", [_DATA, _scale(0.03), np.array(-9, np.int16)], {}),
    "dequantise": ("DequantizeLinear", [*_ONE], {}),
    "where": ("QLinearWhere", [_CHOSEN, *_ONE, *_TWO, *_RESULT], {}),
    "integers to floats": (
        "MatMulIntegerToFloat",
        [_bytes(2, 3, 8), _RIGHT, _scale(0.04), _WEIGHT[1], _zero(9)],
        {},
    ),
    "dynamic": ("DynamicQuantizeMatMul", [_DATA, _RIGHT, _WEIGHT[1], _WEIGHT[2], _WEIGHT[1]], {}),
    "gemm": (
        "QGemm",
        [*_GEMM, *_WEIGHT, np.arange(5, dtype=np.int32) * 100, *_RESULT],
        {"transB": 1, "alpha": 1.0},
    ),
    "gemm to floats": ("QGemm", [*_GEMM, *_WEIGHT], {"transB": 1, "alpha": 1.0}),
}


def _model(operator: str, operands: list[Values], given: dict[str, Any]) -> onnx.ModelProto:
    """Matrices and larger ones, but for signed weights, are inputs, all else constant."""
    names = [f"x{number}" for number in range(len(operands))]
    arrays = dict(zip(names, operands, strict=True))
    fixed = {n: array for n, array in arrays.items() if array.ndim < 2 or array.dtype == np.int8}
    inputs = {name: array for name, array in arrays.items() if name not in fixed}
    node = helper.make_node(operator, names, ["y"], domain="com.microsoft", **given)
    return model([node], inputs, [untyped("y")], fixed, opset=20)


@pytest.mark.parametrize("case", CASES)
def test_operator_gives_what_onnxruntime_gives(case: str) -> None:
    operator, operands, given = CASES[case]
    model = _model(operator, operands, given)
    names = [value.name for value in model.graph.input]
    feeds = {name: operands[int(name[1:])] for name in names}
    graph = optimise(import_model_proto(model), 16)
    (found,) = evaluate_program(extract_kernels(graph), feeds)
    kind = helper.np_dtype_to_tensor_dtype(found.dtype)
    model.graph.output[0].type.tensor_type.elem_type = kind
    session = exact_session(model)
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
