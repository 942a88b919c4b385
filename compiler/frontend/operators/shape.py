"""Operators that change the shape or move whole elements, of static, dynamic and computed sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.converter import converter, dynamic_operand
from tunefarm.compiler.frontend.data_sizes import positions
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers, vector
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import (
    Window,
    compacted,
    extent_there,
    rearranged,
    taken,
    window,
    windows,
)
from tunefarm.compiler.frontend.operators.reshape_sizes import left_of_reshape
from tunefarm.compiler.frontend.settle import (
    bounded,
    declared,
    expect_constant,
    has_dynamic_sizes,
    require,
    shape_text,
    sized,
)
from tunefarm.compiler.operators.rules import broadcast_shapes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import ONE, Axis, extent_of, joined, size_of
from tunefarm.compiler.types.signature import SIZES, ranges_text
from tunefarm.compiler.types.sizes import (
    Dimension,
    Size,
    bounds_of,
    divide,
    greater,
    smaller,
    static_shape,
    symbols_of,
)

# --- Reshape, Expand and Tile with dynamic shapes, and what a Slice cuts --------------------------


def is_sized(node: OnnxNode, *positions: int) -> bool:
    """Whether the data is padded, or one of these operands is computed of run-time sizes."""
    given = (node.optional(position) for position in positions)
    return node.input(0).padded is not None or any(
        value is not None and value.sizes is not None for value in given
    )


def sized_reshape(node: OnnxNode, graph: GraphBuilder) -> Value:
    """0 keeps a size (unless `allowzero`), one -1 takes what is left."""
    data, shape = node.input(0), _kept_shape(node)
    free = [axis for axis, size in enumerate(shape) if size == -1]
    if len(free) > 1:
        raise node.bad_shape(f"{shape_text(shape)} is no shape")
    if free:
        left = left_of_reshape(data, shape, graph)
        if left is None:
            raise graph.refusal(
                f"{shape_text(data.true_shape)} under the shape {shape_text(shape)} leaves a size "
                "that is not known",
                [data],
                sizes=shape,
            )
        shape[free[0]] = left
    return under_shape(data, [extent_there(size, graph) for size in shape], graph)


def _kept_shape(node: OnnxNode) -> list[Dimension]:
    """The shape that is asked for, with the data's sizes where it keeps them."""
    data, shape = node.input(0), list(_given(node, "shape", 1, "the shape") or ())
    for axis, size in enumerate(shape):
        if isinstance(size, int) and size == 0 and not node.integer("allowzero", 0):
            if axis >= data.rank:
                raise node.bad_shape(
                    f"the shape {shape_text(shape)} keeps axis {axis} of {data.type}"
                )
            shape[axis] = data.true_shape[axis]
    return shape


def under_shape(data: Value, shape: Sequence[Dimension], graph: GraphBuilder) -> Value:
    """The value under another true shape, its elements moved if they lie otherwise."""
    viewed = graph.padded.view(data, shape)
    return rearranged(data, shape, graph) if viewed is None else viewed


def sized_expand(
    data: Value, shape: Sequence[Dimension], node: OnnxNode, graph: GraphBuilder
) -> Value:
    """Broadcasting in both directions: a size of 1 in the shape keeps the data's."""
    data = _stretched(data, shape, graph)
    rank = max(len(shape), data.rank)
    given: list[Axis] = [ONE] * (rank - data.rank) + list(data.dims)
    there = [extent_there(size, graph) for size in shape]
    wanted: list[Dimension] = [*(1,) * (rank - len(shape)), *there]
    axes: list[Axis] = []
    for axis, size in zip(given, wanted, strict=True):
        if size == 1 or size_of(axis) == size:
            axes.append(axis)
        elif axis == ONE:
            axes.append(((size, bounds_of(size)[1]),))
        else:
            graph.run_time.require_equal(size_of(axis), size, f"node {graph.source!r}")
            axes.append(axis)
    extents = tuple(map(extent_of, axes))
    if 0 in extents:
        empty = graph.constant(np.empty(extents, data.dtype.numpy))
        return graph.with_dims(empty, tuple(axes))
    readable = graph.readable(data)
    plain = graph.with_dims(readable, None)
    same = extents == plain.shape
    expanded = plain if same else graph.emit("expand", plain, shape=extents)
    if same and plain.array is not None:
        expanded = graph.emit("identity", plain)  # padding makes it no constant any more
    result = graph.with_dims(expanded, tuple(axes))
    if same:
        return result
    graph.padded.expands(result, readable)
    skipped = rank - data.rank
    kept = (
        axis - skipped if axis >= skipped and given[axis] == axes[axis] else None
        for axis in range(rank)
    )
    again = partial(_expanded, shape=extents, axes=tuple(axes), graph=graph)
    return graph.padded.moved(result, readable, tuple(kept), again)


