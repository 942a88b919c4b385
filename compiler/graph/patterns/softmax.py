"""Softmax and its logarithm, decomposed.

exp(x - reduce_max(x)) -> e;  e / reduce_sum(e)    ->  softmax, also without the maximum
log(softmax(x))                                    ->  log_softmax
"""

from __future__ import annotations

from tunefarm.compiler.graph.patterns.finder import Finder, Match, operand_pairs
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.dtypes import FLOATS
from tunefarm.compiler.types.node import Node


def match(finder: Finder, node: Node) -> Match | None:
    """The softmax or its logarithm that ends in this node."""
    if node.operator not in ("div", "mul", "log") or finder.dtype(node.output) not in FLOATS:
        return None
    if node.operator == "log":
        inner = finder.node(node.inputs[0], "softmax")
        if inner is not None:
            return Match(node, "log_softmax", inner.inputs, inner.attributes)
        quotient = finder.node(node.inputs[0], "div", "mul")
        spelled = match(finder, quotient) if quotient is not None else None
        if spelled is None:
            return None
        return Match(node, "log_softmax", spelled.inputs, spelled.attributes)
    for exponential, divisor in _quotients(finder, node):
        found = _softmax(finder, node, exponential, divisor)
        if found is not None:
            return found
    return None


def _quotients(finder: Finder, node: Node) -> list[tuple[str, str]]:
    """Dividend and divisor where a node divides, or multiplies by a reciprocal."""
    if node.operator == "div":
        return [(node.inputs[0], node.inputs[1])]
    pairs = [(left, finder.node(right, "reciprocal")) for left, right in operand_pairs(node)]
    return [(left, inverse.inputs[0]) for left, inverse in pairs if inverse is not None]


def _softmax(finder: Finder, last: Node, exponential: str, divisor: str) -> Match | None:
    exp, total = finder.node(exponential, "exp"), finder.node(divisor, "reduce_sum")
    if exp is None or total is None or total.inputs[0] != exponential:
        return None
    axis = _kept_axis(total)
    if axis is None:
        return None
    return Match(last, "softmax", (_without_maximum(finder, exp.inputs[0], axis),), {"axis": axis})


def _without_maximum(finder: Finder, name: str, axis: int) -> str:
    """x where a value is x less its maximum along the axis, which softmax takes off by itself."""
    difference = finder.node(name, "sub")
    if difference is None:
        return name
    data, largest = difference.inputs
    maximum = finder.node(largest, "reduce_max")
    fits = maximum is not None and maximum.inputs[0] == data and _kept_axis(maximum) == axis
    return data if fits else name


def _kept_axis(node: Node) -> int | None:
    """The one axis that a node reduces and keeps."""
    attributes = complete_attributes(node)
    axes = attributes.integers("axes")
    return axes[0] if len(axes) == 1 and attributes.flag("keepdims") else None
