"""Constant scales that nothing can be scaled by are refused at import, by node and tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from tests.compiler.frontend.onnx_models import model as model_of
from tests.compiler.frontend.onnx_models import node, tensor, untyped
from tests.onnxruntime_session import assert_agrees
from tunefarm import compiler
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.types.tensor_type import Array

_DATA, _STEP, _ZERO = "data", "scale", "zero"
_OPERATORS: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "QuantizeLinear"): ("floats", _STEP, _ZERO),
    ("", "DequantizeLinear"): (_DATA, _STEP, _ZERO),
    ("", "QLinearConv"): (*("image", _STEP, _ZERO), *("filters", _STEP, _ZERO), _STEP, _ZERO),
    ("", "QLinearMatMul"): (*(_DATA, _STEP, _ZERO) * 2, _STEP, _ZERO),
    ("com.microsoft", "QLinearAdd"): (*(_DATA, _STEP, _ZERO) * 2, _STEP, _ZERO),
    ("com.microsoft", "QLinearSigmoid"): (_DATA, _STEP, _ZERO, _STEP, _ZERO),
    ("com.microsoft", "QLinearSoftmax"): (_DATA, _STEP, _ZERO, _STEP, _ZERO),
    ("com.microsoft", "MatMulIntegerToFloat"): (_DATA, _DATA, _STEP, _STEP),
    ("com.microsoft", "QLinearGlobalAveragePool"): ("image", _STEP, _ZERO, _STEP, _ZERO),
    ("com.microsoft", "QLinearConcat"): (_STEP, _ZERO, *(_DATA, _STEP, _ZERO) * 2),
    ("com.microsoft", "QGemm"): (*(_DATA, _STEP, _ZERO) * 2, "", _STEP, _ZERO),
}
_PLACES = [
    (*key, place)
    for key, inputs in _OPERATORS.items()
    for place, kind in enumerate(inputs)
    if kind == _STEP
]
_SHAPES = {"image": (1, 2, 3, 3), "filters": (2, 2, 1, 1)}


def _model(domain: str, operator: str, wrong: int, scale: float) -> onnx.ModelProto:
    """The operator with 0.5 for all scales but the one at input `wrong`, which is `scale`."""
    inputs, constants, names = [], [], []
    for place, kind in enumerate(_OPERATORS[domain, operator]):
        name = f"{kind}{place}" if kind else ""
        names.append(name)
        if kind in (_STEP, _ZERO):
            value = np.float32(scale if place == wrong else 0.5)
            array = np.array(value) if kind == _STEP else np.array(3, np.uint8)
            constants.append(numpy_helper.from_array(array, name))
        elif kind:
            kept = onnx.TensorProto.FLOAT if kind == "floats" else onnx.TensorProto.UINT8
            shape = _SHAPES.get(kind, (2, 2))
            inputs.append(helper.make_tensor_value_info(name, kept, shape))
    node = helper.make_node(operator, names, ["y"], "the_node", domain=domain)
    for name in {"QLinearConcat": ("axis",), "QLinearSoftmax": ("opset",)}.get(operator, ()):
        node.attribute.append(helper.make_attribute(name, 0))
    output = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([node], "scales", inputs, [output], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(("domain", "operator", "place"), _PLACES)
def test_scales_are_finite_and_what_divides_is_not_zero(
    domain: str, operator: str, place: int
) -> None:
    for scale in (0.25, -0.5):
        import_model_proto(_model(domain, operator, place, scale))
    places = [at for name, op, at in _PLACES if (name, op) == (domain, operator)]
    is_integer = operator.startswith("Q") and operator != "QuantizeLinear"
    divides = is_integer and place == places[0 if operator == "QLinearConcat" else -1]
    for scale in (float("nan"), float("inf"), *([0.0] if divides else [])):
        with pytest.raises(ImportModelError) as refused:
            import_model_proto(_model(domain, operator, place, scale))
        for part in (operator, "the_node", f"scale{place}", f"{scale:g}"):
            assert part in str(refused.value)
    if not divides:
        import_model_proto(_model(domain, operator, place, 0.0))


def test_blocks_of_weights_may_have_any_finite_scale() -> None:
    def model(scale: float) -> onnx.ModelProto:
        constants: dict[str, Array] = {"scales": np.array([[0.5, scale]], np.float32)}
        constants["weights"] = np.ones((4, 2), np.int8)
        nodes = "w = DequantizeLinear weights scales axis=0 block_size=4; MatMul x w"
        return model_of(nodes, [tensor("x", (3, 4))], constants=constants, opset=21)

    for scale in (0.0, -0.5):
        import_model_proto(model(scale))
    with pytest.raises(ImportModelError, match="'scales' has nan, which nothing can be scaled by"):
        import_model_proto(model(float("nan")))


def _compare(
    nodes: list[onnx.NodeProto],
    feed: Mapping[str, Array],
    constants: Mapping[str, Array],
    outputs: list[str],
) -> None:
    """Outputs are those of onnxruntime without its optimiser, which asks for no scale's sign."""
    proto = model_of(nodes, feed, [untyped(name) for name in outputs], constants, opset=21)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    run = compiler.build(import_model_proto(proto)).run
    assert_agrees(run, proto, feed, rtol=1e-5, atol=1e-6, options=options)


