"""Pass: dilated 3x3 convolutions as plain ones over residue classes of the plane.

    conv(x, dilation d)  ->  interleave(conv(split(x)))

A dilated window reads every d-th row and column only. Those of each residue are an image of their
own, [N, C, H, W] -> [N d d, C, H/d, W/d], over which the convolution has no dilation: Winograd's
form exists for it, and its rows lie side by side. Splitting and interleaving are a move each.

Where channels are few, the small images leave most of Winograd's tiles empty, or padding leaves a
direct sum few taps, the convolution stays; and so it does where Winograd's form is not for the
precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.operators.windows import Windows, read_windows
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute

LEAST_CHANNELS = 32  # of data and result: below, the moves cost what the products save
LEAST_SAVING = 1.5
"""Times fewer products: Winograd's transforms and the moves take the rest. Of 22 convolutions on a
Zen 4, those with 1.6 or more took 0.5 to 0.9 of the direct one, with 1.5 or less 1.0 to 1.6."""
LEAST_TILES = 4  # of an image: its products with the filters are of so many rows
_KERNEL = (3, 3)
_TILES = (2, 4)  # of Winograd's forms F(m x m, 3 x 3), which take (m + 2)^2 products a tile


def run(graph: Graph, block: int | None, is_direct: bool) -> Graph:
    """The graph with such convolutions.

    As it is without vectors, with dynamic shapes, and where all sums are direct ones (`is_direct`).
    """
    if block is None or is_direct or not graph.is_fixed:
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        split = _split(node, graph) if node.operator == "conv" else None
        if split is None:
            rewriter.keep(node)
        else:
            split.emit(rewriter, rewriter.resolve(node))
    return rewriter.finish()


def _split(node: Node, graph: Graph) -> _Split | None:
    """How a convolution is split; None if it stays."""
    attributes = complete_attributes(node)
    data, weight, result = (graph.types[name] for name in (*node.inputs[:2], node.output))
    if len(data.shape) != 4 or weight.shape[2:] != _KERNEL or data.dtype is not DType.F32:
        return None
    windows = read_windows(attributes, weight.shape[2:])
    plain = attributes["layout"] == "NCHW" and not attributes["accumulator"]
    if not plain or attributes.integer("groups") > 1 or windows.strides != (1, 1):
        return None
    if min(weight.shape[:2]) < LEAST_CHANNELS or windows.dilations == (1, 1):
        return None
    extents, outputs, begins, ends = [], [], [], []
    for axis, dilation in enumerate(windows.dilations):
        begin, shift = divmod(windows.begins[axis], dilation)
        extent = -(-data.shape[2 + axis] // dilation)
        output = -(-result.shape[2 + axis] // dilation)
        end = output - extent - begin + _KERNEL[axis] - 1
        if shift or end < 0:
            return None
        extents.append(extent)
        outputs.append(output)
        begins.append(begin)
        ends.append(end)
    direct = math.prod(
        _taps(windows, axis, data.shape[2 + axis], result.shape[2 + axis]) for axis in range(2)
    )
    if direct < LEAST_SAVING * _products(windows, outputs):
        return None
    pads = (*begins, *ends)
    return _Split(windows, tuple(extents), tuple(outputs), pads)


def _taps(windows: Windows, axis: int, extent: int, outputs: int) -> int:
    """The taps of all windows along an axis that do not lie in the padding."""
    shifts = [tap * windows.dilations[axis] - windows.begins[axis] for tap in range(_KERNEL[axis])]
    return sum(max(0, min(outputs, extent - shift) - max(0, -shift)) for shift in shifts)


def _products(windows: Windows, outputs: Sequence[int]) -> float:
    """Those of the better of Winograd's forms on all images, for a channel of data and result."""
    tiles = {m: math.prod(-(-output // m) for output in outputs) for m in _TILES}
    products = [(m + 2) ** 2 * count for m, count in tiles.items() if count >= LEAST_TILES]
    return math.prod(windows.dilations) * min(products, default=math.inf)


@frozen
class _Split:
    """The images of the residues: their extents, the results' and the padding."""

    windows: Windows
    extents: tuple[int, ...]
    outputs: tuple[int, ...]
    pads: tuple[int, ...]

    def emit(self, rewriter: Rewriter, node: Node) -> None:
        """The nodes instead of the convolution."""

        def emit(operator: str, value: str, **attributes: Attribute) -> str:
            return rewriter.emit(operator, (value, *others[operator]), attributes, like=node)

        others = {"conv": node.inputs[1:], "pad": (), "reshape": (), "transpose": (), "slice": ()}
        data = node.inputs[0]
        batch, channels, *extents = rewriter.types[data].shape
        result = rewriter.types[node.output].shape
        (rows, columns), (high, wide) = self.windows.dilations, self.extents
        missing = [
            new * d - old
            for new, d, old in zip(self.extents, self.windows.dilations, extents, strict=True)
        ]
        if any(missing):
            data = emit("pad", data, pads=(0, 0, 0, 0, 0, 0, *missing))
        data = emit("reshape", data, shape=(batch, channels, high, rows, wide, columns))
        data = emit("transpose", data, perm=(0, 3, 5, 1, 2, 4))
        images = batch * rows * columns
        data = emit("reshape", data, shape=(images, channels, high, wide))
        data = emit("conv", data, **{**node.attributes, "dilations": (1, 1), "pads": self.pads})
        high, wide = self.outputs
        data = emit("reshape", data, shape=(batch, rows, columns, result[1], high, wide))
        data = emit("transpose", data, perm=(0, 3, 4, 1, 5, 2))
        data = emit("reshape", data, shape=(batch, result[1], high * rows, wide * columns))
        if rewriter.types[data].shape != result:
            data = emit("slice", data, starts=(0,) * 4, steps=(1,) * 4, shape=result)
        rewriter.forward(node.output, data)
