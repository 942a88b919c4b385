"""Operators of the first opset that later ones do not have: files of early converters have them."""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.types.tensor_type import Array


def _number(value: float, like: Value, graph: GraphBuilder) -> Value:
    return graph.scalar(value, like.dtype)


@converter("ImageScaler", 1)
def image_scaler(node: OnnxNode, graph: GraphBuilder) -> Value:
    """x * scale + bias, a bias for each channel."""
    data, bias = node.input(0), node.floats("bias", ())
    scaled = graph.emit("mul", data, _number(node.floating("scale", 1.0), data, graph))
    if not bias:
        return scaled
    if data.rank < 2 or len(bias) != data.shape[1]:
        raise node.bad_shape(f"{len(bias)} biases for the channels of {data.type}")
    column: Array = np.array(bias, data.dtype.numpy).reshape(-1, *(1,) * (data.rank - 2))
    return graph.emit("add", scaled, graph.constant(column))


@converter("Crop", 1)
def crop(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Images without a border (left, top, right, bottom), or the size `scale` from its corner."""
    data, border = node.input(0), node.integers("border", (0, 0, 0, 0))
    if data.rank != 4 or len(border) != 4 or min(border) < 0:
        raise node.bad_shape(f"the border {list(border)} does not fit {data.type}")
    left, top, right, bottom = border
    size = node.integers("scale", ())
    if size and len(size) != 2:
        raise node.invalid(f"the scale {list(size)} is no height and width")
    pads = (-top, -left, -bottom, -right)
    if size:
        pads = (-top, -left, top + size[0] - data.shape[2], left + size[1] - data.shape[3])
    if max(pads) > 0:
        raise node.bad_shape(f"{list(size)} behind the border {list(border)} exceeds {data.type}")
    around = (0, 0, *pads[:2], 0, 0, *pads[2:])
    return graph.emit("pad", data, pads=around, mode="constant")


@converter("Affine", 1)
def affine(node: OnnxNode, graph: GraphBuilder) -> Value:
    """alpha * x + beta."""
    data = node.input(0)
    scaled = graph.emit("mul", data, _number(node.floating("alpha", 1.0), data, graph))
    return graph.emit("add", scaled, _number(node.floating("beta", 0.0), data, graph))


@converter("Scale", 1)
def scale(node: OnnxNode, graph: GraphBuilder) -> Value:
    """x * scale."""
    data = node.input(0)
    return graph.emit("mul", data, _number(node.floating("scale", 1.0), data, graph))


@converter("ScaledTanh", 1)
def scaled_tanh(node: OnnxNode, graph: GraphBuilder) -> Value:
    """alpha * tanh(beta * x)."""
    return _scaled(node, "tanh", graph)


@converter("ParametricSoftplus", 1)
def parametric_softplus(node: OnnxNode, graph: GraphBuilder) -> Value:
    """alpha * log(1 + exp(beta * x))."""
    return _scaled(node, "softplus", graph)


def _scaled(node: OnnxNode, operator: str, graph: GraphBuilder) -> Value:
    """alpha * operator(beta * x)."""
    data = node.input(0)
    inner = graph.emit("mul", data, _number(node.floating("beta", 1.0), data, graph))
    alpha = _number(node.floating("alpha", 1.0), data, graph)
    return graph.emit("mul", alpha, graph.emit(operator, inner))
