"""Models in 8 bits on data of dynamic shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compiler.frontend.sized_cases import Case, case, on_image, on_shapes
from tunefarm.compiler.types.tensor_type import Array

_RNG = np.random.default_rng(1)


def _weights(*shape: int) -> Array:
    return _RNG.integers(-127, 127, shape).astype(np.int8)


def _number(value: float) -> Array:
    return np.array(value, np.float32)


_FORMS: dict[str, Any] = {"zero": np.array(120, np.uint8), "zero2": np.array(100, np.uint8)}


def _on_image(nodes: str, **constants: Any) -> Case:
    return on_image(nodes, **_FORMS, w=_weights(3, 4, 3, 3), **constants)


def _on_rows(nodes: str, **constants: Any) -> Case:
    return case("x[b,6,w]", nodes, "b 1..2: 1 2 1, w 4..16: 4 9 16", **constants)


QUANTISED_CASES: dict[str, Case] = {
    "dynamic product": on_shapes(
        "q s z = DynamicQuantizeLinear x; i = MatMulInteger q w z wz; c = Cast i to=1; Mul c s",
        w=_weights(6, 5),
        wz=np.array(0, np.int8),
    ),
    "dynamic sums over rows": on_shapes(
        "q s z = DynamicQuantizeLinear x; qt = Transpose q perm=[0,2,1]; "
        "i = MatMulInteger qt q z z; Cast i to=1"
    ),
    "attention between scales": on_shapes(
        "q = QuantizeLinear x 0.02 zero; d = DequantizeLinear q 0.02 zero; "
        "t = Transpose d perm=[0,2,1]; m = MatMul d t; p = Softmax m axis=-1; "
        "q2 = QuantizeLinear p share none; e = DequantizeLinear q2 share none; MatMul e d",
        share=_number(1 / 255),
        none=np.array(0, np.uint8),
        zero=_FORMS["zero"],
    ),
    "dynamic convolution": _on_image(
        "q s z = DynamicQuantizeLinear x; i = ConvInteger q w z pads=[1,1,1,1]; c = Cast i to=1; "
        "Mul c s"
    ),
    "dynamic convolution of wide weights": _on_image(
        "q s z = DynamicQuantizeLinear x; i = ConvInteger q many z many_zero pads=[1,1,1,1]; "
        "c = Cast i to=1; Mul c s",
        many=_RNG.integers(0, 256, (16, 4, 3, 3)).astype(np.uint8),
        many_zero=np.array(121, np.uint8),
    ),
    "dynamic convolutions along a row": _on_rows(
        "q s z = DynamicQuantizeLinear x; i = ConvInteger q row z pads=[2,1]; c = Cast i to=1; "
        "f = Mul c s; q2 s2 z2 = DynamicQuantizeLinear f; i2 = ConvInteger q2 row2 z2 strides=[2]; "
        "c2 = Cast i2 to=1; Mul c2 s2",
        row=_weights(16, 6, 3),
        row2=_weights(8, 16, 2),
    ),
    "convolution between scales": _on_image(
        "q = QuantizeLinear x 0.02 zero; d = DequantizeLinear q 0.02 zero; "
        "wd = DequantizeLinear w 0.01; c = Conv d wd pads=[1,1,1,1] strides=[2,2]; r = Relu c; "
        "q2 = QuantizeLinear r 0.05 zero2; d2 = DequantizeLinear q2 0.05 zero2; "
        "p = MaxPool d2 kernel_shape=[2,2]; GlobalAveragePool p"
    ),
}
