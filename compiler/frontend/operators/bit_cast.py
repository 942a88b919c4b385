"""Converter of BitCast."""

from __future__ import annotations

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode


@converter("BitCast", 26)
def bit_cast(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, to = node.input(0), dtype_of(node.integer("to"), f"{node.label}: the result")
    return data if data.dtype is to else graph.emit("bit_cast", data, to=str(to))
