"""Pass: fold pads into the inputs they read: a cache has one layout before and after a step.

    input past: f32[2, past:0..15, 8] in f32[2, 15, 8]
    padded: f32[2, 16, 8] = pad(past, pads=(0, 0, 0, 0, 1, 0))
    present: f32[2, 16, 8] = where(is_past, padded, new)

becomes

    input past: f32[2, past:0..15, 8] in f32[2, 16, 8]
    present: f32[2, 16, 8] = where(is_past, past, new)

Elements behind the true size are undefined with and without the pad. So the output `present` of one
call can be the argument `past` of the next one without a copy: see
`tunefarm.compiler.runtime.execution.frame`.
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import Axis
from tunefarm.compiler.types.signature import SizedPort
from tunefarm.compiler.types.sizes import Size
from tunefarm.compiler.types.tensor_type import TensorType


def widen_places(graph: Graph) -> Graph:
    """The graph with `pad` nodes taken into inputs that nothing but them reads."""
    signature = graph.signature
    taken: dict[str, str] = {}  # results of pads that go, by the inputs that take their place
    ports: dict[str, SizedPort] = {}
    for port in signature.inputs:
        readers = [node for node in graph.nodes if port.name in node.inputs]
        results = {graph.types[node.output] for node in readers}
        if len(results) != 1 or port.name in graph.outputs:
            continue
        wide = _widened(port, results.pop())
        if wide is None or not all(_appends(node, port) for node in readers):
            continue
        ports[port.name] = wide
        taken |= {node.output: port.name for node in readers}
    if not taken or not taken.keys().isdisjoint(graph.outputs):
        return graph
    nodes = (
        replace(node, inputs=tuple(taken.get(name, name) for name in node.inputs))
        for node in graph.nodes
        if node.output not in taken
    )
    types = {name: type for name, type in graph.types.items() if name not in taken}
    types |= {name: port.type for name, port in ports.items()}
    inputs = tuple(ports.get(port.name, port) for port in signature.inputs)
    return replace(
        graph,
        nodes=tuple(nodes),
        types=types,
        dynamic=replace(signature, inputs=inputs),
        unread={n: dims for n, dims in graph.unread.items() if n in types and n not in ports},
        zeros={n: dims for n, dims in graph.zeros.items() if n in types and n not in ports},
    )


def _widened(port: SizedPort, type: TensorType) -> SizedPort | None:
    """The port in a place of this type; None unless it only has more padding."""
    if len(type.shape) != len(port.shape) or type == port.type:
        return None
    padded: list[Axis] = []
    for factors, extent in zip(port.padded, type.shape, strict=True):
        ((true, before), *inner) = factors
        if extent == port.type.shape[len(padded)]:
            padded.append(factors)
        elif inner or not isinstance(true, Size) or extent < before:
            return None
        else:
            padded.append(((true, extent),))
    return replace(port, padded=tuple(padded))


def _appends(node: Node, port: SizedPort) -> bool:
    """Whether a node does nothing but append padding to the port."""
    if node.operator != "pad" or node.inputs[0] != port.name or port.name in node.inputs[1:]:
        return False
    pads = node.attributes["pads"]
    rank = len(port.shape)
    return isinstance(pads, tuple) and not any(pads[:rank])
