"""Pass: convolutions of few channels as such of one channel, whose rows hold all of them.

    conv(x[N, C, H, W], w[O, C, h, w], strides [s, t])
    ->
    conv(interleave(x)[N, 1, H, W C], w'[O, 1, h, w C], strides [s, t C])

A row of a matrix tile holds terms of a sum that lie next to each other: of images in planes those
are the columns of a window, too few to fill one. With the channels interleaved they are a whole row
of the window, and the rows of a tile may overlap, so that nothing is gathered. Windows are widened
by columns of zeros until their rows are whole dot products.
"""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.loops.verify_tiles import TERM_BYTES
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.operators.windows import Windows, read_windows
from tunefarm.compiler.schedule.sketches.matrix_tiles import FULL_ENOUGH
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.numerics import Numerics
from tunefarm.compiler.types.tensor_type import Attribute

FEW_CHANNELS = 4  # more are better read in blocks of as many as a vector holds


def run(graph: Graph, row_bytes: int, numerics: Numerics) -> Graph:
    """The graph with such convolutions, for matrix tiles of rows of so many bytes.

    As it is without tiles (0 bytes), and with dynamic shapes. `numerics` say which convolutions in
    f32 take factors of a narrow type.
    """
    if not row_bytes or not graph.is_fixed:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        node = rewriter.resolve(node)
        found = _interleaving(node, rewriter, numerics, row_bytes)
        if found is None:
            rewriter.keep(node)
        else:
            found.emit(rewriter, node)
    return rewriter.finish()


def _interleaving(
    node: Node, rewriter: Rewriter, numerics: Numerics, row_bytes: int
) -> _Interleaving | None:
    """How a convolution is rewritten; None if it stays."""
    if node.operator != "conv" or node.inputs[1] not in rewriter.constants:
        return None
    attributes = complete_attributes(node)
    data, weight = (rewriter.types[name] for name in node.inputs[:2])
    if attributes["layout"] != "NCHW" or len(data.shape) != 4 or attributes["groups"] != 1:
        return None
    factor = data.dtype
    if factor is DType.F32:
        narrow = numerics.narrow
        if narrow is not DType.BF16 or numerics.storage_of(node.source) is not narrow:
            return None
        factor = narrow
    elif not attributes["accumulator"] or weight.dtype.bytes != factor.bytes:
        return None
    windows, channels = read_windows(attributes, weight.shape[2:]), data.shape[1]
    if channels > FEW_CHANNELS:
        return None
    terms, wide = TERM_BYTES // factor.bytes, weight.shape[3]
    while wide * channels % terms:
        wide += 1
    filled = wide * channels * factor.bytes
    if windows.dilations[1] > 1 or filled < FULL_ENOUGH * row_bytes:
        return None
    value = attributes.integer("pad_value")
    return _Interleaving(windows, wide, value)


@frozen
class _Interleaving:
    """The windows, and their columns once they are widened."""

    windows: Windows
    wide: int
    pad_value: int

    def emit(self, rewriter: Rewriter, node: Node) -> None:
        """The nodes instead of the convolution."""

        def emit(operator: str, name: str, **attributes: Attribute) -> str:
            return rewriter.emit(operator, (name,), attributes, like=node)

        windows, (data, weight, *others) = self.windows, node.inputs
        columns = rewriter.types[node.output].shape[3]
        batch, channels, high, width = rewriter.types[data].shape
        begin = windows.begins[1]
        end = max(0, (columns - 1) * windows.strides[1] + self.wide - width - begin)
        tops, bottoms = windows.begins[0], windows.ends[0]
        if begin or end or tops or bottoms:
            pads = (0, 0, tops, begin, 0, 0, bottoms, end)
            data = emit("pad", data, pads=pads, value=float(self.pad_value))
        high, width = high + tops + bottoms, width + begin + end
        data = emit("transpose", data, perm=(0, 2, 3, 1))
        data = emit("reshape", data, shape=(batch, 1, high, width * channels))
        array = rewriter.constants[weight]
        outputs, _, rows, taps = array.shape
        array = np.pad(array, ((0, 0), (0, 0), (0, 0), (0, self.wide - taps)))
        array = np.ascontiguousarray(array.transpose(0, 2, 3, 1))
        array = array.reshape(outputs, 1, rows, self.wide * channels)
        own: dict[str, Attribute] = {
            **node.attributes,
            "strides": (windows.strides[0], windows.strides[1] * channels),
            "pads": (0, 0, 0, 0),
        }
        names = (data, rewriter.constant(array, f"{weight}.interleaved"), *others)
        rewriter.forward(node.output, rewriter.emit("conv", names, own, like=node))
