"""Converter of TensorScatter."""

from __future__ import annotations

from compiler.frontend.converter import converter
from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.frontend.onnx_node import OnnxNode


@converter("TensorScatter", 24)
def tensor_scatter(node: OnnxNode, graph: GraphBuilder) -> Value:
    cache, update = node.input(0), node.input(1)
    axis = node.axis(node.integer("axis", -2), cache.rank)
    circular = node.choice("mode", "linear", ("linear", "circular")) == "circular"
    return graph.emit("cache_update", cache, update, node.optional(2), axis=axis, circular=circular)
