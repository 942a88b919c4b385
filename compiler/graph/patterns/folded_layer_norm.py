"""Layer normalisation as TensorFlow folds it: one product and one sum of the data.

    s = scale / sqrt(reduce_mean((x - mean)^2) + epsilon);  x s + (bias - mean s)  ->  layer_norm

The difference of two large products loses the digits that the deviation from the mean keeps.
"""

from __future__ import annotations

from tunefarm.compiler.graph.patterns.finder import Finder, Match, operand_pairs, trailing_axis
from tunefarm.compiler.graph.patterns.normalisations import inverse_root
from tunefarm.compiler.types.dtypes import FLOATS
from tunefarm.compiler.types.node import Node


def match(finder: Finder, node: Node) -> Match | None:
    """The normalisation that ends in this addition."""
    if node.operator != "add" or finder.dtype(node.output) not in FLOATS:
        return None
    for scaled, shift in operand_pairs(node):
        product, rest = finder.node(scaled, "mul"), finder.node(shift, "sub")
        if product is None or rest is None:
            continue
        for data, factor in operand_pairs(product):
            found = _layer_norm(finder, node, data, factor, rest)
            if found is not None:
                return found
    return None


def _layer_norm(finder: Finder, last: Node, data: str, factor: str, rest: Node) -> Match | None:
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
