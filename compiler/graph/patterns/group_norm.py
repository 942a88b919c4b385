"""Group normalisation as exporters spell it: of groups of channels as one channel each.

    reshape(x, [N, groups, -1]) -> layer_norm of its rows, by group -> reshape -> mul -> add

becomes one layer_norm of [N, groups, channels of a group, positions], whose scale and bias, by
channel, are constants: a kernel less, and none of the data is written and read between.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.graph.patterns.finder import Finder, Match, operand_pairs
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array

_Doubles = npt.NDArray[np.float64]


def match(finder: Finder, node: Node) -> Match | None:
    """The group normalisation that ends in this addition."""
    if node.operator != "add":
        return None
    for inner, bias in operand_pairs(node):
        product = finder.node(inner, "mul")
        for view, scale in operand_pairs(product) if product is not None else ():
            found = _normal(finder, node, view, scale, bias)
            if found is not None:
                return found
    return None


def _normal(finder: Finder, last: Node, view: str, scale: str, bias: str) -> Match | None:
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
