"""Pass: averages of windows that the border cuts, as sums times the reciprocals of their counts.

How many elements count differs from window to window; as a product of one number per row and one
per column it is known beforehand, where dividing would count again for every element.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.operators.windows import read_windows
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node


def run(graph: Graph) -> Graph:
    """The graph without averages in f32 of windows that have different counts."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        plain = node.operator == "average_pool" and node.attributes.get("layout", "NCHW") == "NCHW"
        if plain and graph.types[node.output].dtype is DType.F32:
            _rewrite(rewriter, rewriter.resolve(node))
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _rewrite(rewriter: Rewriter, node: Node) -> None:
    counts = _counts(rewriter, node)
    varying = [axis for axis, count in enumerate(counts) if count.min() < count.max()]
    if not varying:
        rewriter.keep(node)
        return
    attributes = {k: v for k, v in node.attributes.items() if k != "count_include_pad"}
    value = rewriter.emit("sum_pool", node.inputs, attributes, like=node)
    same = float(np.prod([count[0] for axis, count in enumerate(counts) if axis not in varying]))
    for axis in varying:
        factors = (1.0 / (counts[axis] * same)).astype(np.float32)
        same = 1.0
        shape = (-1, *(1 for _ in counts[axis + 1 :]))
        factor = rewriter.constant(factors.reshape(shape), f"{node.output}_reciprocals")
        value = rewriter.emit("mul", (value, factor), like=node)
    rewriter.forward(node.output, value)


def _counts(rewriter: Rewriter, node: Node) -> list[npt.NDArray[np.int64]]:
    """By axis, how many taps of each window count; 1 where none does, of a sum of 0."""
    attributes = complete_attributes(node)
    windows = read_windows(attributes, attributes.integers("kernel"))
    padded = attributes.flag("count_include_pad")
    counts: list[npt.NDArray[np.int64]] = []
    for axis, outputs in enumerate(attributes.integers("shape")):
        extent = rewriter.types[node.inputs[0]].shape[2 + axis]
        starts = np.arange(outputs) * windows.strides[axis] - windows.begins[axis]
        taps = starts[:, None] + np.arange(windows.kernel[axis]) * windows.dilations[axis]
        low = -windows.begins[axis] if padded else 0
        high = extent + windows.ends[axis] if padded else extent
        counts.append(np.maximum(((taps >= low) & (taps < high)).sum(axis=1), 1))
    return counts
