"""The second half of fold_quantised: no division between integers and their quantisation.

    quantize(relu(sum * m + dequantize(r, s)), t)
        -> saturate(relu(sum * (m / t) + dequantize(r, s / t)))
    quantize(dequantize(q, p) + dequantize(r, s), t)
        -> saturate(dequantize(q, p / t) + dequantize(r, s / t))

A relu or clip whose bounds are those of the quantised type goes away.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.quantised.operands import (
    NARROW,
    Operand,
    Signs,
    constant_integer,
    dequantised,
)
from tunefarm.compiler.graph.rewriter import Rewriter, use_counts
from tunefarm.compiler.operators.evaluate_node import evaluate_node
from tunefarm.compiler.operators.gather import BYTES, ENTRIES
from tunefarm.compiler.operators.registry import (
    Pattern,
    complete_attributes,
    operator,
    passes_over_data,
)
from tunefarm.compiler.operators.windows import Windows, read_windows
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, Attribute

# --- Averages of integers instead of those of the floats they stand for --------------------------
#
# With x = (q - z) s, the average over n elements of which m lie inside of the data is
#
#     (sum of q - m z) (s / n),
#
# a sum in i32 and one product with what is known when the model is built, windows that are cut at
# the border included.


_Counts = npt.NDArray[np.int64]
_BYTES = (DType.U8, DType.I8)
_LARGEST_COUNT = 2**31 // 512
"""Of elements, whose sum less their zero points fits i32."""


@frozen
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


# --- Functions of one 8-bit value, from its dequantisation to their quantisation, as tables ------
#
#     quantize(sigmoid(dequantize(q)))   ->   lookup(q, table)
#
# The table has the result for each of the 256 values, computed by the nodes that it replaces.
# Between may be any pointwise nodes, more quantisations among them: x * sigmoid(x) with a rounded
# sigmoid is one table as well. What is cheap to compute is left to floats: not every target looks
# up as fast.


_MAXIMUM_NODES = 32


class Tables:
    """Makes tables of what stands before quantisations."""

    def __init__(self, rewriter: Rewriter, signs: Signs) -> None:
        self.rewriter = rewriter
        self.signs = signs
        self._positions: dict[str, int] = {}

    def tabulated(self, node: Node) -> str | None:
        """The result of a `quantize` as looked up; None where it depends on more than 8 bits
        or is cheap."""
        if self.rewriter.types[node.output].dtype not in BYTES or not self._is_pointwise(node):
            return None
        found = self._cone(node)
        if found is None:
            return None
        source, cone = found
        found_tables = any(operator(member.operator).looked_up is not None for member in cone)
        if not found_tables and all(operator(member.operator).cheap for member in cone):
            return None
        dtype = self.rewriter.types[source].dtype
        values: dict[str, Array] = {source: np.arange(ENTRIES, dtype=np.uint8).view(dtype.numpy)}
        with np.errstate(all="ignore"):
            for member in (*reversed(cone), node):
                values[member.output] = evaluate_node(member, self._operands(member, values))
        table = values[node.output]
        read = self.signs.where_free(Operand(source), node).name
        if self.rewriter.types[read].dtype is not dtype:
            table = table[np.arange(ENTRIES) ^ (ENTRIES // 2)]
        name = self.rewriter.constant(table, f"{node.output}_table")
        return self.rewriter.emit("lookup", (read, name), like=node)

    def _cone(self, node: Node) -> tuple[str, list[Node]] | None:
        """The nearest 8-bit value that all of the result depends on, and the nodes between, the
        last one first."""
        rewriter, positions = self.rewriter, self._places()
        open_values = self._read(node)
        cone: list[Node] = []
        while open_values:
            last = max(open_values, key=lambda name: positions.get(name, -1))
            if rewriter.types[last].shape != rewriter.types[node.inputs[0]].shape:
                return None
            if len(open_values) == 1 and rewriter.types[last].dtype in BYTES:
                return last, cone
            before = rewriter.producers.get(last)
            if before is None or len(cone) == _MAXIMUM_NODES or not self._is_pointwise(before):
                return None
            cone.append(before)
            open_values = (open_values - {last}) | self._read(before)
        return None

    def _places(self) -> Mapping[str, int]:
        """Where in the new graph each value is computed."""
        nodes = self.rewriter.nodes
        for number in range(len(self._positions), len(nodes)):
            self._positions[nodes[number].output] = number
        return self._positions

    def _read(self, node: Node) -> set[str]:
        """The operands that are not constant."""
        return {name for name in node.inputs if name and name not in self.rewriter.constants}

    def _is_pointwise(self, node: Node) -> bool:
        """Does each element depend on those at its place alone, and on single constants?"""
        definition = operator(node.operator)
        if definition.pattern is not Pattern.ELEMENTWISE or complete_attributes(node).get("block"):
            return False
        return all(
            position == definition.looked_up or self.rewriter.types[name].size == 1
            for position, name in enumerate(node.inputs)
            if name in self.rewriter.constants
        )

    def _operands(self, node: Node, values: Mapping[str, Array]) -> tuple[Array | None, ...]:
        looked_up = operator(node.operator).looked_up

        def operand(position: int, name: str) -> Array | None:
            constant = self.rewriter.constants.get(name)
            if constant is None:
                return values[name] if name else None
            return constant if position == looked_up else constant.reshape(())

        return tuple(operand(*item) for item in enumerate(node.inputs))


_Floats = npt.NDArray[np.float32]
_SUMS = ("add", "sub")
_MINIMUM_DIVISOR = 2.0**-64
"""Quotients of scales by one that is no smaller stay finite."""


def run(graph: Graph) -> Graph:
    """The graph with `saturate` behind sums of scaled integers instead of `quantize`."""
    return _Requantiser(graph).run()


class _Requantiser:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rewriter = Rewriter(graph)
        self.uses: Mapping[str, int] = use_counts(graph)

    def run(self) -> Graph:
        for node in self.graph.nodes:
            resolved = self.rewriter.resolve(node)
            result = None
            if node.operator == "quantize":
                result = self._saturated(resolved)
            elif node.operator == "dequantize":
                result = self._with_float_zero(resolved)
            if result is None:
                self.rewriter.keep(resolved)
            else:
                self.rewriter.forward(node.output, result)
        return self.rewriter.finish()

    def _with_float_zero(self, node: Node) -> str | None:
        """Its zero point in the type that it is subtracted in, converted once and for all."""
        rewriter = self.rewriter
        zero = rewriter.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
        if zero is None or node.attributes["to"] != "f32" or zero.dtype == np.float32:
            return None
        offset = rewriter.constant(zero.astype(np.float32), node.inputs[2])
        inputs = (*node.inputs[:2], offset)
        return rewriter.emit("dequantize", inputs, node.attributes, like=node)

    def _saturated(self, node: Node) -> str | None:
        rewriter, attributes = self.rewriter, complete_attributes(node)
        scale = rewriter.constants.get(node.inputs[1])
        zero = self._zero_point(node)
        plain = not attributes["block"] and not attributes["precision"]
        if scale is None or scale.dtype != np.float32 or not plain or zero is None:
            return None
        divisor = scale.astype(np.float32)
        if not (divisor >= _MINIMUM_DIVISOR).all():  # a negative one turns the bounds of a relu
            return None
        source = node.inputs[0]
        if rewriter.types[source].dtype is not DType.F32 or not self._is_scaled(source):
            return None
        type = rewriter.types[node.output]
        if type.dtype not in NARROW:
            return None
        least, most = type.dtype.limits
        source = self._unbounded(source, divisor, least - zero, most - zero)
        scaled = self._divided(source, divisor, node)
        if scaled is None:
            return None
        given: dict[str, Attribute] = {"to": str(type.dtype)}
        inputs: tuple[str, ...] = (scaled,)
        if zero:
            offset = np.array(zero, np.float32)
            inputs = (scaled, rewriter.constant(offset, node.inputs[2]))
        return rewriter.emit("saturate", inputs, given, like=node)

    def _zero_point(self, node: Node) -> int | None:
        if len(node.inputs) < 3:
            return 0
        zero = self.rewriter.constants.get(node.inputs[2])
        if zero is None or (zero != zero.reshape(-1)[0]).any():
            return None
        return int(zero.reshape(-1)[0].item())

    def _is_scaled(self, name: str) -> bool:
        """Is the value sums of integers, or a sum of integers, scaled, for this reader only?

        Integers that are dequantized alone are not: many quotients of two scales would be ties.
        """
        node = self.rewriter.producers.get(name)
        if node is None or self.uses[name] > 1:
            return False
        if node.operator in ("relu", "clip"):
            return self._is_scaled(node.inputs[0])
        if node.operator in _SUMS:
            return all(self._is_term(operand) for operand in node.inputs)
        return self._is_product(node)

    def _is_term(self, name: str) -> bool:
        """Is it constant, dequantized, or scaled?"""
        known = name in self.rewriter.constants or dequantised(self.rewriter, name) is not None
        return known or self._is_scaled(name)

    def _is_product(self, node: Node) -> bool:
        """Does it multiply sums of integers with constants?"""
        if node.operator != "mul" or node.inputs[1] not in self.rewriter.constants:
            return False
        cast = self.rewriter.producers.get(node.inputs[0])
        if cast is None or cast.operator != "cast":
            return False
        return self.rewriter.types[cast.inputs[0]].dtype is DType.I32

    def _unbounded(self, name: str, divisor: _Floats, low: int, high: int) -> str:
        """What a relu or clip reads whose bounds cut nothing that saturation to low..high keeps."""
        node = self.rewriter.producers[name]
        if divisor.size > 1 or node.operator not in ("relu", "clip"):
            return name
        smallest, largest = _bounds(node)
        below = smallest is None or np.rint(np.float32(smallest) / divisor) <= low
        above = largest is None or np.rint(np.float32(largest) / divisor) >= high
        if not (below and above) or not self._is_scaled(node.inputs[0]):
            return name
        return self._unbounded(node.inputs[0], divisor, low, high)

    def _divided(self, name: str, divisor: _Floats, like: Node) -> str | None:
        """The value divided by the scale, with the division in its constants; None if it is not."""
        rewriter = self.rewriter
        constant = rewriter.constants.get(name)
        if constant is not None:
            return rewriter.constant(_quotient(constant, divisor), name)
        node = rewriter.producers.get(name)
        if node is None or (node.operator != "dequantize" and self.uses[name] > 1):
            return None
        match node.operator:
            case "mul" if self._is_product(node):
                factor = rewriter.constants[node.inputs[1]]
                scaled = rewriter.constant(_quotient(factor, divisor), f"{name}_factor")
                return rewriter.emit("mul", (node.inputs[0], scaled), like=node)
            case "add" | "sub":
                parts = [self._divided(operand, divisor, like) for operand in node.inputs]
                present = tuple(part for part in parts if part is not None)
                if len(present) < len(parts):
                    return None
                return rewriter.emit(node.operator, present, like=node)
            case "relu":
                inner = self._divided(node.inputs[0], divisor, like)
                return inner and rewriter.emit("relu", (inner,), like=node)
            case "clip" if divisor.size == 1:
                inner = self._divided(node.inputs[0], divisor, like)
                step = np.float32(divisor.reshape(-1)[0])
                low, high = (
                    None if bound is None else float(np.float32(bound) / step)
                    for bound in _bounds(node)
                )
                bounds: dict[str, Attribute] = {"min": low, "max": high}
                return inner and rewriter.emit("clip", (inner,), bounds, like=node)
            case "dequantize":
                return self._divided_integers(node, divisor)
        return None

    def _divided_integers(self, node: Node, divisor: _Floats) -> str | None:
        """dequantize with a scale that is divided."""
        rewriter = self.rewriter
        scale = rewriter.constants.get(node.inputs[1])
        if scale is None or scale.dtype != np.float32 or complete_attributes(node)["block"]:
            return None
        quotient = rewriter.constant(_quotient(scale, divisor), node.inputs[1])
        inputs = (node.inputs[0], quotient, *node.inputs[2:])
        return rewriter.emit("dequantize", inputs, node.attributes, like=node)


def _quotient(array: npt.NDArray[np.generic], divisor: _Floats) -> _Floats:
    return np.asarray(np.divide(array, divisor), np.float32)


def _bounds(node: Node) -> tuple[float | None, float | None]:
    """The minimum and maximum that a relu or clip lets pass."""
    if node.operator == "relu":
        return 0.0, None
    attributes = complete_attributes(node)
    low, high = attributes["min"], attributes["max"]
    assert low is None or isinstance(low, int | float)
    assert high is None or isinstance(high, int | float)
    return low, high