_SPECIAL = [-2.5, -0.0, 0.0, 1e-30, 3.0, np.inf, -np.inf, np.nan, 300]


@pytest.mark.parametrize("is_input", [False, True])
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int16])
@pytest.mark.parametrize("form", ["tensor", "negative zero", "axis", "block"])
def test_quotients_by_a_scale_of_0_saturate(form: str, kind: type, is_input: bool) -> None:
    x = np.resize(np.array(_SPECIAL, np.float32), (2, 3, 36))
    scales: dict[str, tuple[Array, dict[str, Any]]] = {
        "tensor": (np.array(0, np.float32), {}),
        "negative zero": (np.array(-0.0, np.float32), {}),
        "axis": (np.array([0.5, 0, -0.25], np.float32), {"axis": 1}),
        "block": (
            np.resize(np.array([0, 0.5], np.float32), (2, 3, 4)),
            {"axis": 2, "block_size": 9},
        ),
    }
    scale, attributes = scales[form]
    zero: Array = np.full(scale.shape, 5, kind)
    nodes = [
        node("QuantizeLinear", "x scale zero", "q", **attributes),
        node("DequantizeLinear", "q scale zero", "again", **attributes),
        node("QuantizeLinear", "again scale zero", "q2", **attributes),
    ]
    if form in ("axis", "block"):
        x[np.isnan(x)] = 1  # what NaN is over another scale, nothing says
    feed: dict[str, Array] = {"x": x}
    constants: dict[str, Array] = {"zero": zero}
    (feed if is_input else constants)["scale"] = scale
    _compare(nodes, feed, constants, ["q", "again", "q2"])


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int16])
@pytest.mark.parametrize("scale", [0.0, -0.5, [0.5, 0.0, -0.25]])
@pytest.mark.parametrize("is_input", [False, True])
def test_scales_of_0_and_below_are_as_onnxruntime_has_them(
    kind: type, scale: float | list[float], is_input: bool
) -> None:
    scales = np.array(scale, np.float32)
    limits, rng = np.iinfo(kind), np.random.default_rng(1)
    feed: dict[str, Array] = {
        "x": rng.uniform(-60, 60, (1, 3, 4, 4)).astype(np.float32),
        "data": rng.integers(limits.min, limits.max, (1, 3, 4, 4)).astype(kind),
    }
    constants: dict[str, Array] = {"zero": np.full(scales.shape, 5, kind)}
    (feed if is_input else constants)["scale"] = scales
    nodes = [
        node("QuantizeLinear", "x scale zero", "q"),
        node("DequantizeLinear", "data scale zero", "d"),
        node("MaxPool", "d", "pool", kernel_shape=[2, 2]),
        node("QuantizeLinear", "pool scale zero", "q2"),
    ]
    _compare(nodes, feed, constants, ["q", "d", "pool", "q2"])


@pytest.mark.parametrize("step", [0.0, 2e-38, 0.1])
def test_sums_of_0_over_a_small_scale_are_the_zero_point(step: float) -> None:
    """A factor over a scale of 2e-38 is infinite, and that times 0 no number."""
    constants: dict[str, Array] = {
        "xs": np.array(50, np.float32),
        "xz": np.array(128, np.uint8),
        "w": np.random.default_rng(2).integers(-127, 128, (3, 4)).astype(np.int8),
        "ws": np.array([1, 0, -2, 3], np.float32),
        "ys": np.array(step, np.float32),
        "yz": np.array(100, np.uint8),
    }
    nodes = [
        node("DequantizeLinear", "x xs xz", "xd"),
        node("DequantizeLinear", "w ws", "wd", axis=1),
        node("MatMul", "xd wd"),
        node("QuantizeLinear", "y ys yz", "q"),
    ]
    x = np.array([[128, 128, 128], [0, 128, 255], [7, 100, 200]], np.uint8)
    _compare(nodes, {"x": x}, constants, ["q"])
