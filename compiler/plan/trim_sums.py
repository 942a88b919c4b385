"""Pass: blocked convolutions do not sum over the channels that pad their data.

    conv(x: [1, 2, 56, 56, 16], w: [32, 32, 1, 1])     the last 12 channels of w are zeros
    ->
    conv(x: [1, 2, 56, 56, 16], w: [32, 20, 1, 1])

Data of 20 channels in blocks of 16 has 12 that are padding, which the filter has zeros for: without
them it has fewer products, and less to read. Narrow types are left as they are, whose products are
summed some at a time.
"""

from __future__ import annotations

import numpy as np

from compiler.graph.ir import Graph
from compiler.graph.rewriter import Rewriter
from compiler.operators.blocked import BLOCKED
from compiler.operators.registry import complete_attributes
from compiler.types.dtypes import DType
from compiler.types.node import Node


def run(graph: Graph) -> Graph:
    """The graph with filters that end where their last block of input channels is zero."""
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
    weight = graph.constants[node.inputs[1]]
    if attributes["layout"] != BLOCKED or attributes.integer("groups") != 1:
        return None
    if data.dtype is not DType.F32 or attributes["accumulator"]:
        return None
    held, block = weight.shape[1], data.shape[-1]
    whole = (data.shape[1] - 1) * block  # what all blocks but the last have
    used = np.flatnonzero(weight[:, whole:].any(axis=(0, 2, 3)))
    least = whole + (int(used[-1]) + 1 if used.size else 1)
    return least if least < held else None
