"""Pass: blocked convolutions do not sum over the channels that pad their data.

    conv(x: [1, 2, 56, 56, 16], w: [32, 32, 1, 1], channels 20)
    ->
    conv(x: [1, 2, 56, 56, 16], w: [32, 20, 1, 1], channels 20)

Data of 20 channels in blocks of 16 has 12 that are padding, which the filter has zeros for: without
them it has fewer products, and less to read. What a filter's numbers are does not matter, so that
models of one architecture have the same kernels. Narrow types are left as they are, whose products
are summed some at a time.
"""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.blocked import BLOCKED
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node


def run(graph: Graph) -> Graph:
    """The graph with filters that end with the data's channels."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        channels = _channels(node, graph)
        if channels is None:
            rewriter.keep(node)
            continue
        data, weight, *bias = node.inputs
        filter = np.ascontiguousarray(graph.constants[weight][:, :channels])
        trimmed = rewriter.constant(filter, f"{weight}_trimmed")
        inputs = (data, trimmed, *bias)
        rewriter.emit(node.operator, inputs, node.attributes, like=node, output=node.output)
    return rewriter.finish()


def _channels(node: Node, graph: Graph) -> int | None:
    """The input channels that a node's filter is to keep; None if that is all, or no filter."""
    if node.operator != "conv" or node.inputs[1] not in graph.constants:
        return None
    attributes, data = complete_attributes(node), graph.types[node.inputs[0]]
    channels = attributes.integer("channels")
    if not channels or attributes["layout"] != BLOCKED or attributes.integer("groups") != 1:
        return None
    if data.dtype is not DType.F32 or attributes["accumulator"]:
        return None
    return channels if channels < graph.constants[node.inputs[1]].shape[1] else None
