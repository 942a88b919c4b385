"""Pass: constant integers that casts and products make floats are dequantised by one operator.

    mul(cast(q), scale)                   ->  dequantize(q, scale)
    mul(sub(cast(q), zero point), scale)  ->  dequantize(q, scale, zero point)

Models that say it in either way then have their weights as narrow as they are stored. Scales and
zero points may be computed from constants; integers may be widened on the way. What is equal to a
dequantize only up to rounding, as a division by the scale, stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from tunefarm.compiler.graph import dead_code
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.evaluate_node import evaluate_node
from tunefarm.compiler.operators.registry import Pattern, operator
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array

LEAST_INTEGERS = 1 << 14
"""Fewer of them are folded to floats, which stay in the first cache, too."""
_EXACT = frozenset((DType.F64, DType.F32, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I16))
"""Types that have integers of 8 bits and, but for a rounding at the end, their differences."""
_MAXIMUM_DEPTH = 8
"""Nodes in a row that a scale or zero point is computed by."""


def run(graph: Graph) -> Graph:
    """The graph with a dequantize for each product of a scale with constant integers."""
    rewriter = Rewriter(graph)
    found = False
    for node in graph.nodes:
        resolved = rewriter.resolve(node)
        taken = _dequantize(rewriter, resolved) if node.operator == "mul" else None
        found |= taken is not None
        rewriter.keep(taken or resolved)
    return dead_code.run(rewriter.finish()) if found else graph


@dataclass(frozen=True, slots=True)
class _Integers:
    """A constant, and what is subtracted from all its elements before they are scaled."""

    name: str
    zero_point: Array | None = None


def _dequantize(rewriter: Rewriter, node: Node) -> Node | None:
    """The node instead of a product of integers, less their zero point, with a scale."""
    result = rewriter.types[node.output]
    for data, factor in (node.inputs, node.inputs[::-1]):
        integers = _integers(rewriter, data)
        if integers is None or not rewriter.types[data].dtype.is_float:
            continue
        stored = rewriter.constants[integers.name]
        scale = _value(rewriter, factor)
        if stored.shape != result.shape or scale is None or not np.isfinite(scale).all():
            return None
        parameters = [scale]
        if integers.zero_point is not None:
            zero_point = _exactly(integers.zero_point, DType.from_numpy(stored.dtype))
            if zero_point is None:
                return None
            parameters.append(zero_point)
        hints = ("scale", "zero_point")
        names = [
            rewriter.constant(array, f"{node.output}_{hint}")
            for array, hint in zip(parameters, hints, strict=False)
        ]
        attributes = MappingProxyType({"to": str(result.dtype)})
        inputs = (integers.name, *names)
        return replace(node, operator="dequantize", inputs=inputs, attributes=attributes)
    return None


def _integers(rewriter: Rewriter, name: str) -> _Integers | None:
    """The large constant of at most 8 bits behind casts, and a subtraction between them."""
    constant = rewriter.constants.get(name)
    if constant is not None:
        dtype = DType.from_numpy(constant.dtype)
        narrow = dtype.is_integer and dtype.bits <= DType.U8.bits
        return _Integers(name) if narrow and constant.size >= LEAST_INTEGERS else None
    node = rewriter.producers.get(name)
    if node is None or node.operator not in ("cast", "sub"):
        return None
    inside = _integers(rewriter, node.inputs[0])
    if inside is None or rewriter.types[name].dtype not in _EXACT:
        return None
    if node.operator == "cast":
        return inside
    zero_point = _value(rewriter, node.inputs[1])
    if inside.zero_point is not None or zero_point is None:
        return None
    return replace(inside, zero_point=zero_point)


def _value(rewriter: Rewriter, name: str, depth: int = _MAXIMUM_DEPTH) -> Array | None:
    """A constant, or what a few nodes make of constants; None where it is neither."""
    if name in rewriter.constants:
        return rewriter.constants[name]
    node = rewriter.producers.get(name)
    if node is None or not depth or not all(node.inputs):
        return None
    if operator(node.operator).pattern in (Pattern.FUNCTION, Pattern.LOOP):
        return None
    inputs = [_value(rewriter, item, depth - 1) for item in node.inputs]
    present = [array for array in inputs if array is not None]
    return evaluate_node(node, tuple(present)) if len(present) == len(inputs) else None


def _exactly(zero_point: Array, dtype: DType) -> Array | None:
    """The zero point as integers of this type; None where it is others."""
    numbers = zero_point.astype(np.float64)
    low, high = dtype.limits
    if not ((numbers == np.round(numbers)) & (numbers >= low) & (numbers <= high)).all():
        return None
    return converted(numbers.astype(np.int64), dtype)
