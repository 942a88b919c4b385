"""Networks of the zoo that onnxruntime has quantized: ours compute in integers what it does."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.compiler.graph.graph_helpers import evaluate_program
from tests.onnxruntime_session import exact_session
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.frontend.zoo import build_model
from tunefarm.compiler.frontend.zoo.network import Size
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.optimise import optimise
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.tuner.commands.engines import QUANTIZED_FORMS, quantized_by_onnxruntime

SMALL = Size(image=32, width=0.25, classes=10, tokens=12, layers=2)


@pytest.mark.parametrize("form", QUANTIZED_FORMS)
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "squeezenet1_1", "encoder"])
def test_a_quantized_network_computes_in_integers_what_onnxruntime_does(
    name: str, form: str
) -> None:
    plain = build_model(name, size=SMALL)
    model = onnx.ModelProto.FromString(quantized_by_onnxruntime(plain.SerializeToString(), form))
    graph = optimise(import_model_proto(model), 16)
    assert not [
        node.source
        for node in graph.nodes
        if node.operator in ("conv", "matmul") and graph.types[node.output].dtype is DType.F32
    ]
    (value,) = plain.graph.input
    shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
    x: Array = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    expected = np.asarray(exact_session(model).run(None, {value.name: x})[0], np.float64)
    found = np.asarray(evaluate_program(extract_kernels(graph), {value.name: x})[0], np.float64)
    # onnxruntime averages, adds and rounds ties in ways of its own, by a quantum here and there.
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
