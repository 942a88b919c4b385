"""Models in 8 bits on data of dynamic shapes."""

from __future__ import annotations

import numpy as np
import onnx

from tests.compiler.frontend.onnx_models import node
from tests.compiler.frontend.sized_cases import Case, on_shapes
from tunefarm.compiler.types.tensor_type import Array

_RNG = np.random.default_rng(1)


def _weights(*shape: int) -> Array:
    return _RNG.integers(-127, 127, shape).astype(np.int8)


def _number(value: float) -> Array:
    return np.array(value, np.float32)


_FORMS = {"zero": np.array(120, np.uint8), "zero2": np.array(100, np.uint8)}


def _on_image(nodes: list[onnx.NodeProto], **others: Array) -> Case:
    sizes = [{"b": 1, "h": 5, "w": 9}, {"b": 2, "h": 8, "w": 6}, {"b": 1, "h": 11, "w": 11}]
    bounds = {"b": "1..2", "h": "5..11", "w": "5..12"}
    constants = {**_FORMS, "w": _weights(3, 4, 3, 3), **others}
    return Case(nodes, {"x": ("b", 4, "h", "w")}, bounds, sizes, constants)


def _on_rows(nodes: list[onnx.NodeProto], **constants: Array) -> Case:
    sizes = [{"b": 1, "w": 4}, {"b": 2, "w": 9}, {"b": 1, "w": 16}]
    return Case(nodes, {"x": ("b", 6, "w")}, {"b": "1..2", "w": "4..16"}, sizes, constants)


QUANTISED_CASES: dict[str, Case] = {
    "dynamic product": on_shapes(
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("MatMulInteger", "q w z wz", "i"),
        node("Cast", "i", "c", to=1),
        node("Mul", "c s", "y"),
        w=_weights(6, 5),
        wz=np.array(0, np.int8),
    ),
    "dynamic sums over rows": on_shapes(
        node("DynamicQuantizeLinear", "x", "q s z"),
        node("Transpose", "q", "qt", perm=[0, 2, 1]),
        node("MatMulInteger", "qt q z z", "i"),
        node("Cast", "i", "y", to=1),
    ),
    "attention between scales": on_shapes(
        node("QuantizeLinear", "x 0.02 zero", "q"),
        node("DequantizeLinear", "q 0.02 zero", "d"),
        node("Transpose", "d", "t", perm=[0, 2, 1]),
        node("MatMul", "d t", "m"),
        node("Softmax", "m", "p", axis=-1),
        node("QuantizeLinear", "p share none", "q2"),
        node("DequantizeLinear", "q2 share none", "e"),
        node("MatMul", "e d", "y"),
        share=_number(1 / 255),
        none=np.array(0, np.uint8),
        zero=_FORMS["zero"],
    ),
    "dynamic convolution": _on_image(
        [
            node("DynamicQuantizeLinear", "x", "q s z"),
            node("ConvInteger", "q w z", "i", pads=[1, 1, 1, 1]),
            node("Cast", "i", "c", to=1),
            node("Mul", "c s", "y"),
        ]
    ),
    "dynamic convolution of wide weights": _on_image(
        [
            node("DynamicQuantizeLinear", "x", "q s z"),
            node("ConvInteger", "q many z many_zero", "i", pads=[1, 1, 1, 1]),
            node("Cast", "i", "c", to=1),
            node("Mul", "c s", "y"),
        ],
        many=_RNG.integers(0, 256, (16, 4, 3, 3)).astype(np.uint8),
        many_zero=np.array(121, np.uint8),
    ),
    "dynamic convolutions along a row": _on_rows(
        [
            node("DynamicQuantizeLinear", "x", "q s z"),
            node("ConvInteger", "q row z", "i", pads=[2, 1]),
            node("Cast", "i", "c", to=1),
            node("Mul", "c s", "f"),
            node("DynamicQuantizeLinear", "f", "q2 s2 z2"),
            node("ConvInteger", "q2 row2 z2", "i2", strides=[2]),
            node("Cast", "i2", "c2", to=1),
            node("Mul", "c2 s2", "y"),
        ],
        row=_weights(16, 6, 3),
        row2=_weights(8, 16, 2),
    ),
    "convolution between scales": _on_image(
        [
            node("QuantizeLinear", "x 0.02 zero", "q"),
            node("DequantizeLinear", "q 0.02 zero", "d"),
            node("DequantizeLinear", "w 0.01", "wd"),
            node("Conv", "d wd", "c", pads=[1, 1, 1, 1], strides=[2, 2]),
            node("Relu", "c", "r"),
            node("QuantizeLinear", "r 0.05 zero2", "q2"),
            node("DequantizeLinear", "q2 0.05 zero2", "d2"),
            node("MaxPool", "d2", "p", kernel_shape=[2, 2]),
            node("GlobalAveragePool", "p", "y"),
        ]
    ),
}