def _stretched(data: Value, shape: Sequence[Dimension], graph: GraphBuilder) -> Value:
    """The data with those axes repeated that have one element in some runs and all in others.

    An axis of n elements that is to have n + m, as a mask [tokens, tokens] that expands to past
    and tokens: each run checks that n is 1 or m is 0.
    """
    for axis, size in enumerate(shape, data.rank - len(shape)):
        now = size_of(data.dims[axis]) if axis >= 0 else 1
        more = size - now
        is_part = isinstance(now, Size) and symbols_of(now) <= symbols_of(size)
        if not is_part or bounds_of(now)[0] != 1 or bounds_of(more)[0] < 0:
            continue
        if bounds_of(more)[1] > 0:
            graph.run_time.require_equal((now - 1) * more, 0, f"node {graph.source!r}")
            most = bounds_of(size)[1]
            places = graph.emit("min", positions(most, graph), graph.size(now - 1))
            data = taken(data, axis, places, ((size, most),), graph, there=True)
    return data


def _expanded(
    data: Value, shape: tuple[int, ...], axes: tuple[Axis, ...], graph: GraphBuilder
) -> Value:
    plain = graph.with_dims(data, None)
    return graph.with_dims(graph.emit("expand", plain, shape=shape), axes)


def _slices(node: OnnxNode) -> list[tuple[Dimension, Dimension, int, int]]:
    """Start, end, axis and step of each axis that is cut.

    They were attributes in version 1, and steps only ones.
    """
    starts, ends = (
        _given(node, name, at, f"the list of {name}") or ()
        for at, name in ((1, "starts"), (2, "ends"))
    )
    axes = node.given_integers("axes", 3, "the list of axes")
    steps = node.given_integers("steps", 4, "the list of steps")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.bad_shape("starts, ends, axes and steps differ in length")
    rank = node.input(0).rank
    node.axes(axes, rank)
    if 0 in steps:
        raise node.invalid("a step is 0")
    places = (node.axis(axis, rank) for axis in axes)
    return list(zip(starts, ends, places, steps, strict=True))


def _chosen(
    start: Dimension, end: Dimension, step: int, size: Dimension
) -> tuple[Dimension, Dimension]:
    """The first position of a slice and the number of positions: negative bounds count from the
    end, and all are clamped.

    Unlike in Python, a backward slice that starts before the axis begins at its first element.
    """
    start, end = _from_end(start, size), _from_end(end, size)
    if step > 0:
        start, end = _clamped(start, 0, size), _clamped(end, 0, size)
        length = end - start
    else:
        start, end = _clamped(start, 0, size - 1), _clamped(end, -1, size - 1)
        length = start - end
    count = -divide(-length, abs(step)) if abs(step) > 1 else length
    return start, greater(count, 0)


def _from_end(bound: Dimension, size: Dimension) -> Dimension:
    low, high = bounds_of(bound)
    if low >= 0:
        return bound
    is_negative = 1 if high < 0 else smaller(greater(-bound, 0), 1)  # 1 or 0 as the run says
    return bound + size * is_negative


