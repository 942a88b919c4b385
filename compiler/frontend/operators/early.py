"""Operators of opsets 1 to 9 that later ones do not have: files of early converters have them.

No schema describes them any more. They take and refuse what onnxruntime does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.types.sizes import bounds_of
from tunefarm.compiler.types.tensor_type import Array

_LAST_OPSET = 9

_Early: TypeAlias = Callable[[OnnxNode, GraphBuilder], Value]


def _early(operator: str) -> Callable[[_Early], _Early]:
    """Register the converter of an operator of floats that no opset behind the last one has."""

    def register(function: _Early) -> _Early:
        @converter(operator, 1)
        def convert(node: OnnxNode, graph: GraphBuilder) -> Value:
            if node.opset > _LAST_OPSET:
                raise node.unsupported(f"an operator of opsets 1 to {_LAST_OPSET} in {node.opset}")
            if not node.input(0).dtype.is_float:
                raise node.invalid(f"takes floats, not {node.input(0).dtype}")
            return function(node, graph)

        return function

    return register


def _number(value: float, like: Value, graph: GraphBuilder) -> Value:
    return graph.scalar(value, like.dtype)


@_early("ImageScaler")
def image_scaler(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Images times `scale`, plus a bias for each channel."""
    data, bias = _images(node), node.floats("bias")
    if len(bias) != data.shape[1]:
        raise node.bad_shape(f"{len(bias)} biases for the channels of {data.type}")
    scaled = graph.emit("mul", data, _number(node.floating("scale", 1.0), data, graph))
    column: Array = np.array(bias, data.dtype.numpy).reshape(-1, 1, 1)
    return graph.emit("add", scaled, graph.constant(column))


@_early("Crop")
def crop(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Images without a border (left, top, right, bottom), or the size `scale` from its corner."""
    data, border, size = _images(node), node.integers("border"), node.integers("scale", ())
    if len(border) != 4 or min(border) < 0:
        raise node.invalid(f"the border {list(border)} has not four widths")
    if size and (len(size) != 2 or min(size) < 0):
        raise node.invalid(f"the scale {list(size)} is no height and width")
    left, top, right, bottom = border
    if not size:
        if top + bottom > data.shape[2] or left + right > data.shape[3]:
            raise node.bad_shape(f"the border {list(border)} does not fit into {data.type}")
        around = (0, 0, -top, -left, 0, 0, -bottom, -right)
        return graph.emit("pad", data, pads=around, mode="constant")
    for axis, first, count in ((2, top, size[0]), (3, left, size[1])):
        if first + count > bounds_of(data.true_shape[axis])[0]:
            reason = f"{list(size)} behind the border {list(border)} may not fit into {data.type}"
            raise graph.refusal(reason, [data])
    shape = (*data.shape[:2], *size)
    return graph.emit("slice", data, starts=(0, 0, top, left), steps=(1,) * 4, shape=shape)


def _images(node: OnnxNode) -> Value:
    data = node.input(0)
    if data.rank != 4:
        raise node.bad_shape(f"{data.type} is no batch of images, [N, C, H, W]")
    return data


@_early("Affine")
def affine(node: OnnxNode, graph: GraphBuilder) -> Value:
    """alpha * x + beta."""
    data = node.input(0)
    scaled = graph.emit("mul", data, _number(node.floating("alpha", 1.0), data, graph))
    return graph.emit("add", scaled, _number(node.floating("beta", 0.0), data, graph))


@_early("Scale")
def scale(node: OnnxNode, graph: GraphBuilder) -> Value:
    """x * scale."""
    data = node.input(0)
    return graph.emit("mul", data, _number(node.floating("scale", 1.0), data, graph))


@_early("ScaledTanh")
def scaled_tanh(node: OnnxNode, graph: GraphBuilder) -> Value:
    """alpha * tanh(beta * x)."""
    return _scaled(node, "tanh", graph)


@_early("ParametricSoftplus")
def parametric_softplus(node: OnnxNode, graph: GraphBuilder) -> Value:
    """alpha * log(1 + exp(beta * x))."""
    return _scaled(node, "softplus", graph)


def _scaled(node: OnnxNode, operator: str, graph: GraphBuilder) -> Value:
    """alpha * operator(beta * x)."""
    data = node.input(0)
    inner = graph.emit("mul", data, _number(node.floating("beta"), data, graph))
    alpha = _number(node.floating("alpha"), data, graph)
    return graph.emit("mul", alpha, graph.emit(operator, inner))
