"""Operators that change the shape or move whole elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.sized_shapes import (
    is_sized,
    sized_expand,
    sized_reshape,
    sized_slice,
    sized_split,
    sized_tile,
    under_shape,
)
from tunefarm.compiler.operators.rules import broadcast_shapes
from tunefarm.compiler.types.signature import SIZES, ranges_text
from tunefarm.compiler.types.sizes import Dimension, Size, bounds_of, divide, symbols_of

_REDEFINED = (13, 21, 23, 24, 25)  # opsets that only added element types to the view operators


@converter("Reshape", 1, 5, 13, 14, 19, 21, 23, 24, 25)
def reshape(node: OnnxNode, graph: GraphBuilder) -> Value:
    """0 keeps the extent (unless `allowzero`), one -1 takes what is left."""
    if is_sized(node, 1):
        return sized_reshape(node, graph)
    data, wanted = node.input(0), node.given_integers("shape", 1, "the shape") or ()
    shape = list(wanted)
    if not node.integer("allowzero", 0):
        for axis, extent in enumerate(shape):
            if extent == 0:
                if axis >= data.rank:
                    raise node.bad_shape(f"the shape {shape} keeps axis {axis} of {data.type}")
                shape[axis] = data.shape[axis]
    if any(extent < -1 for extent in shape) or shape.count(-1) > 1:
        raise node.bad_shape(f"{list(wanted)} is no shape")
    if -1 in shape:
        known = math.prod(extent for extent in shape if extent != -1)
        if known == 0 or data.type.size % known:
            raise node.bad_shape(f"{data.type} does not fit the shape {list(wanted)}")
        shape[shape.index(-1)] = data.type.size // known
    if math.prod(shape) != data.type.size:
        raise node.bad_shape(f"{data.type} does not fit the shape {list(wanted)}")
    return graph.reshape(data, tuple(shape))


@converter("Flatten", 1, 9, 11, 13, 21, 23, 24, 25)
def flatten(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = node.input(0)
    axis = node.axis(node.integer("axis", 1), data.rank, end=True)
    shape = (math.prod(data.shape[:axis]), math.prod(data.shape[axis:]))
    return graph.reshape(data, shape)


@converter("Squeeze", 1, 11, *_REDEFINED)
def squeeze(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, axes = node.input(0), node.given_integers("axes", 1, "the list of axes")
    if axes is None:
        dropped = tuple(axis for axis, extent in enumerate(data.true_shape) if extent == 1)
        _refuse_open_ranks(node, data, graph)
    else:
        dropped = node.axes(axes, data.rank)
    for axis in dropped:
        if data.shape[axis] != 1:
            raise _not_one(node, data, axis)
    shape = tuple(extent for axis, extent in enumerate(data.shape) if axis not in dropped)
    return graph.reshape(data, shape)


def _refuse_open_ranks(node: OnnxNode, data: Value, graph: GraphBuilder) -> None:
    """Refuse runs in which a size that the graph computes is 1, so that an axis more would go.

    Raises ShapeError where a size of inputs says how many axes are left.
    """
    for axis, size in enumerate(data.true_shape):
        low, high = bounds_of(size)
        if not isinstance(size, int) and low <= 1 <= high:
            if symbols_of(size) & graph.computed_symbols:
                is_one = graph.emit("equal", graph.size(size), graph.size(1))
                reason = f"axis {axis} of what {node.label} squeezes must not have the size 1"
                graph.require(is_one, SIZES, reason)
                continue
            error = node.bad_shape(
                f"the rank of its result depends on axis {axis}, {size}, which may be 1 "
                f"({low}..{high})"
            )
            raise ShapeError(error.message, hint=_hint_of_one(size))


def _not_one(node: OnnxNode, data: Value, axis: int) -> ShapeError:
    """What is wrong with an axis to be squeezed that is longer than 1, or may be."""
    size = data.true_shape[axis]
    low, high = bounds_of(size)
    if isinstance(size, int) or not low <= 1 <= high:
        return node.bad_shape(f"axis {axis} of {data.type} is not 1")
    error = node.bad_shape(f"axis {axis}, {size}, is not always 1 ({low}..{high})")
    return ShapeError(error.message, hint=_hint_of_one(size))


def _hint_of_one(size: Dimension) -> str:
    """How to build a model in which this size is 1 in some programs, and in the others not."""
    symbol = size.symbol if isinstance(size, Size) else None
    if symbol is not None:
        parts = [(low, high) for low, high in ((0, 0), (1, 1), (2, symbol.high)) if low <= high]
        listed = ranges_text(parts[symbol.low :])
        return f"give its sizes apart, for a program each: {symbol.name}:{listed} in --shape"
    names = " and ".join(sorted(str(symbol) for symbol in symbols_of(size)))
    return (
        f"give sizes of {names} apart with which it is 1, for a program each: values or ranges "
        "in --shape (batch:1|2..8)"
    )


@converter("Unsqueeze", 1, 11, *_REDEFINED)
def unsqueeze(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, axes = node.input(0), node.given_integers("axes", 1, "the list of axes")
    if axes is None:
        raise node.invalid("the list of axes is missing")
    rank = data.rank + len(axes)
    added = set(node.axes(axes, rank))
    rest = iter(data.shape)
    shape = tuple(1 if axis in added else next(rest) for axis in range(rank))
    return graph.reshape(data, shape)


@converter("Transpose", 1, *_REDEFINED)
def transpose(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = node.input(0)
    perm = node.integers("perm", range(data.rank - 1, -1, -1))
    if sorted(perm) != list(range(data.rank)):
        raise node.bad_shape(f"perm {list(perm)} is no permutation of the axes of {data.type}")
    return graph.transpose(data, perm)


@converter("Concat", 1, 4, 11, 13)
def concat(node: OnnxNode, graph: GraphBuilder) -> Value:
    values = node.present_inputs()
    default = 1 if node.version == 1 else None
    axis = node.axis(node.integer("axis", default), values[0].rank)
    filled = [value for value in values if 0 not in value.shape]
    return graph.concat(filled or values, axis)


@converter("Split", 1, 2, 11, 13, 18)
def split(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """One slice per part; without sizes the parts are equal, the last one may be smaller."""
    if is_sized(node, 1):
        return sized_split(node, graph)
    data, sizes = node.input(0), node.given_integers("split", 1, "the sizes of the parts")
    axis = node.axis(node.integer("axis", 0), data.rank)
    extent, parts = data.shape[axis], len(node.outputs)
    if node.has("num_outputs") and node.integer("num_outputs") != parts:
        raise node.invalid(f"num_outputs is not the number of outputs, {parts}")
    if sizes is None:
        size = -(-extent // parts)
        sizes = tuple(max(min(size, extent - part * size), 0) for part in range(parts))
    if len(sizes) != parts or sum(sizes) != extent or any(size < 0 for size in sizes):
        raise node.bad_shape(f"axis {axis} of {data.type} does not split into {list(sizes)}")
    results: list[Value] = []
    start = 0
    for position, size in enumerate(sizes):
        if node.wants(position):
            shape = (*data.shape[:axis], size, *data.shape[axis + 1 :])
            part = graph.part(data, axis, start, size) if size else _empty(shape, data, graph)
            results.append(part)
        else:
            results.append(data)
        start += size
    return results


@converter("Slice", 1, 10, 11, 13)
def slice_(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Starts, ends, axes and steps were attributes in version 1, and steps only ones."""
    if is_sized(node, 1, 2):
        return sized_slice(node, graph)
    starts, ends, axes, steps = (
        node.given_integers(name, position, f"the list of {name}")
        for position, name in enumerate(("starts", "ends", "axes", "steps"), start=1)
    )
    starts, ends = starts or (), ends or ()
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    data = node.input(0)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.bad_shape("starts, ends, axes and steps differ in length")
    node.axes(axes, data.rank)
    begin, stride, shape = [0] * data.rank, [1] * data.rank, list(data.shape)
    picked = [slice(None)] * data.rank
    for start, end, given, step in zip(starts, ends, axes, steps, strict=True):
        axis = node.axis(given, data.rank)
        if step == 0:
            raise node.invalid("a step is 0")
        chosen = _chosen(start, end, step, data.shape[axis])
        shape[axis] = len(chosen)
        picked[axis] = _python_slice(chosen)
        begin[axis] = chosen.start if chosen else 0
        stride[axis] = step if len(chosen) > 1 else 1
    if tuple(shape) == data.shape and all(step == 1 for step in stride):
        return data
    if data.array is not None:
        return graph.constant(data.array[tuple(picked)])
    if 0 in shape:
        return _empty(tuple(shape), data, graph)
    return graph.emit("slice", data, starts=tuple(begin), steps=tuple(stride), shape=tuple(shape))


