"""Constant scales that nothing can be scaled by are refused at import, by node and tensor."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto

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
    first, last = operator in ("QLinearConcat", "QuantizeLinear"), operator.startswith("Q")
    divides = place == (places[0] if first else places[-1]) and last
    for scale in (float("nan"), float("inf"), *([0.0] if divides else [])):
        with pytest.raises(ImportModelError) as refused:
            import_model_proto(_model(domain, operator, place, scale))
        for part in (operator, "the_node", f"scale{place}", f"{scale:g}"):
            assert part in str(refused.value)
    if not divides:
        import_model_proto(_model(domain, operator, place, 0.0))


def test_blocks_of_weights_may_have_any_finite_scale() -> None:
    def model(scale: float) -> onnx.ModelProto:
        scales = numpy_helper.from_array(np.array([[0.5, scale]], np.float32), "scales")
        weights = numpy_helper.from_array(np.ones((4, 2), np.int8), "weights")
        nodes = [
            helper.make_node(
                "DequantizeLinear", ["weights", "scales"], ["w"], axis=0, block_size=4
            ),
            helper.make_node("MatMul", ["x", "w"], ["y"]),
        ]
        x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (3, 4))
        output = helper.make_empty_tensor_value_info("y")
        graph = helper.make_graph(nodes, "blocks", [x], [output], [scales, weights])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    for scale in (0.0, -0.5):
        import_model_proto(model(scale))
    with pytest.raises(ImportModelError, match="'scales' has nan, which nothing can be scaled by"):
        import_model_proto(model(float("nan")))