def _clamped(bound: Dimension, low: Dimension, high: Dimension) -> Dimension:
    return smaller(greater(bound, low), high)


def sized_tile(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Axes of one element are expanded; others are repeated a number of times that is known."""
    data, repeats = node.input(0), _given(node, "", 1, "the list of repeats") or ()
    if len(repeats) != data.rank:
        raise node.bad_shape(f"repeats {shape_text(repeats)} do not fit {data.type}")
    if all(axis == ONE or count == 1 for axis, count in zip(data.dims, repeats, strict=True)):
        shape = [1 if axis != ONE else n for axis, n in zip(data.dims, repeats, strict=True)]
        return sized_expand(data, shape, node, graph)
    wide = data
    for axis, count in reversed(list(enumerate(repeats))):
        if count == 1:
            continue
        apart = graph.reshape(wide, (*wide.shape[:axis], 1, *wide.shape[axis:]))
        wanted: list[Dimension] = [1] * (data.rank + 1)
        wanted[axis] = count
        apart = sized_expand(apart, wanted, node, graph)
        merged = joined((*apart.dims[axis], *apart.dims[axis + 1]))
        flat = (*wide.shape[:axis], apart.shape[axis] * wide.shape[axis], *wide.shape[axis + 1 :])
        dims = (*wide.dims[:axis], merged, *wide.dims[axis + 1 :])
        plain = graph.with_dims(apart, None)
        wide = graph.with_dims(graph.reshape(plain, flat), dims)
    return wide


def _given(node: OnnxNode, name: str, position: int, meaning: str) -> tuple[Dimension, ...] | None:
    """A list that is an attribute in old versions, and an operand in new ones."""
    if name and node.has(name):
        return node.integers(name)
    return None if node.optional(position) is None else node.sizes(position, meaning)


_REDEFINED = (13, 21, 23, 24, 25)  # opsets that only added element types to the view operators


@converter("Reshape", 1, 5, 13, 14, 19, 21, 23, 24, 25)
def reshape(node: OnnxNode, graph: GraphBuilder) -> Value:
    """0 keeps the extent (unless `allowzero`), one -1 takes what is left."""
    if is_sized(node, 1):
        return sized_reshape(node, graph)
    data, wanted = node.input(0), list(static_shape(_kept_shape(node)) or ())
    shape = list(wanted)
    if any(extent < -1 for extent in shape) or shape.count(-1) > 1:
        raise node.bad_shape(f"{wanted} is no shape")
    if -1 in shape:
        known = math.prod(extent for extent in shape if extent != -1)
        if known == 0 or data.type.size % known:
            raise node.bad_shape(f"{data.type} does not fit the shape {wanted}")
        shape[shape.index(-1)] = data.type.size // known
    if math.prod(shape) != data.type.size:
        raise node.bad_shape(f"{data.type} does not fit the shape {wanted}")
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
        size = data.true_shape[axis]
        if data.shape[axis] != 1 or symbols_of(size) & graph.computed_symbols:
            data = _only_one(node, data, axis, graph)
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


def _only_one(node: OnnxNode, data: Value, axis: int, graph: GraphBuilder) -> Value:
    """The data with the one element of an axis, in runs in which that has one.

    Raises ShapeError where it never has, and where a size of inputs says how many it has.
    """
    size = data.true_shape[axis]
    low, high = bounds_of(size)
    if isinstance(size, int) or not low <= 1 <= high:
        raise node.bad_shape(f"axis {axis} of {data.type} is not 1")
    if symbols_of(size) & graph.computed_symbols:
        other = ~Numbers(graph.size(size), graph).equals(1)
        reason = f"axis {axis} of what {node.label} squeezes must have the size 1"
        graph.require(other.value, SIZES, reason)
        return window(data, axis, 0, 1, graph)
    error = node.bad_shape(f"axis {axis}, {size}, is not always 1 ({low}..{high})")
    raise ShapeError(error.message, hint=_hint_of_one(size))


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
    """One part per output; without sizes the parts are equal, the last one may be smaller."""
    data, sizes = node.input(0), _given(node, "split", 1, "the sizes of the parts")
    axis, parts = node.axis(node.integer("axis", 0), data.rank), len(node.outputs)
    if node.has("num_outputs") and node.integer("num_outputs") != parts:
        raise node.invalid(f"num_outputs is not the number of outputs, {parts}")
    size = size_of(data.dims[axis])
    if sizes is None:
        each = -divide(-size, parts)
        sizes = tuple(smaller(each, greater(size - each * part, 0)) for part in range(parts))
    rest = size
    for part in sizes:
        rest = rest - part
    refused = any(bounds_of(part)[1] < 0 for part in sizes) or len(sizes) != parts
    if refused or (isinstance(rest, int) and rest != 0):
        raise node.bad_shape(f"axis {axis} of {data.type} does not split into {shape_text(sizes)}")
    results: list[Value] = []
    start: Dimension = 0
    for position, part in enumerate(extent_there(part, graph) for part in sizes):
        wanted = node.wants(position)
        results.append(window(data, axis, start, part, graph) if wanted else data)
        start = start + part
    if start != size:
        graph.run_time.require_equal(start, size, f"node {graph.source!r}")
    return results


@converter("Slice", 1, 10, 11, 13)
def slice_(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Parts of axes; negative bounds count from the end, and all are clamped."""
    data = node.input(0)
    cuts = [
        Window(axis, *_chosen(start, end, step, size_of(data.dims[axis])), step)
        for start, end, axis, step in _slices(node)
    ]
    ends = static_shape([end for cut in cuts for end in (cut.start, cut.size)])
    is_known = data.array is not None and data.padded is None and ends is not None
    if data.array is None or not is_known or all(cut.is_whole(data) for cut in cuts):
        return windows(data, cuts, graph)
    places = [np.arange(extent) for extent in data.shape]
    for axis, start, count, step in cuts:
        places[axis] = bounds_of(start)[0] + step * np.arange(bounds_of(count)[0])
    return graph.constant(data.array[np.ix_(*places)])


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
    if shape == data.shape:
        return data
    result = graph.emit("expand", data, shape=shape)
    graph.padded.expands(result, data)
    return result


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


# Shapes, sizes and counts that are computed: the declared shape of the result settles them.


@dynamic_operand("Reshape", at=(1,), padded=True)
def computed_reshape(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """Each entry is the extent, 0 where the data has it, too, or -1, that once."""
    sizes = node.declared_sizes()
    if has_dynamic_sizes(sizes):
        return node.with_constants({1: sized(node, graph, 1, sizes, "the shape", inferred=True)})
    data, wanted = node.input(0), declared(node, 1, "the shape")
    if data.padded is not None:
        raise node.not_settled(1, "the shape")
    given = vector(node.input(1), graph)
    if given.shape != (len(wanted),):
        raise node.bad_shape(
            f"the shape has {given.shape[0]} entries, the declared result {wanted}"
        )
    if not wanted:
        return node.with_constants({1: graph.integers(())})
    left = given.equals(-1)
    right = given.equals(given.like(wanted)) | left
    if not node.integer("allowzero", 0):
        kept = [e == extent for e, extent in zip(wanted, data.shape, strict=False)]
        kept += [False] * (len(wanted) - len(kept))
        right = right | (given.equals(0) & Numbers(graph.constant(np.array(kept)), graph))
    right = right & (left.cast(DType.I64).sum(0) < 2)
    require(node, graph, 1, right, f"the shape must be {list(wanted)}")
    return node.with_constants({1: graph.integers(wanted)})


@dynamic_operand("Expand", at=(1,), padded=True)
def computed_expand(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """Each entry is the result's extent, or 1 where the data has that."""
    data, given = node.input(0), vector(node.input(1), graph)
    count, sizes = given.shape[0], node.declared_sizes()
    given_sizes: list[Dimension] = [*(1,) * (count - data.rank), *data.true_shape]
    if has_dynamic_sizes(sizes):
        given_sizes = [*(1,) * (len(sizes) - data.rank), *data.true_shape]
        ones = [old == new for old, new in zip(given_sizes, sizes, strict=True)][-count:]
        shape = sized(node, graph, 1, sizes[-count:], "the shape", ones=ones)
        return node.with_constants({1: shape})
    wanted = node.declared_shape()
    if wanted is None and 1 not in data.shape and count <= data.rank:
        wanted = data.shape
    if wanted is None or data.padded is not None:
        return bounded(node, graph, 1, "the shape", given_sizes[-count:])
    if len(wanted) != max(count, data.rank) or not _expands(data.shape, wanted):
        raise node.bad_shape(f"{data.type} does not expand to the declared {list(wanted)}")
    asked = wanted[len(wanted) - count :]
    there = (*(1,) * (len(wanted) - data.rank), *data.shape)[len(wanted) - count :]
    kept = np.array([old == new for old, new in zip(there, asked, strict=True)])
    right = given.equals(given.like(asked))
    right = right | (given.equals(1) & Numbers(graph.constant(kept), graph))
    require(node, graph, 1, right, f"the shape must be {list(asked)}")
    return node.with_constants({1: graph.integers(asked)})


def _expands(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    try:
        return broadcast_shapes(shape, wanted) == wanted
    except ShapeError:
        return False


@dynamic_operand("Tile", at=(1,), padded=True)
def computed_tile(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Repeats that give the declared shape."""
    if node.version == 1:
        raise node.not_settled(1, "the number of tiles")
    data, sizes = node.input(0), node.declared_sizes()
    if has_dynamic_sizes(sizes):
        return _tiled(node, graph, data, sizes)
    wanted = node.declared_shape()
    if wanted is None or data.padded is not None:
        return bounded(node, graph, 1, "the list of repeats")
    if len(wanted) != data.rank or any(e % old for e, old in zip(wanted, data.shape, strict=True)):
        raise node.bad_shape(f"{data.type} is not repeated to the declared {list(wanted)}")
    repeats = [extent // old for extent, old in zip(wanted, data.shape, strict=True)]
    return node.with_constants({1: expect_constant(node, graph, 1, repeats, "the list of repeats")})


def _tiled(node: OnnxNode, graph: GraphBuilder, data: Value, wanted: Sequence[Dimension]) -> Value:
    """The data again and again, as often as gives the declared shape."""
    repeats = vector(node.input(1), graph)
    if len(wanted) != data.rank or repeats.shape != (data.rank,):
        raise node.bad_shape(
            f"{data.type} is not repeated to the declared {list(map(str, wanted))}"
        )
    data = compacted(data, graph)
    there = data.true_shape
    shape = repeats * Numbers(graph.size_vector(there), graph)
    sized(node.with_constants({1: shape.value}), graph, 1, wanted, "the repeated shape")
    for axis, (old, new) in enumerate(zip(there, wanted, strict=True)):
        if old == new:
            continue
        most = bounds_of(new)[1]
        places = graph.emit("mod", positions(most, graph), graph.size(greater(old, 1)))
        data = taken(data, axis, places, ((new, most),), graph, there=True)
    return data


@dynamic_operand("Split", at=(1,))
def computed_split(node: OnnxNode, graph: GraphBuilder) -> OnnxNode:
    """One part may be what the others, whose shapes are declared, leave."""
    data = node.input(0)
    axis = node.axis(node.integer("axis", 0), data.rank)
    shapes = [node.declared_shape(part) for part in range(len(node.outputs))]
    sizes = [None if shape is None else shape[axis] for shape in shapes]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) - 1:
        raise node.not_settled(1, "the list of sizes")
    rest = data.shape[axis] - sum(known)
    wanted = [rest if size is None else size for size in sizes]
    return node.with_constants({1: expect_constant(node, graph, 1, wanted, "the list of sizes")})
