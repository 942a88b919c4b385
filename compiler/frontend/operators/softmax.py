"""Softmax and its relatives."""

from __future__ import annotations

import math

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode


def _hardmax(value: Value, axis: int, graph: GraphBuilder) -> Value:
    """One at the first maximum along the axis, zero elsewhere."""
    if len(value.dims[axis]) > 1:
        value = graph.padded.dense(value)
    first = graph.emit("arg_max", value, axis=axis, keepdims=False, select_last_index=False)
    values = graph.constant(np.array([0, 1], value.dtype.numpy))
    hot = graph.emit("one_hot", first, values, depth=value.shape[axis], axis=axis)
    return graph.with_dims(hot, value.padded)


def _normalised(operator: str, value: Value, axis: int, graph: GraphBuilder) -> Value:
    if operator == "hardmax":
        return _hardmax(value, axis, graph)
    return graph.emit(operator, value, axis=axis)


def over_matrix(operator: str, value: Value, axis: int, graph: GraphBuilder) -> Value:
    """A normalisation in which all axes from `axis` on are one, as until opset 12."""
    if axis == value.rank - 1:
        return _normalised(operator, value, axis, graph)
    shape = (math.prod(value.shape[:axis]), math.prod(value.shape[axis:]))
    matrix = graph.reshape(value, shape)
    return graph.reshape(_normalised(operator, matrix, 1, graph), value.shape)


def _register(onnx_operator: str, operator: str) -> None:
    @converter(onnx_operator, 13)
    def along_axis(node: OnnxNode, graph: GraphBuilder) -> Value:
        value = node.input(0)
        axis = node.axis(node.integer("axis", -1), value.rank)
        return _normalised(operator, value, axis, graph)

    @converter(onnx_operator, 1, 11)
    def along_axes(node: OnnxNode, graph: GraphBuilder) -> Value:
        value = node.input(0)
        axis = node.axis(node.integer("axis", 1), value.rank, end=True)
        return over_matrix(operator, value, axis, graph)


_register("Softmax", "softmax")
_register("LogSoftmax", "log_softmax")
_register("Hardmax", "hardmax")
