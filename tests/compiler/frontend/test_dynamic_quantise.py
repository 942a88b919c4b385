"""DynamicQuantizeLinear beside onnxruntime, whose scale of zeros alone is 1 and divides well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import QuantType, quantize_dynamic

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import node, tensor
from tests.onnxruntime_session import assert_agrees
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
    run = compiler.build(import_model_proto(model, sizes)).run
    assert_agrees(run, model, {"x": x}, rtol=0, atol=0)


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
    for x in (np.zeros((1, 4), np.float32), np.array([[0.1, -0.2, 0.3, 0.0]], np.float32)):
        assert_agrees(executable.run, model, {"x": x}, rtol=1e-6, atol=0)


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
    for rows in (1, 3, 4):
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        assert_agrees(executable.run, model, {"x": x}, rtol=0, atol=0)


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    signs=st.sampled_from([("u1", "u1"), ("u1", "i1"), ("i1", "i1")]),
    shape=st.tuples(st.sampled_from([1, 2, 7, 13]), st.sampled_from([3, 26, 97, 260])),
    columns=st.sampled_from([1, 13, 40]),
    channels=st.booleans(),
    dynamic=st.booleans(),
    seed=st.integers(0, 99),
)
def test_sums_of_the_largest_bytes_are_exact(
    signs: tuple[str, str],
    shape: tuple[int, int],
    columns: int,
    channels: bool,
    dynamic: bool,
    seed: int,
) -> None:
    """Sums of two products beyond 16 bits, zero points of both sides, one for each channel."""
    rng, (rows, inner) = np.random.default_rng(seed), shape
    left, right = (np.iinfo(sign) for sign in signs)
    a = rng.choice(np.array([left.min, left.max, left.max - 1], signs[0]), shape)
    b = rng.choice(np.array([right.min, right.max, right.max - 1], signs[1]), (inner, columns))
    zeros = [
        rng.integers(left.min, left.max, (), signs[0], endpoint=True),
        rng.integers(right.min, right.max, (columns,) if channels else (), signs[1], endpoint=True),
    ]
    arrays = {"b": b, "az": np.asarray(zeros[0]), "bz": np.asarray(zeros[1])}
    kind = helper.np_dtype_to_tensor_dtype(a.dtype)
    products = [node("MatMulInteger", "a b az bz")]
    y = tensor("y", None, onnx.TensorProto.INT32)
    model = model_of(products, [tensor("a", ("m", inner), kind)], [y], arrays, opset=17)
    sizes = {"m": ("1..13",) if dynamic else (rows,)}
    found = compiler.build(import_model_proto(model, sizes)).run({"a": a})["y"]
    wide = [array.astype(np.int64) for array in (a, b, *zeros)]
    np.testing.assert_array_equal(found, (wide[0] - wide[2]) @ (wide[1] - wide[3]))


@pytest.mark.parametrize("weights", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("channels", [False, True])
def test_each_node_of_a_quantised_network_is_exact_of_what_it_reads(
    tmp_path: Path, weights: QuantType, channels: bool
) -> None:
    """Outputs of engines drift apart where one rounds a byte up and the other down; no node may."""
    model = _quantised_layers(tmp_path, weights, channels)
    quantised = [node for node in model.graph.node if node.op_type == "DynamicQuantizeLinear"]
    products = [node for node in model.graph.node if node.op_type == "MatMulInteger"]
    assert len(quantised) == len(products) == 4
    x = np.random.default_rng(1).normal(size=(9, 96)).astype(np.float32)
    shown = [name for node in quantised for name in (*node.input, *node.output) if name != "x"]
    shown += [node.output[0] for node in products]
    known = {item.name for item in model.graph.output}
    for name in dict.fromkeys(shown):
        if name not in known:
            model.graph.output.append(helper.make_value_info(name, onnx.TypeProto()))
    values: dict[str, Any] = compiler.build(import_model_proto(model)).run({"x": x})
    values = {"x": x, **values}
    for each in quantised:
        data, (given, scale, zero) = values[each.input[0]], (values[n] for n in each.output)
        low, high = min(data.min(), np.float32(0)), max(data.max(), np.float32(0))
        np.testing.assert_allclose(scale, (high - low) / np.float32(255), rtol=2e-7)
        assert zero == np.rint(np.clip(-low / scale, 0, 255))
        expected = np.clip(np.rint(data / scale) + zero, 0, 255)
        np.testing.assert_array_equal(given, expected)
    constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    for each in products:
        a, b, a_zero, b_zero = (
            np.asarray({**values, **constants}[name], np.int64) for name in each.input
        )
        np.testing.assert_array_equal(values[each.output[0]], (a - a_zero) @ (b - b_zero))
    for name, expected in zip(known, _by_reference(model, x, list(known)), strict=True):
        np.testing.assert_allclose(values[name], expected, atol=0.02 * np.abs(expected).max())


def _by_reference(model: onnx.ModelProto, x: np.ndarray, names: list[str]) -> list[Any]:
    return list(ReferenceEvaluator(model).run(names, {"x": x}))


def _quantised_layers(folder: Path, weights: QuantType, channels: bool) -> onnx.ModelProto:
    """Four dense layers, as `quantize_dynamic` writes them."""
    rng = np.random.default_rng(0)
    nodes, constants, data = [], {}, "x"
    for number, activation in enumerate(("Relu", "Tanh", "Sigmoid", "Identity")):
        weight = rng.normal(size=(96, 96)).astype(np.float32) / 10 + np.float32(0.03)
        constants[f"w{number}"] = weight
        nodes.append(node("MatMul", f"{data} w{number}", f"p{number}"))
        data = f"h{number}" if number < 3 else "y"
        nodes.append(helper.make_node(activation, [f"p{number}"], [data]))
    x = tensor("x", (9, 96))
    onnx.save(model_of(nodes, [x], constants=constants, opset=17), folder / "f.onnx")
    paths = folder / "f.onnx", folder / "q.onnx"
    quantize_dynamic(*paths, weight_type=weights, per_channel=channels)
    return onnx.load(folder / "q.onnx")
