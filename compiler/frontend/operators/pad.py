"""Pads and crops of fixed sizes, and slices, pads and diagonals at computed places."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tunefarm.compiler.frontend.converter import converter, dynamic_operand
from tunefarm.compiler.frontend.data_sizes import all_there
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers, integers, vector
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import in_one_piece, pad_axis, taken
from tunefarm.compiler.frontend.settle import bounded, declared, expect_constant, require, sized
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import (
    Dimension,
    Size,
    Symbol,
    bounds_of,
    divide,
    greater,
    product_of,
    static_shape,
)

# --- Padding -------------------------------------------------------------------------------------


_MODES = ("constant", "reflect", "edge", "wrap")


@converter("Pad", 1, 2)
def pad_by_attributes(node: OnnxNode, graph: GraphBuilder) -> Value:
    pads = node.integers("paddings" if node.version == 1 else "pads")
    fill = graph.scalar(node.floating("value", 0.0), node.input(0).dtype)
    return _pad(node, node.input(0), pads, fill, graph)


@converter("Pad", 11, 13, 18, 19, 21, 23, 24, 25)
def pad(node: OnnxNode, graph: GraphBuilder) -> Value:
    """`axes` names the axes that `pads` is for; negative pads crop."""
    data = node.input(0)
    if node.input(1).sizes is not None:
        return _sized_pad(node, data, graph)
    given, axes = node.constant_integers(1, "the list of pads"), _pad_axes(node, data)
    if len(given) != 2 * len(axes):
        raise node.bad_shape(f"{len(given)} pads do not fit {len(axes)} axes")
    pads = [0] * (2 * data.rank)
    for position, axis in enumerate(axes):
        pads[axis] = given[position]
        pads[data.rank + axis] = given[len(axes) + position]
    return _pad(node, data, tuple(pads), node.optional(2), graph)


def _pad_axes(node: OnnxNode, data: Value) -> tuple[int, ...]:
    """The axes that the pads are for: all where none are listed."""
    if node.optional(3) is None:
        return tuple(range(data.rank))
    listed = node.constant_integers(3, "the list of axes")
    node.axes(listed, data.rank)
    return tuple(node.axis(axis, data.rank) for axis in listed)


def _sized_pad(node: OnnxNode, data: Value, graph: GraphBuilder) -> Value:
    """Pads of which some are dynamic."""
    mode = node.choice("mode", "constant", _MODES)
    pads, axes = node.sizes(1, "the list of pads"), _pad_axes(node, data)
    if len(pads) != 2 * len(axes):
        raise node.bad_shape(f"{len(pads)} pads do not fit {len(axes)} axes")
    fill = node.optional(2)
    content = graph.scalar(0, data.dtype) if fill is None else fill
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        if begin != 0 or end != 0:
            data = pad_axis(data, axis, (begin, end), mode, content, graph)
    return data


def _pad(
    node: OnnxNode, data: Value, pads: tuple[int, ...], fill: Value | None, graph: GraphBuilder
) -> Value:
    mode = node.choice("mode", "constant", _MODES)
    if len(pads) != 2 * data.rank:
        raise node.bad_shape(f"{len(pads)} pads do not fit {data.type}")
    if not any(pads):
        return data
    if not data.type.size and mode == "constant":
        ends = zip(data.shape, pads, pads[data.rank :], strict=False)
        shape = tuple(extent + begin + end for extent, begin, end in ends)
        value = graph.scalar(0, data.dtype) if fill is None else graph.reshape(fill, ())
        return graph.emit("expand", value, shape=shape)
    if mode in ("reflect", "wrap") and min(pads) < 0:
        data, pads = _cropped(node, data, pads, graph)
    if mode != "constant" or fill is None:
        return graph.emit("pad", data, pads=pads, mode=mode)
    if fill.type.size != 1:
        raise node.bad_shape(f"the value must be a scalar, not {fill.type}")
    if fill.array is not None:
        number = fill.array.reshape(-1)[0].item()
        if math.isfinite(number) and float(number) == number:
            return graph.emit("pad", data, pads=pads, mode=mode, value=float(number))
    return graph.emit("pad", data, graph.reshape(fill, ()), pads=pads, mode=mode)


def _cropped(
    node: OnnxNode, data: Value, pads: tuple[int, ...], graph: GraphBuilder
) -> tuple[Value, tuple[int, ...]]:
    """Negative pads applied first, so that only what is left is mirrored; the other pads."""
    cut = [max(-pad, 0) for pad in pads]
    begins, ends = cut[: data.rank], cut[data.rank :]
    shape = tuple(
        extent - begin - end for extent, begin, end in zip(data.shape, begins, ends, strict=True)
    )
    if any(extent < 1 for extent in shape):
        raise node.bad_shape(f"pads {list(pads)} leave nothing of {data.type}")
    cropped = graph.emit("slice", data, starts=tuple(begins), steps=(1,) * data.rank, shape=shape)
    return cropped, tuple(max(pad, 0) for pad in pads)


# --- CenterCropPad where sizes, or those that are wanted, are dynamic ----------------------------


@dynamic_operand("CenterCropPad", at=(1,), sized=True)
def center_crop_pad(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Of an axis of n, t wanted: (t - n) // 2 zeros before it, or (n - t) // 2 elements fewer."""
    data, axes = node.input(0), _axes(node)
    if node.is_computed(1):
        node = node.with_constants({1: _settled_shape(node, graph, axes)})
    wanted = node.sizes(1, "the shape")
    if len(wanted) != len(axes):
        raise node.bad_shape(f"{len(wanted)} sizes do not fit {len(axes)} axes of {data.type}")
    if data.padded is None and static_shape(wanted) is not None:
        return node
    for axis, size in zip(axes, wanted, strict=True):
        missing = size - data.true_shape[axis]
        begin = divide(greater(missing, 0), 2) - divide(greater(-missing, 0), 2)
        if missing != 0:
            data = pad_axis(data, axis, (begin, missing - begin), "constant", 0, graph)
    return data


