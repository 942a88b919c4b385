"""Averages of integers instead of those of the floats they stand for.

With x = (q - z) s, the average over n elements of which m lie inside of the data is

    (sum of q - m z) (s / n),

a sum in i32 and one product with what is known when the model is built, windows that are cut at
the border included.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.graph.quantised.operands import Operand, Signs, constant_integer, dequantised
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.registry import complete_attributes, passes_over_data
from tunefarm.compiler.operators.windows import Windows, read_windows
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute

_Counts = npt.NDArray[np.int64]
_BYTES = (DType.U8, DType.I8)
_LARGEST_COUNT = 2**31 // 512
"""Of elements, whose sum less their zero points fits i32."""


@dataclass(frozen=True, slots=True)
class Averages:
    """Rewrites averages; each method returns the result, or None to decline."""

    rewriter: Rewriter
    signs: Signs

    def reduce_mean(self, node: Node) -> str | None:
        """A mean over whole axes."""
        found = self._operand(node)
        axes = complete_attributes(node).integers("axes")
        shape = self.rewriter.types[node.inputs[0]].shape
        count = prod(shape[axis] for axis in axes)
        if found is None or not 0 < count < _LARGEST_COUNT:
            return None
        wide = self.rewriter.emit("cast", (found.name,), {"to": "i32"}, like=node)
        total = self.rewriter.emit("reduce_sum", (wide,), node.attributes, like=node)
        counts = np.array(count, np.int64)
        return self._average(total, found, counts, counts, node)

    def average_pool(self, node: Node) -> str | None:
        """An average over windows that do not overlap.

        Others read each element several times, and widening bytes each time takes longer than
        adding floats where vectors have 32 bytes (2 to 2.8 times on AVX2, 0.8 on AVX-512).
        """
        attributes, found = complete_attributes(node), self._operand(node)
        windows = read_windows(attributes, attributes.integers("kernel"))
        extents, shape = self.rewriter.types[node.inputs[0]].shape[2:], attributes.integers("shape")
        if found is None or attributes["layout"] != "NCHW":
            return None
        if passes_over_data(node) != 1 or prod(windows.kernel) >= _LARGEST_COUNT:
            return None
        given: dict[str, Attribute] = {
            name: item for name, item in node.attributes.items() if name != "count_include_pad"
        }
        given["accumulator"] = "i32"
        total = self.rewriter.emit("sum_pool", (found.name,), given, like=node)
        inside = _taps(windows, extents, shape, False)
        padded = attributes.flag("count_include_pad")
        return self._average(total, found, inside, _taps(windows, extents, shape, padded), node)

    def _operand(self, node: Node) -> Operand | None:
        """Bytes of one constant scale and zero point, with the sign that others read."""
        rewriter = self.rewriter
        found = dequantised(rewriter, node.inputs[0])
        if found is None or rewriter.types[found.name].dtype not in _BYTES:
            return None
        scale = rewriter.constants.get(found.scale)
        known = scale is not None and scale.size == 1 and scale.dtype == np.float32
        if not known or constant_integer(rewriter, found.zero) is None:
            return None
        return self.signs.where_free(found, node)

    def _average(
        self, total: str, operand: Operand, inside: _Counts, counts: _Counts, node: Node
    ) -> str:
        rewriter = self.rewriter
        zero = constant_integer(rewriter, operand.zero) or 0
        if zero:
            offset = rewriter.constant((inside * zero).astype(np.int32), f"{node.output}_offset")
            total = rewriter.emit("sub", (total, offset), like=node)
        exact = rewriter.emit("cast", (total,), {"to": "f32"}, like=node)
        scale = float(rewriter.constants[operand.scale].reshape(-1)[0])
        factor = (scale / np.maximum(counts, 1)).astype(np.float32)
        name = rewriter.constant(np.asarray(factor), f"{node.output}_factor")
        return rewriter.emit("mul", (exact, name), like=node)


def _taps(
    windows: Windows, extents: tuple[int, ...], shape: tuple[int, ...], padded: bool
) -> _Counts:
    """How many taps of each window lie inside of the data, or of that and its padding.

    A single number if that is the same for all windows.
    """
    counts = np.array(1, np.int64)
    for axis, outputs in enumerate(shape):
        begin, end = windows.begins[axis], windows.ends[axis]
        starts = np.arange(outputs) * windows.strides[axis] - begin
        places = starts[:, None] + np.arange(windows.kernel[axis]) * windows.dilations[axis]
        low, high = (-begin, extents[axis] + end) if padded else (0, extents[axis])
        found = ((places >= low) & (places < high)).sum(axis=1)
        counts = counts[..., None] * found
    first: _Counts = counts.reshape(-1)[0]
    return np.array(first) if (counts == first).all() else counts
