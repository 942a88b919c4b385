"""Activation functions of one value that models spell out in several nodes.

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

from tunefarm.compiler.graph.patterns.finder import Finder, Match, close
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.dtypes import DType
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
