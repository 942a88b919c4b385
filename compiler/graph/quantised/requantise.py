"""The second half of fold_quantised: no division between integers and their quantisation.

    quantize(relu(sum * m + dequantize(r, s)), t)
        -> saturate(relu(sum * (m / t) + dequantize(r, s / t)))
    quantize(dequantize(q, p) + dequantize(r, s), t)
        -> saturate(dequantize(q, p / t) + dequantize(r, s / t))

A relu or clip whose bounds are those of the quantised type goes away.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.quantised.operands import NARROW, dequantised
from tunefarm.compiler.graph.rewriter import Rewriter, use_counts
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute

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
