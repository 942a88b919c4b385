"""Graphs as readable text, one node per line with the type of its result.

graph resnet18
  input image: f32[1, 3, 224, 224]
  constant weight: f32[64, 3, 7, 7]
  conv_0: f32[1, 64, 112, 112] = conv(image, weight, pads=(3, 3, 3, 3), strides=(2, 2))
  output conv_0

Where sizes are dynamic, ports print as their callers see them, and what the values are padded to
stands next to it: `input ids: i64[batch:1..4, 8] in i64[4, 8]`.
"""

from __future__ import annotations

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.signature import SIZES, ResultSource, SizedPort


def format_graph(graph: Graph) -> str:
    """The whole graph, ending with a newline. Values without a type print as `?`."""
    lines = [f"graph {graph.name}"]
    lines += [f"  input {name}: {_input(graph, name)}" for name in graph.inputs]
    lines += [f"  constant {name}: {_type(graph, name)}" for name in graph.constants]
    lines += [
        f"  {node.output}: {_type(graph, node.output)} = {_call(node)}" for node in graph.nodes
    ]
    lines += [f"  output {name}{_output(graph, name)}" for name in graph.outputs]
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


def _input(graph: Graph, name: str) -> str:
    type = _type(graph, name)
    if graph.is_fixed:
        return type
    signature = graph.signature
    if name == SIZES:
        return f"{type} = [{', '.join(map(str, signature.sizes))}]"
    return _sized(signature.inputs, name, type)


def _output(graph: Graph, name: str) -> str:
    if graph.is_fixed:
        return ""
    if any(port.name == name for port in graph.signature.outputs):
        return f": {_sized(graph.signature.outputs, name, _type(graph, name))}"
    symbols = [
        f"{source.symbol} at {source.position}"
        for source in graph.signature.sources
        if isinstance(source, ResultSource) and source.output == name
    ]
    return f": {', '.join(symbols)}" if symbols else ""


def _sized(ports: tuple[SizedPort, ...], name: str, type: str) -> str:
    """The port's true type, and what it is padded to where that is another."""
    true = next((str(port) for port in ports if port.name == name), type)
    return true if true == type else f"{true} in {type}"
