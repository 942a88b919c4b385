"""The multiplications and additions that a model's products and convolutions ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx

Shapes = Mapping[str, tuple[int, ...]]


def count_flops(model: onnx.ModelProto) -> int:
    """Two for each multiply-add of a contraction, whatever the algorithm; other work is free."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    shapes: dict[str, tuple[int, ...]] = {
        value.name: tuple(size.dim_value for size in value.type.tensor_type.shape.dim)
        for value in values
    }
    shapes |= {tensor.name: tuple(tensor.dims) for tensor in inferred.initializer}
    return sum(
        2 * _MULTIPLY_ADDS[node.op_type](node, shapes)
        for node in inferred.node
        if node.op_type in _MULTIPLY_ADDS
    )


def _of_convolution(node: onnx.NodeProto, shapes: Shapes) -> int:
    return math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])


def _of_transposed_convolution(node: onnx.NodeProto, shapes: Shapes) -> int:
    return math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])


def _of_product(node: onnx.NodeProto, shapes: Shapes) -> int:
    transposed = any(item.name == "transA" and item.i for item in node.attribute)
    return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-2 if transposed else -1]


def _of_einsum(node: onnx.NodeProto, shapes: Shapes) -> int:
    (equation,) = (item.s.decode() for item in node.attribute if item.name == "equation")
    extents: dict[str, int] = {}
    for letters, name in zip(equation.split("->")[0].split(","), node.input, strict=True):
        extents.update(zip(letters, shapes[name], strict=True))
    return math.prod(extents.values()) if len(node.input) > 1 else 0


def _of_recurrent(node: onnx.NodeProto, shapes: Shapes) -> int:
    steps, batch = shapes[node.input[0]][:2]
    return steps * batch * sum(math.prod(shapes[name]) for name in node.input[1:3])


_MULTIPLY_ADDS: dict[str, Callable[[onnx.NodeProto, Shapes], int]] = {
    "Conv": _of_convolution,
    "ConvTranspose": _of_transposed_convolution,
    "MatMul": _of_product,
    "Gemm": _of_product,
    "Einsum": _of_einsum,
    "LSTM": _of_recurrent,
    "GRU": _of_recurrent,
    "RNN": _of_recurrent,
}
