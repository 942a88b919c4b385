"""Activation functions that models spell out in several nodes: of one value, and softmax.

    x / 2 (1 + erf(x / sqrt(2)))                                   ->  gelu
    x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))              ->  gelu, approximate
    x sigmoid(alpha x)                                             ->  swish (SiLU, quick GELU)
    x clip(x + 3, 0, 6) / 6, x hard_sigmoid(x)                     ->  hard_swish
    x tanh(softplus(x))                                            ->  mish

Factors may come in any order, numbers with any of them. As one operator they leave a kernel more
room, take less arithmetic and run on blocked data as a whole.
"""

from __future__ import annotations

import math

from tunefarm.compiler.graph.patterns.finder import Finder, Match, close, operand_pairs
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.dtypes import FLOATS, DType
from tunefarm.compiler.types.node import Node

_CUBIC = 0.044715
_TYPES = frozenset((DType.F32, DType.F16, DType.BF16))


def match(finder: Finder, node: Node) -> Match | None:
    """The activation function that ends in this node."""
    if node.operator not in ("mul", "div") or finder.dtype(node.output) not in _TYPES:
        return None
    number, values = finder.factors(node.output)
    if len(values) != 2:
        return None
    for x, gate in (values, values[::-1]):
        if finder.shape(x) != finder.shape(node.output):
            continue
        for rule in (_gelu, _swish, _hard_swish, _mish):
            found = rule(finder, node, number, x, gate)
            if found is not None:
                return found
    return None


def _gelu(finder: Finder, node: Node, number: float, x: str, gate: str) -> Match | None:
    if not finder.is_close(number, 0.5, x):
        return None
    for inner, one in finder.with_number(gate, "add"):
        function = finder.node(inner, "erf", "tanh")
        if one != 1 or function is None:
            continue
        scale = math.sqrt(0.5) if function.operator == "erf" else math.sqrt(2 / math.pi)
        wanted = {1: scale} if function.operator == "erf" else {1: scale, 3: scale * _CUBIC}
        if finder.is_polynomial(function.inputs[0], x, wanted):
            form = "none" if function.operator == "erf" else "tanh"
            return Match(node, "gelu", (x,), {"approximate": form})
    return None


def _swish(finder: Finder, node: Node, number: float, x: str, gate: str) -> Match | None:
    argument = finder.sigmoid_of(gate)
    polynomial = finder.polynomial(argument, x) if argument is not None else None
    if number != 1 or polynomial is None or set(polynomial) != {1}:
        return None
    return Match(node, "swish", (x,), {"alpha": polynomial[1]})


def _hard_swish(finder: Finder, node: Node, number: float, x: str, gate: str) -> Match | None:
    ramp = finder.node(gate, "clip", "hard_sigmoid")
    if ramp is None:
        return None
    attributes = complete_attributes(ramp)
    if ramp.operator == "hard_sigmoid":
        sixth, half = attributes.floating("alpha"), attributes.floating("beta")
        numbers = close(sixth, 1 / 6) and close(half, 0.5)
        fits = number == 1 and ramp.inputs[0] == x and numbers
        return Match(node, "hard_swish", (x,)) if fits else None
    bounds = attributes["min"] == 0 and attributes["max"] == 6
    sixth = finder.is_close(number, 1 / 6, x)
    fits = sixth and finder.is_polynomial(ramp.inputs[0], x, {0: 3.0, 1: 1.0})
    return Match(node, "hard_swish", (x,)) if bounds and fits else None


def _mish(finder: Finder, node: Node, number: float, x: str, gate: str) -> Match | None:
    function = finder.node(gate, "tanh")
    fits = function is not None and finder.softplus_of(function.inputs[0]) == x
    return Match(node, "mish", (x,)) if number == 1 and fits else None


# Softmax and its logarithm, decomposed.
#
#     exp(x - reduce_max(x)) -> e;  e / reduce_sum(e)    ->  softmax, also without the maximum
#     log(softmax(x))                                    ->  log_softmax


def match_softmax(finder: Finder, node: Node) -> Match | None:
    """The softmax or its logarithm that ends in this node."""
    if node.operator not in ("div", "mul", "log") or finder.dtype(node.output) not in FLOATS:
        return None
    if node.operator == "log":
        inner = finder.node(node.inputs[0], "softmax")
        if inner is not None:
            return Match(node, "log_softmax", inner.inputs, inner.attributes)
        quotient = finder.node(node.inputs[0], "div", "mul")
        spelled = match_softmax(finder, quotient) if quotient is not None else None
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
