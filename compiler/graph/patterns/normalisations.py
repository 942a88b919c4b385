"""Layer normalisation, and that by the root of the mean square (RMSNorm), as exporters spell them.

    x - reduce_mean(x) -> d;  d / sqrt(reduce_mean(d^2) + epsilon) * scale + bias  ->  layer_norm
    x / sqrt(reduce_mean(x^2) + epsilon) * scale                                   ->  rms_norm

Squares are products or powers; the division is one, or a product with a reciprocal or a power -1/2;
the scale multiplies the result or the reciprocal. Means are over the last axes.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.graph.patterns.finder import Finder, Match, operand_pairs, trailing_axis
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.dtypes import FLOATS
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array


@frozen
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


def match_folded(finder: Finder, node: Node) -> Match | None:
    """Layer normalisation as TensorFlow folds it, one product and one sum of the data, that ends in
    this addition.

        s = scale / sqrt(reduce_mean((x - mean)^2) + epsilon); x s + (bias - mean s) -> layer_norm

    The difference of two large products loses the digits that the deviation from the mean keeps.
    """
    if node.operator != "add" or finder.dtype(node.output) not in FLOATS:
        return None
    for scaled, shift in operand_pairs(node):
        product, rest = finder.node(scaled, "mul"), finder.node(shift, "sub")
        if product is None or rest is None:
            continue
        for data, factor in operand_pairs(product):
            found = _folded_layer_norm(finder, node, data, factor, rest)
            if found is not None:
                return found
    return None


def _folded_layer_norm(
    finder: Finder, last: Node, data: str, factor: str, rest: Node
) -> Match | None:
    bias, taken_off = rest.inputs
    offset, product = finder.node(taken_off, "mul"), finder.node(factor, "mul")
    if offset is None or product is None or finder.shape(last.output) != finder.shape(data):
        return None
    means = [name for name, other in operand_pairs(offset) if other == factor]
    mean = finder.node(means[0], "reduce_mean") if means else None
    if mean is None or mean.inputs[0] != data:
        return None
    for root, scale in operand_pairs(product):
        for deviation in finder.readers(mean.output, "sub"):
            normal = inverse_root(finder, root, deviation.output)
            if normal is None or deviation.inputs != (data, mean.output):
                continue
            if trailing_axis(mean, len(finder.shape(data))) == normal.axis:
                attributes = {"axis": normal.axis, "epsilon": normal.epsilon}
                return Match(last, "layer_norm", (data, scale, bias), attributes)
    return None


_Doubles = npt.NDArray[np.float64]


def match_of_groups(finder: Finder, node: Node) -> Match | None:
    """Group normalisation as exporters spell it, groups of channels as one channel each, that ends
    in this addition.

        reshape(x, [N, groups, -1]) -> layer_norm of its rows, by group -> reshape -> mul -> add

    becomes one layer_norm of [N, groups, channels of a group, positions], whose scale and bias, by
    channel, are constants: a kernel less, and none of the data is written and read between.
    """
    if node.operator != "add":
        return None
    for inner, bias in operand_pairs(node):
        product = finder.node(inner, "mul")
        for view, scale in operand_pairs(product) if product is not None else ():
            found = _group_norm(finder, node, view, scale, bias)
            if found is not None:
                return found
    return None


def _group_norm(finder: Finder, last: Node, view: str, scale: str, bias: str) -> Match | None:
    source = finder.view(view)
    normal = finder.node(source, "layer_norm") if source is not None else None
    data = finder.view(normal.inputs[0]) if normal is not None else None
    shape = finder.shape(last.output)
    if normal is None or data is None or len(shape) < 3 or finder.shape(data) != shape:
        return None
    grouped = finder.shape(normal.inputs[0])
    batch, channels = shape[:2]
    by_group = len(grouped) == 3 and grouped[0] == batch and channels % grouped[1] == 0
    attributes = complete_attributes(normal)
    if not by_group or attributes.integer("axis") != 2 or len(normal.inputs) != 3:
        return None
    own = [_by_channel(finder.constant(name), grouped) for name in normal.inputs[1:]]
    outer = [_by_channel(finder.constant(name), shape) for name in (scale, bias)]
    if own[0] is None or own[1] is None or outer[0] is None or outer[1] is None:
        return None
    groups, members = grouped[1], channels // grouped[1]
    inner_scale, inner_bias = (np.repeat(item, members) for item in own if item is not None)
    dtype = finder.dtype(data).numpy
    parameters = (inner_scale * outer[0], inner_bias * outer[0] + outer[1])
    return Match(
        last,
        "layer_norm",
        (data,),
        {"axis": 2, "epsilon": attributes.floating("epsilon")},
        constants=tuple(item.astype(dtype).reshape(groups, members, 1) for item in parameters),
        shape=(batch, groups, members, math.prod(shape[2:])),
    )


def _by_channel(constant: Array | None, shape: tuple[int, ...]) -> _Doubles | None:
    """A constant as one number per channel of data of this shape; None if it varies otherwise."""
    if constant is None or constant.ndim > len(shape):
        return None
    aligned = constant.reshape((1,) * (len(shape) - constant.ndim) + constant.shape)
    if any(extent != 1 for axis, extent in enumerate(aligned.shape) if axis != 1):
        return None
    return np.broadcast_to(aligned.reshape(-1).astype(np.float64), (shape[1],)).copy()
