"""Quantised models of the zoo: other engines load them, and folding leaves no product in floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest

from tests.compiler.graph.graph_helpers import evaluate_graph, evaluate_program
from tests.onnxruntime_session import exact_session
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.frontend.zoo.quantise import quantised, with_qoperators
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array

SMALL = Size(image=32, width=0.25, classes=10, tokens=12, layers=2)


def _observed(graph: Graph) -> Callable[[Mapping[str, Array]], Mapping[str, Array]]:
    return lambda inputs: dict(zip(graph.outputs, evaluate_graph(graph, inputs), strict=True))


def _prepared(model: onnx.ModelProto) -> Callable[[Mapping[str, Array]], Mapping[str, Array]]:
    session = exact_session(model)
    names = [value.name for value in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _quantised(name: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    plain = build_model(name, size=SMALL)
    return plain, quantised(plain, _observed)


def _products_in_floats(graph: Graph) -> list[str]:
    return [
        node.source
        for node in graph.nodes
        if node.operator in ("conv", "matmul") and graph.types[node.output].dtype is DType.F32
    ]


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1", "vgg11"])
def test_a_quantised_network_computes_in_integers_what_onnxruntime_does(name: str) -> None:
    plain, model = _quantised(name)
    graph = optimise(import_model_proto(model), 16)
    assert _products_in_floats(graph) == []
    (value,) = plain.graph.input
    shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
    x: Array = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    expected, exact = (
        np.asarray(next(iter(_prepared(item)({value.name: x}).values())), np.float64)
        for item in (model, plain)
    )
    found = np.asarray(evaluate_program(extract_kernels(graph), {value.name: x})[0], np.float64)
    largest = float(np.abs(exact).max())
    # onnxruntime averages, adds and rounds ties in ways of its own, by a quantum here and there.
    assert np.abs(found - expected).max() < 0.05 * largest
    assert np.abs(found - exact).max() < 0.3 * largest


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1"])
def test_operators_on_integers_are_those_of_the_other_form(name: str) -> None:
    _, model = _quantised(name)
    other = with_qoperators(model)
    operators = {node.op_type for node in other.graph.node}
    assert "QLinearConv" in operators
    assert "Conv" not in operators
    graph = optimise(import_model_proto(other), 16)
    assert _products_in_floats(graph) == []
    (value,) = model.graph.input
    shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
    x: Array = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    expected = np.asarray(next(iter(_prepared(other)({value.name: x}).values())), np.float64)
    found = np.asarray(evaluate_program(extract_kernels(graph), {value.name: x})[0], np.float64)
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("name", ["encoder", "unet", "yolov3_tiny"])
def test_what_is_partly_quantised_still_runs(name: str) -> None:
    plain, model = _quantised(name)
    inputs = {}
    for value in plain.graph.input:
        shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        inputs[value.name] = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    _prepared(model)(inputs)
    assert len(import_model_proto(model).nodes) > len(import_model_proto(plain).nodes)


def test_batch_norms_and_relus_are_gone() -> None:
    _, model = _quantised("resnet18")
    operators = {node.op_type for node in model.graph.node}
    assert not operators & {"BatchNormalization", "Relu"}
    assert {"QuantizeLinear", "DequantizeLinear", "Conv", "Gemm", "Add"} <= operators