def _chosen(start: int, end: int, step: int, extent: int) -> range:
    """The positions of a slice: negative bounds count from the end, and all are clamped.

    Unlike in Python, a backward slice that starts before the axis begins at its first element.
    """
    start = start + extent if start < 0 else start
    end = end + extent if end < 0 else end
    if step > 0:
        return range(min(max(start, 0), extent), min(max(end, 0), extent), step)
    return range(min(max(start, 0), extent - 1), min(max(end, -1), extent - 1), step)


def _python_slice(chosen: range) -> slice:
    """The Python slice that picks these positions."""
    if not chosen:
        return slice(0, 0)
    stop = chosen[-1] + (1 if chosen.step > 0 else -1)
    return slice(chosen[0], None if stop < 0 else stop, chosen.step)


def _empty(shape: tuple[int, ...], data: Value, graph: GraphBuilder) -> Value:
    """A tensor without elements, whose contents are known; Concat leaves it out."""
    return graph.constant(np.empty(shape, data.dtype.numpy))


@converter("Expand", 8, 13)
def expand(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Broadcasting in both directions: an extent of 1 in the shape keeps the data's."""
    if is_sized(node, 1):
        return sized_expand(node.input(0), node.sizes(1, "the shape"), node, graph)
    data, wanted = node.input(0), node.constant_integers(1, "the shape")
    try:
        shape = broadcast_shapes(data.shape, wanted)
    except ShapeError as error:
        raise node.bad_shape(f"{data.type} does not expand to {list(wanted)}") from error
    if data.array is not None and math.prod(shape) <= 4096:
        return graph.constant(np.broadcast_to(data.array, shape))
    return data if shape == data.shape else graph.emit("expand", data, shape=shape)


@converter("Tile", 1, 6, 13)
def tile(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Version 1 repeats a single axis."""
    if node.version > 1 and is_sized(node, 1):
        return sized_tile(node, graph)
    data = node.input(0)
    if node.version == 1:
        tiles = int(node.constant(1, "the number of tiles").reshape(-1)[0])
        axis = node.axis(int(node.constant(2, "the axis").reshape(-1)[0]), data.rank)
        repeats = tuple(tiles if other == axis else 1 for other in range(data.rank))
    else:
        repeats = node.constant_integers(1, "the list of repeats")
    if len(repeats) != data.rank or any(count < 0 for count in repeats):
        raise node.bad_shape(f"repeats {list(repeats)} do not fit {data.type}")
    if data.array is not None and data.type.size * math.prod(repeats) <= 4096:
        return graph.constant(np.tile(data.array, repeats))
    return graph.emit("tile", data, repeats=repeats)


@converter("Trilu", 14)
def trilu(node: OnnxNode, graph: GraphBuilder) -> Value:
    data = node.input(0)
    k = 0 if node.optional(1) is None else node.constant_integer(1, "the diagonal k")
    return graph.emit("trilu", data, upper=bool(node.integer("upper", 1)), k=k)


@converter("DepthToSpace", 1, 11, 13, 28)
def depth_to_space(node: OnnxNode, graph: GraphBuilder) -> Value:
    """[N, b b C, H, W] -> [N, C, H b, W b]; in mode CRD the block is the inner part of C."""
    data, block = node.input(0), node.integer("blocksize")
    mode = node.choice("mode", "DCR", ("DCR", "CRD"))
    if data.rank != 4 or block < 1 or data.shape[1] % (block * block):
        raise node.bad_shape(f"{data.type} has no blocks of {block}")
    n, c, h, w = data.shape
    c //= block * block
    if mode == "DCR":
        shape, perm = (n, block, block, c, h, w), (0, 3, 4, 1, 5, 2)
    else:
        shape, perm = (n, c, block, block, h, w), (0, 1, 4, 2, 5, 3)
    moved = graph.emit("transpose", graph.reshape(data, shape), perm=perm)
    return graph.reshape(moved, (n, c, h * block, w * block))


@converter("SpaceToDepth", 1, 13, 28)
def space_to_depth(node: OnnxNode, graph: GraphBuilder) -> Value:
    """[N, C, H b, W b] -> [N, b b C, H, W]."""
    data, block = node.input(0), node.integer("blocksize")
    mode = node.choice("mode", "DCR", ("DCR", "CRD"))
    sizes = data.true_shape
    if (
        data.rank != 4
        or block < 1
        or any(isinstance(size, int) and size % block for size in sizes[2:])
    ):
        raise node.bad_shape(f"{data.type} has no blocks of {block}")
    for size in sizes[2:]:
        graph.run_time.require_equal(size % block, 0, f"node {graph.source!r}")
    n, c, h, w = sizes[0], sizes[1], divide(sizes[2], block), divide(sizes[3], block)
    split = under_shape(data, (n, c, h, block, w, block), graph)
    perm = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = graph.emit("transpose", split, perm=perm)
    return under_shape(moved, (n, c * block * block, h, w), graph)