def _axes(node: OnnxNode) -> list[int]:
    rank = node.input(0).rank
    return [node.axis(axis, rank) for axis in node.integers("axes", tuple(range(rank)))]


def _settled_shape(node: OnnxNode, graph: GraphBuilder, axes: list[int]) -> Value:
    """The sizes that are wanted where the graph computes them: those of the declared result."""
    declared = node.declared_sizes()
    if declared is None:
        raise node.not_settled(1, "the shape")
    wanted: list[Dimension] = [declared[axis] for axis in axes]
    numbers = static_shape(wanted)
    if numbers is None:
        return sized(node, graph, 1, wanted, "the shape")
    return expect_constant(node, graph, 1, numbers, "the shape")


# --- Places that are computed: starts and steps of Slice, pads, Trilu's diagonal -----------------
#
# Each axis is read by a gather at computed indices, which stay inside of the tensor whatever the
# operands hold; a check at run time asks for what gives the declared shape.


_FAR = 2**40
"""Farther than any extent, and so near that sums of it do not overflow."""


@dynamic_operand("Slice", at=(1, 2, 3, 4), padded=True)
def slice_(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Of a shape that is not declared, as much as the axes have at most, with a computed size."""
    data = node.input(0)
    at = next(position for position in (2, 1, 4, 3) if node.is_computed(position))
    meaning = f"the list of {('starts', 'ends', 'axes', 'steps')[at - 1]}"
    operands = [node.optional(position) for position in range(5)]
    is_sized = any(value is not None and value.padded is not None for value in operands)
    if node.declared_shape() is None or is_sized:
        return _counted_slice(node, graph)
    wanted = declared(node, at, meaning)
    starts, ends = (vector(node.input(position), graph) for position in (1, 2))
    count = starts.shape[0]
    steps = vector(node.input(4), graph) if node.optional(4) else starts.like([1] * count)
    sizes = {count, ends.shape[0], steps.shape[0]}
    axes = _Axes.of(node, graph, 3, count, data.rank)
    if len(wanted) != data.rank or len(sizes) != 1:
        raise node.bad_shape(f"{count} starts do not slice {data.type} to {list(wanted)}")
    extents = axes.spread(starts.like(data.shape))
    first, lengths, steps = _bounds(starts, ends, steps, extents)
    fits = axes.gathered(lengths, starts.like(data.shape)).equals(starts.like(wanted))
    require(node, graph, at, fits & axes.valid, f"{meaning} must give the shape {list(wanted)}")
    if 0 in wanted:
        return graph.constant(np.empty(wanted, data.dtype.numpy))
    first = axes.gathered(first, first.like([0] * data.rank))
    steps = axes.gathered(steps, steps.like([1] * data.rank))
    result = data
    for axis in axes.candidates:
        places = integers(range(wanted[axis]), graph) * steps.part(axis, 1) + first.part(axis, 1)
        result = _read(result, axis, places, data.shape[axis], graph)
    return result


def _counted_slice(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Parts of axes whose sizes are computed: the rest of each axis is padding."""
    result = node.input(0)
    starts, ends = (_entries(node.input(position), "zero", graph) for position in (1, 2))
    count = starts.shape[0]
    steps = starts.like([1] * count)
    if node.optional(4) is not None:
        steps = _entries(node.input(4), "one", graph)
    axes = _Axes.of(node, graph, 3, count, result.rank, node.input(1))
    if {ends.shape[0], steps.shape[0]} != {count}:
        raise node.bad_shape("starts, ends, axes and steps differ in length")
    sizes = Numbers(graph.size_vector(result.true_shape), graph)
    first, counts, steps = _bounds(starts, ends, steps, axes.sizes(result.true_shape))
    if node.is_computed(3) or node.input(1).padded is not None:
        reason = f"the axes must be of {result.rank}, none of them twice"
        require(node, graph, 3 if node.is_computed(3) else 1, axes.valid, reason)
    if node.is_computed(4):
        require(node, graph, 4, counts >= 0, "no step may be 0")
    counts_by_axis = axes.by_axis(counts.at_least(0), sizes)
    first_by_axis = axes.by_axis(first, first.like([0] * result.rank))
    steps_by_axis = axes.by_axis(steps, first.like([1] * result.rank))
    for axis in axes.candidates:
        result = in_one_piece(result, axis, graph)
        extent, step = result.shape[axis], steps_by_axis[axis].value.array
        most = extent if step is None else -(-extent // max(abs(int(step[0])), 1))
        size = Symbol.of(graph.unused_symbol(f"{node.outputs[0]}_{axis}"), 0, most)
        if isinstance(size, Size) and size.symbol is not None:
            graph.computed_symbol(size.symbol, counts_by_axis[axis].reshape().value)
        places = integers(range(most), graph) * steps_by_axis[axis] + first_by_axis[axis]
        places = places.at_least(0).at_most(extent - 1)
        result = taken(result, axis, places.value, ((size, most),), graph)
    return result


def _entries(operand: Value, content: str, graph: GraphBuilder) -> Numbers:
    """The entries of a list, with `content` behind those that are there."""
    return Numbers(
        all_there(graph.padded.filled(vector(operand, graph).value, 0, content), graph), graph
    )


def _bounds(
    starts: Numbers, ends: Numbers, steps: Numbers, extents: Numbers
) -> tuple[Numbers, Numbers, Numbers]:
    """The first places, the numbers of elements (-1 where a step is 0) and the steps."""
    starts = (starts < 0).choose(starts.at_least(-_FAR) + extents, starts)
    ends = (ends < 0).choose(ends.at_least(-_FAR) + extents, ends)
    backward = steps < 0
    most = backward.choose(extents - 1, extents)
    starts = starts.at_least(0).at_most(most)
    ends = ends.at_least(backward.choose(extents.like(-1), 0)).at_most(most)
    steps = steps.at_least(-_FAR).at_most(_FAR)
    distance = backward.choose(starts - ends, ends - starts).at_least(0)
    size = steps.apply("abs").at_least(1)
    counts = (distance + size - 1) / size
    return starts, steps.equals(0).choose(counts.like(-1), counts), steps


class _Axes:
    """Axes that lists of an entry for each are about; `candidates` are all that may be among them.

    `valid` is whether they are axes, none of them twice.
    """

    def __init__(self, axes: Numbers, rank: int, count: Dimension) -> None:
        normal = (axes < 0).choose(axes + rank, axes)
        places = integers(range(rank), axes.graph).reshape(1, rank)
        self._normal = normal
        self._rank = rank
        self._is = normal.reshape(axes.shape[0], 1).equals(places).cast(DType.I64)
        self._named = self._is.sum(0)
        array = self._named.value.array
        self.candidates = list(range(rank)) if array is None else np.flatnonzero(array).tolist()
        listed = Numbers(axes.graph.size(count), axes.graph)
        self.valid = self._named.sum(0).equals(listed) & (self._named < 2)

    @classmethod
    def of(
        cls,
        node: OnnxNode,
        graph: GraphBuilder,
        position: int,
        count: int,
        rank: int,
        entries: Value | None = None,
    ) -> _Axes:
        """Those of an operand; the first ones if it is absent. Raises `ShapeError` for others.

        Of a list with `entries` of a dynamic size there are as many.
        """
        size: Dimension = count if entries is None else product_of(entries.true_shape)
        if node.optional(position) is None:
            given = graph.integers(range(count))
            if entries is not None:
                given = graph.padded.begins(given, (((size, count),),))
            axes = _entries(given, "lowest", graph)
        else:
            axes = _entries(node.input(position), "lowest", graph)
        if axes.value.array is not None:
            node.axes([int(axis) for axis in axes.value.array], rank)
        if axes.shape != (count,) or count < 1 or bounds_of(size)[0] > rank:
            raise node.bad_shape(f"{axes.shape[0]} axes do not fit {size} of {rank}")
        return cls(axes, rank, size)

    def sizes(self, shape: Sequence[Dimension]) -> Numbers:
        """The sizes of the axes that are listed."""
        graph, normal = self._normal.graph, self._normal.value.array
        if normal is not None:
            return Numbers(graph.size_vector([shape[axis] for axis in normal]), graph)
        return self.spread(Numbers(graph.size_vector(shape), graph))

    def by_axis(self, listed: Numbers, others: Numbers) -> dict[int, Numbers]:
        """What is listed for each of the candidates; `others` where one is not listed."""
        normal = self._normal.value.array
        if normal is not None:
            return {int(axis): listed.part(entry, 1) for entry, axis in enumerate(normal)}
        every = self.gathered(listed, others)
        return {axis: every.part(axis, 1) for axis in self.candidates}

    def spread(self, every: Numbers) -> Numbers:
        """What a vector of all axes has for those that are listed."""
        return (self._is * every.reshape(1, self._rank)).sum(1)

    def gathered(self, listed: Numbers, others: Numbers) -> Numbers:
        """What is listed, put where its axis is; `others` are for axes that are not."""
        mine = (self._is * listed.reshape(listed.shape[0], 1)).sum(0)
        return self._named.equals(0).choose(others, mine)


def _read(data: Value, axis: int, places: Numbers, extent: int, graph: GraphBuilder) -> Value:
    """The data at places of an axis, of which those outside are moved inside."""
    inside = places.at_least(0).at_most(extent - 1)
    return graph.emit("gather", data, inside.value, axis=axis)


@dynamic_operand("Pad", at=(1, 3), padded=True)
def computed_pad(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Pads that give the declared shape, or none below 0 where it has dynamic sizes."""
    data = node.input(0)
    at = next(position for position in (1, 3) if node.is_computed(position))
    meaning = "the list of pads" if at == 1 else "the list of axes"
    is_sized = data.padded is not None
    if at == 1 and (is_sized or node.declared_shape() is None):
        listed, sizes = _pad_axes(node, data), node.declared_sizes()
        most = None if sizes is None else [bounds_of(sizes[axis])[1] for axis in listed] * 2
        return bounded(node, graph, 1, meaning, low=0, most=most)
    if is_sized:
        raise node.not_settled(at, meaning)
    wanted, given = declared(node, at, meaning), vector(node.input(1), graph)
    mode = node.choice("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    count = given.shape[0] // 2
    axes = _Axes.of(node, graph, 3, count, data.rank)
    if len(wanted) != data.rank or given.shape[0] != 2 * count:
        raise node.bad_shape(f"{given.shape[0]} pads do not fit {data.type} and {list(wanted)}")
    zeros = given.like([0] * data.rank)
    begins, ends = (
        axes.gathered(given.part(start, count).at_least(-_FAR).at_most(_FAR), zeros)
        for start in (0, count)
    )
    totals = [extent - old for extent, old in zip(wanted, data.shape, strict=True)]
    right = (begins + ends).equals(given.like(totals)) & axes.valid
    if mode in ("reflect", "wrap"):
        right = right & (begins >= 0) & (ends >= 0)
    require(node, graph, at, right, f"{meaning} must give the shape {list(wanted)}")
    inside: list[Value] = []
    result = data
    for axis in axes.candidates:
        old = data.shape[axis]
        places = integers(range(wanted[axis]), graph) - begins.part(axis, 1)
        if mode == "constant":
            kept = (places >= 0) & (places < old)
            inside.append(kept.reshape(wanted[axis], *_ones(data, axis)).value)
        elif mode != "edge":
            places = _folded(places, old, mode)
        result = _read(result, axis, places, old, graph)
    if not inside:
        return result
    fill = node.optional(2) or graph.scalar(0, data.dtype)
    outside = graph.reshape(fill, ())
    return graph.emit("where", graph.fold("and", inside), result, outside)


def _ones(data: Value, axis: int) -> Sequence[int]:
    return (1,) * (data.rank - axis - 1)


def _folded(places: Numbers, extent: int, mode: str) -> Numbers:
    """Places that may lie outside of an axis, repeated or mirrored into it."""
    if mode == "wrap" or extent == 1:
        return places % extent
    period = 2 * (extent - 1)
    wrapped = places % period
    return wrapped.at_most(wrapped.like(period) - wrapped)


@dynamic_operand("Trilu", at=(1,), sized=True)
def trilu(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Column - row >= k of the upper triangle, <= k of the lower one."""
    data, by = node.input(0), node.optional(1)
    if by is None or by.array is not None:
        return node
    if data.rank < 2 or by.type.size != 1:
        raise node.bad_shape(f"{data.type} is no matrix, or k no number")
    data = in_one_piece(in_one_piece(data, data.rank - 2, graph), data.rank - 1, graph)
    rows, columns = data.shape[-2:]
    k = vector(graph.readable(by), graph).at_least(-_FAR).at_most(_FAR)
    row = integers(range(rows), graph).reshape(rows, 1)
    column = integers(range(columns), graph)
    diagonal = row + k
    kept = column >= diagonal if node.integer("upper", 1) else diagonal >= column
    there = graph.with_dims(kept.value, data.dims[-2:])
    return graph.emit("where", there, data, graph.scalar(0, data.dtype))
