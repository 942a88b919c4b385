"""DynamicQuantizeLinear beside onnxruntime, whose scale of zeros alone is 1 and divides well."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.parser import parse_model

from tests.onnxruntime_session import exact_session
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
CASES = {
    "zeros": [0.0, 0.0, 0.0, 0.0],
    "negative zeros": [-0.0, 0.0, -0.0, -0.0],
    "one value": [1.0, 1.0, 1.0, 1.0],
    "below zero": [-1.0, -2.0, -3.0, -0.5],
    "above zero": [0.5, 1.0, 2.0, 3.0],
    "both": [-3.0, 1.5, 0.25, 2.75],
    "tiny": [1e-30, -1e-30, 0.0, 0.0],
    "huge": [1e37, -2e37, 0.0, 1.0],
}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
@pytest.mark.parametrize("shape", [(4,), (2, 2), (1, 4, 1)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_bytes_scale_and_zero_point_are_those_of_onnxruntime(
    values: list[float], shape: tuple[int, ...], dynamic: bool
) -> None:
    model = parse_model(
        f"""{HEAD} g (float[n{", m" * (len(shape) - 1)}] x) => (uint8[a] y, float s, uint8 z) {{
            y, s, z = DynamicQuantizeLinear (x)
        }}"""
    )
    names = [f"d{axis}" for axis in range(len(shape))]
    for dimension, name in zip(model.graph.input[0].type.tensor_type.shape.dim, names, strict=True):
        dimension.dim_param = name
    model.graph.output[0].type.tensor_type.ClearField("shape")
    sizes = {n: ("1..5",) if dynamic else (size,) for n, size in zip(names, shape, strict=True)}
    x = np.array(values, np.float32).reshape(shape)
    found = compiler.build(import_model_proto(model, sizes)).run({"x": x})
    for value, expected in zip(
        (found["y"], found["s"], found["z"]), exact_session(model).run(None, {"x": x}), strict=True
    ):
        np.testing.assert_array_equal(value, expected)


def test_a_bias_over_the_scale_of_silence_is_finite() -> None:
    """As networks have it that are quantised by tools: floor(bias / scale) is added to integers."""
    model = parse_model(
        f"""{HEAD} g (float[1, 4] x) => (float[1, 2] y)
        <int8[4, 2] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[2] bias = {{0.5, -1.5}},
         float ws = {{0.01}}> {{
            q, s, z = DynamicQuantizeLinear (x)
            both = Mul (s, ws)
            ratio = Div (bias, both)
            whole = Floor (ratio)
            product = MatMulInteger (q, w, z)
            floats = Cast <to = 1> (product)
            sum = Add (floats, whole)
            y = Mul (sum, both)
        }}"""
    )
    executable = compiler.build(import_model_proto(model))
    session = exact_session(model)
    for x in (np.zeros((1, 4), np.float32), np.array([[0.1, -0.2, 0.3, 0.0]], np.float32)):
        np.testing.assert_allclose(
            executable.run({"x": x})["y"], session.run(None, {"x": x})[0], rtol=1e-6
        )


@pytest.mark.parametrize("count", [0, 1, 2])
def test_shapes_without_elements_join_others_at_dynamic_sizes(count: int) -> None:
    """Exporters write ConstantOfShape of [batch, 0, 1] where nothing is to be put in front."""
    model = parse_model(
        f"""{HEAD} g (float[b, 3] x) => (float[b, m] y)
        <int64[1] rest = {{{count}}}, int64 first = {{0}}, int64[1] axis = {{0}}> {{
            shape = Shape (x)
            size = Gather (shape, first)
            batch = Unsqueeze (size, axis)
            wanted = Concat <axis = 0> (batch, rest)
            zeros = ConstantOfShape (wanted)
            y = Concat <axis = 1> (zeros, x)
        }}"""
    )
    executable = compiler.build(import_model_proto(model, {"b": ("1..4",)}))
    session = exact_session(model)
    for rows in (1, 3, 4):
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(executable.run({"x": x})["y"], session.run(None, {"x": x})[0])
