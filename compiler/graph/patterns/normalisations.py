"""Layer normalisation, and that by the root of the mean square (RMSNorm), as exporters spell them.

    x - reduce_mean(x) -> d;  d / sqrt(reduce_mean(d^2) + epsilon) * scale + bias  ->  layer_norm
    x / sqrt(reduce_mean(x^2) + epsilon) * scale                                   ->  rms_norm

Squares are products or powers; the division is one, or a product with a reciprocal or a power -1/2;
the scale multiplies the result or the reciprocal. Means are over the last axes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tunefarm.compiler.graph.patterns.finder import Finder, Match, operand_pairs, trailing_axis
from tunefarm.compiler.types.dtypes import FLOATS
from tunefarm.compiler.types.node import Node


@dataclass(frozen=True, slots=True)
class Normal:
    """x / sqrt(mean(x^2) + epsilon), times a scale."""

    data: str
    axis: int
    epsilon: float
    scale: str = ""


def match(finder: Finder, node: Node) -> Match | None:
    """The normalisation that ends in this node, with its scale and bias."""
    if node.operator not in ("add", "mul", "div") or finder.dtype(node.output) not in FLOATS:
        return None
    if node.operator == "add":
        found = [
            _layer_norm(finder, node, normal, bias)
            for inner, bias in operand_pairs(node)
            if (normal := _scaled(finder, inner)) is not None
        ]
        return next((match for match in found if match is not None), None)
    normal = _scaled(finder, node.output)
    if normal is None:
        return None
    return _layer_norm(finder, node, normal, "") or _rms_norm(finder, node, normal)


def _layer_norm(finder: Finder, last: Node, normal: Normal, bias: str) -> Match | None:
    """The match if what is normalised is the deviation from its mean."""
    deviation = finder.node(normal.data, "sub")
    if deviation is None:
        return None
    data, center = deviation.inputs
    mean = finder.node(center, "reduce_mean")
    if mean is None or mean.inputs[0] != data:
        return None
    shape = finder.shape(data)
    if trailing_axis(mean, len(shape)) != normal.axis:
        return None
    operands = [name for name in (normal.scale, bias) if name]
    if any(finder.dtype(name) is not finder.dtype(data) for name in operands):
        return None
    if finder.shape(last.output) != shape:
        return None
    attributes = {"axis": normal.axis, "epsilon": normal.epsilon}
    if normal.scale:
        return Match(last, "layer_norm", (data, *operands), attributes)
    if bias:
        return None
    ones = np.ones(shape[normal.axis :], finder.dtype(data).numpy)
    return Match(last, "layer_norm", (data,), attributes, constants=(ones,))


def _rms_norm(finder: Finder, last: Node, normal: Normal) -> Match | None:
    operands = (normal.data, normal.scale) if normal.scale else (normal.data,)
    if finder.shape(last.output) != finder.shape(normal.data):
        return None
    attributes = {"axis": normal.axis, "epsilon": normal.epsilon}
    return Match(last, "rms_norm", operands, attributes)


def _scaled(finder: Finder, name: str) -> Normal | None:
    """The value is x r, x r scale or x (r scale) with r = 1 / sqrt(mean(x^2) + epsilon)."""
    product = finder.node(name, "mul")
    if product is not None:
        for inner, scale in operand_pairs(product):
            normal = _normalised(finder, inner)
            if normal is not None:
                return Normal(normal.data, normal.axis, normal.epsilon, scale)
        for data, inner in operand_pairs(product):
            factor = finder.node(inner, "mul")
            for root, scale in operand_pairs(factor) if factor is not None else ():
                normal = inverse_root(finder, root, data)
                if normal is not None:
                    return Normal(normal.data, normal.axis, normal.epsilon, scale)
    return _normalised(finder, name)


def _normalised(finder: Finder, name: str) -> Normal | None:
    node = finder.node(name, "mul", "div")
    if node is None:
        return None
    if node.operator == "div":
        return _root(finder, node.inputs[1], node.inputs[0])
    for data, factor in operand_pairs(node):
        normal = inverse_root(finder, factor, data)
        if normal is not None:
            return normal
    return None


def inverse_root(finder: Finder, name: str, data: str) -> Normal | None:
    """The value is 1 / sqrt(mean(data^2) + epsilon)."""
    node = finder.node(name, "reciprocal", "div", "pow")
    if node is None:
        return None
    if node.operator == "reciprocal":
        return _root(finder, node.inputs[0], data)
    if node.operator == "div":
        is_inverse = finder.has_number(node.inputs[0], 1.0)
        return _root(finder, node.inputs[1], data) if is_inverse else None
    is_inverse = finder.has_number(node.inputs[1], -0.5)
    return _shifted_mean(finder, node.inputs[0], data) if is_inverse else None


def _root(finder: Finder, name: str, data: str) -> Normal | None:
    """The value is sqrt(mean(data^2) + epsilon)."""
    node = finder.node(name, "sqrt", "pow")
    if node is None or (node.operator == "pow" and not finder.has_number(node.inputs[1], 0.5)):
        return None
    return _shifted_mean(finder, node.inputs[0], data)


def _shifted_mean(finder: Finder, name: str, data: str) -> Normal | None:
    rank = len(finder.shape(data))
    for inner, epsilon in finder.with_number(name, "add"):
        mean = finder.node(inner, "reduce_mean")
        if mean is None or finder.squared(mean.inputs[0]) != data:
            continue
        axis = trailing_axis(mean, rank)
        if axis is not None and finder.shape(name) == finder.shape(inner):
            return Normal(data, axis, epsilon)
    return None
