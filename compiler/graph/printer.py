"""Graphs as readable text, one node per line with the type of its result.

graph resnet18
  input image: f32[1, 3, 224, 224]
  constant weight: f32[64, 3, 7, 7]
  conv_0: f32[1, 64, 112, 112] = conv(image, weight, pads=(3, 3, 3, 3), strides=(2, 2))
  output conv_0
"""

from __future__ import annotations

from compiler.graph.ir import Graph
from compiler.types.node import Node


def format_graph(graph: Graph) -> str:
    """The whole graph, ending with a newline. Values without a type print as `?`."""
    lines = [f"graph {graph.name}"]
    lines += [f"  input {name}: {_type(graph, name)}" for name in graph.inputs]
    lines += [f"  constant {name}: {_type(graph, name)}" for name in graph.constants]
    lines += [
        f"  {node.output}: {_type(graph, node.output)} = {_call(node)}" for node in graph.nodes
    ]
    lines += [f"  output {name}" for name in graph.outputs]
    return "\n".join(lines) + "\n"


def format_node(node: Node) -> str:
    """One node: `relu_0 = relu(conv_0)`, and the ONNX node it came from where it is known."""
    source = f"  (from {node.source})" if node.source else ""
    return f"{node.output} = {_call(node)}{source}"


def _call(node: Node) -> str:
    arguments = [name or "-" for name in node.inputs]
    arguments += [f"{key}={value!r}" for key, value in sorted(node.attributes.items())]
    return f"{node.operator}({', '.join(arguments)})"


def _type(graph: Graph, name: str) -> str:
    return str(graph.types.get(name, "?"))
