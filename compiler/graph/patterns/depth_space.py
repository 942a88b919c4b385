"""Depth to space, space to depth and channel shuffle as exporters spell them.

    reshape, transpose, reshape                                     ->  one of them
    concat of x[:, :, i::b, j::b] for every i and j along channels  ->  space_to_depth (focus)

What a reshape splits, a transpose orders and a reshape joins is compared with what each operator
does, with axes of one element left out and those that stay together taken as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod

from tunefarm.compiler.graph.patterns.finder import Finder, Match
from tunefarm.compiler.operators.depth_space import ORDERS
from tunefarm.compiler.operators.registry import complete_attributes, transpose_of
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute

_Shape = tuple[int, ...]


@frozen
class _Moved:
    """Axes of these extents, put in another order."""

    extents: _Shape
    order: _Shape


def match(finder: Finder, node: Node) -> Match | None:
    """The rearrangement that ends in this node."""
    if node.operator == "concat":
        return _focus(finder, node)
    view = finder.view(node.output)
    transpose = finder.node(view, "transpose") if view is not None else None
    source = finder.view(transpose.inputs[0]) if transpose is not None else None
    if transpose is None or source is None:
        return None
    perm = complete_attributes(transpose).integers("perm")
    spelled = _merged(finder.shape(transpose.inputs[0]), perm)
    data, result = finder.graph.types[source], finder.shape(node.output)
    for operator, attributes in _candidates(data.shape, result):
        turn = transpose_of(operator, attributes, data)
        if turn.result == result and _merged(turn.shape, turn.perm) == spelled:
            return Match(node, operator, (source,), attributes)
    return None


def _merged(shape: _Shape, perm: _Shape) -> _Moved:
    """Without axes of one element, and with neighbours that stay neighbours as one axis."""
    kept = [axis for axis in perm if shape[axis] != 1]
    follower = dict(pairwise(sorted(kept)))
    runs: list[list[int]] = []
    for axis in kept:
        if runs and follower.get(runs[-1][-1]) == axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    order = sorted(runs)
    extents = tuple(prod(shape[axis] for axis in run) for run in order)
    return _Moved(extents, tuple(order.index(run) for run in runs))


def _candidates(data: _Shape, result: _Shape) -> Iterator[tuple[str, Mapping[str, Attribute]]]:
    """The operators that may make a result of this shape of the data."""
    if len(data) < 3:
        return
    if data == result:
        for groups in range(2, data[1]):
            if data[1] % groups == 0:
                yield "channel_shuffle", {"groups": groups}
    if len(data) != 4 or len(result) != 4 or data[2] == result[2]:
        return
    grows = result[2] > data[2]
    block = result[2] // data[2] if grows else data[2] // result[2]
    name = "depth_to_space" if grows else "space_to_depth"
    channels, rows, columns = (data if grows else result)[1:]
    wide = result if grows else data
    if channels % block**2 or wide[2:] != (rows * block, columns * block):
        return
    for order in ORDERS:
        yield name, {"block": block, "order": order}


def _focus(finder: Finder, last: Node) -> Match | None:
    """Every phase of rows and columns, one behind the other."""
    block = round(len(last.inputs) ** 0.5)
    slices = [finder.node(name, "slice") for name in last.inputs]
    phases = [_phase(finder, part, block) for part in slices if part is not None]
    sources = {part.inputs[0] for part in slices if part is not None}
    if block < 2 or len(phases) != block**2 or len(slices) != len(phases) or len(sources) != 1:
        return None
    if None in phases:
        return None
    (data,) = sources
    shape, result = finder.shape(data), finder.shape(last.output)
    whole = (shape[0], shape[1] * block**2, shape[2] // block, shape[3] // block)
    if complete_attributes(last).integer("axis") != 1 or result != whole:
        return None
    if shape[2] % block or shape[3] % block:
        return None
    rows_first = [(y, x) for y in range(block) for x in range(block)]
    orders = {"yxc": rows_first, "xyc": [(x, y) for y, x in rows_first]}
    for order, wanted in orders.items():
        if phases == wanted:
            return Match(last, "space_to_depth", (data,), {"block": block, "order": order})
    return None


def _phase(finder: Finder, part: Node, block: int) -> tuple[int, int] | None:
    """The first row and column of a slice of every `block`-th of them, and of all channels."""
    attributes = complete_attributes(part)
    starts, steps = attributes.integers("starts"), attributes.integers("steps")
    if len(starts) != 4 or steps[2:] != (block, block) or any(starts[:2]):
        return None
    taken, shape = finder.shape(part.output), finder.shape(part.inputs[0])
    return starts[2:] if taken[:2] == shape[:2] else None
