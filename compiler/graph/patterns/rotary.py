"""Rotary position embedding as exporters spell it: pairs of features, each turned by an angle.

    x cos + concat(-x[half:], x[:half]) sin                                  ->  rotary
    concat(a cos - b sin, b cos + a sin), a and b the halves of x            ->  rotary
    x cos + stack(-x[1::2], x[::2]) sin, stacked and flattened               ->  rotary, interleaved
    stack(a cos - b sin, b cos + a sin), a and b every second feature of x   ->  rotary, interleaved
    concat(any of them of x[:width], x[width:])                              ->  rotary of the first

Every second feature is a slice with a step, or one column of x in pairs [..., half, 2]. Cosines and
sines are whatever broadcasts: constants, computed, or gathered by position.
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.graph.patterns.finder import Finder, Match, operand_pairs
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.dtypes import FLOATS
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node


@frozen
class Part:
    """Every `step`-th feature of the data from `start` on, or its negative."""

    data: str
    shape: tuple[int, ...]  # that the data has, or is to be viewed in
    start: int
    step: int
    count: int
    negative: bool = False


def match(finder: Finder, node: Node) -> Match | None:
    """The rotary embedding that ends in this node."""
    if node.operator == "add":
        return _of_whole(finder, node)
    if node.operator == "concat":
        return _of_halves(finder, node) or _of_first(finder, node)
    joined = finder.view(node.output)
    stack = finder.node(joined, "concat") if joined is not None else None
    return _of_pairs(finder, node, stack) if stack is not None else None


def _of_whole(finder: Finder, last: Node) -> Match | None:
    """x cos + turned sin."""
    for straight, crossed in operand_pairs(last):
        product, other = finder.node(straight, "mul"), finder.node(crossed, "mul")
        if product is None or other is None:
            continue
        for turned, sine in operand_pairs(other):
            parts = _joined(finder, turned)
            if parts is None or not parts[0].negative or parts[1].negative:
                continue
            swapped = (parts[1], replace(parts[0], negative=False))
            for data, cosine in operand_pairs(product):
                if finder.view_root(data) == finder.view_root(parts[0].data):
                    return _turned(finder, last, swapped, cosine, sine, data)
    return None


def _of_halves(finder: Finder, last: Node) -> Match | None:
    """Both halves of the result, one behind the other."""
    if not _joins_last_axis(finder, last):
        return None
    found = _products(finder, *last.inputs)
    if found is None or found[0].step != 1:
        return None
    first, second, cosine, sine = found
    return _turned(finder, last, (first, second), cosine, sine)


def _of_pairs(finder: Finder, last: Node, stack: Node) -> Match | None:
    """Both features of each pair side by side."""
    if not _joins_last_axis(finder, stack) or finder.shape(stack.output)[-1] != 2:
        return None
    columns = [finder.view(name) for name in stack.inputs]
    if columns[0] is None or columns[1] is None:
        return None
    found = _products(finder, columns[0], columns[1])
    if found is None or found[0].step != 2:
        return None
    first, second, cosine, sine = found
    if finder.shape(stack.inputs[0]) != (*first.shape[:-1], first.count, 1):
        return None
    return _turned(finder, last, (first, second), cosine, sine)


def _of_first(finder: Finder, last: Node) -> Match | None:
    """The embedding of the first features next to those that stay."""
    if not _joins_last_axis(finder, last):
        return None
    inner = finder.producer(last.inputs[0])
    if inner is None or finder.node(last.inputs[1], "slice") is None:
        return None
    spelled = match(finder, inner)
    if inner.operator == "rotary":
        spelled = Match(inner, "rotary", inner.inputs, inner.attributes)
    if spelled is None or spelled.shape is not None:
        return None
    turned, kept = _part(finder, spelled.inputs[0]), _part(finder, last.inputs[1])
    width = finder.shape(inner.output)[-1]
    shape = finder.shape(last.output)
    if turned is None or kept is None or spelled.attributes["width"] != width:
        return None
    fits = turned.data == kept.data and turned.shape == kept.shape == shape
    fits = fits and (turned.start, turned.step, turned.count) == (0, 1, width)
    if not fits or (kept.start, kept.step) != (width, 1):
        return None
    return replace(spelled, last=last, inputs=(turned.data, *spelled.inputs[1:]))


# --- what the spellings consist of --------------------------------------------------------------


def _turned(
    finder: Finder, last: Node, parts: tuple[Part, Part], cosine: str, sine: str, whole: str = ""
) -> Match | None:
    """The match, if the parts make up all features and the tables fit them.

    `whole` is the data that is multiplied by the cosines, if not the parts are.
    """
    first, second = parts
    shape, half, result = first.shape, first.count, finder.shape(last.output)
    alike = replace(second, start=0) == replace(first, start=0) and not first.negative
    apart = 1 if first.step == 2 else half
    if not alike or (first.start, second.start) != (0, apart) or shape[-1] != 2 * half:
        return None
    if whole and (finder.shape(whole) != shape or result != shape):
        return None
    tables = [finder.shape(name) for name in (cosine, sine)]
    width = shape[-1] if whole else half
    if any(table[-1:] != (width,) or not _broadcasts(table[:-1], shape) for table in tables):
        return None
    dtype = finder.dtype(last.output)
    if dtype not in FLOATS or any(finder.dtype(x) is not dtype for x in (cosine, sine)):
        return None
    source = finder.in_shape(first.data, shape)
    if whole and source != whole:
        source = finder.view_root(whole)
    viewed = finder.shape(source) != shape or result != shape
    attributes = {"width": 2 * half, "interleaved": first.step == 2}
    inputs = (source, cosine, sine)
    return Match(last, "rotary", inputs, attributes, shape=shape if viewed else None)


def _products(finder: Finder, left: str, right: str) -> tuple[Part, Part, str, str] | None:
    """a, b, cos and sin where two values are a cos - b sin and b cos + a sin."""
    difference, total = finder.node(left, "sub"), finder.node(right, "add")
    if difference is None or total is None:
        return None
    straight, crossed = (finder.node(name, "mul") for name in difference.inputs)
    others = [finder.node(name, "mul") for name in total.inputs]
    if straight is None or crossed is None or others[0] is None or others[1] is None:
        return None
    others_inputs = {frozenset(other.inputs) for other in others if other is not None}
    for a, cosine in operand_pairs(straight):
        for b, sine in operand_pairs(crossed):
            if others_inputs != {frozenset((b, cosine)), frozenset((a, sine))}:
                continue
            first, second = _part(finder, a), _part(finder, b)
            if first is None or second is None:
                continue
            if all(finder.shape(name) == (*first.shape[:-1], first.count) for name in (a, b)):
                return first, second, cosine, sine
    return None


def _joined(finder: Finder, name: str) -> tuple[Part, Part] | None:
    """The two parts that a value has one behind the other, or side by side."""
    stack = finder.node(name, "concat")
    viewed = stack is None
    if viewed:
        source = finder.view(name)
        stack = finder.node(source, "concat") if source is not None else None
    if stack is None or not _joins_last_axis(finder, stack):
        return None
    first, second = (_part(finder, item) for item in stack.inputs)
    if first is None or second is None or (first.step == 2) != viewed:
        return None
    own = (*first.shape[:-1], first.count, *((1,) if viewed else ()))
    fits = all(finder.shape(item) == own for item in stack.inputs)
    return (first, second) if fits and finder.shape(name) == first.shape else None


def _part(finder: Finder, name: str) -> Part | None:
    """The features of some data that a value holds, whatever its shape."""
    node, negative = finder.producer(name), False
    while node is not None and node.operator != "slice":
        is_view = finder.view(node.output) is not None
        if not is_view and (node.operator != "neg" or negative):
            return None
        negative = negative or node.operator == "neg"
        node = finder.producer(node.inputs[0])
    if node is None or finder.size(name) != finder.size(node.output):
        return None
    data, attributes = node.inputs[0], complete_attributes(node)
    shape, taken = finder.shape(data), finder.shape(node.output)
    starts, steps = attributes.integers("starts"), attributes.integers("steps")
    if len(shape) < 2 or taken[:-1] != shape[:-1] or any(starts[:-1]):
        return None
    if shape[-1] == 2 and taken[-1] == 1:
        whole = (*shape[:-2], 2 * shape[-2])
        return Part(data, whole, starts[-1], 2, shape[-2], negative)
    return Part(data, shape, starts[-1], steps[-1], taken[-1], negative)


def _joins_last_axis(finder: Finder, node: Node) -> bool:
    axis = complete_attributes(node).integer("axis")
    return len(node.inputs) == 2 and axis == len(finder.shape(node.output)) - 1


def _broadcasts(rows: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a table of these rows has some, or one, for every row of data of this shape."""
    if len(rows) >= len(shape):
        return False
    own = shape[len(shape) - 1 - len(rows) : -1]
    return all(extent in (1, other) for extent, other in zip(rows, own, strict=True))
