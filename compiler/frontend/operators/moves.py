"""Moves along dynamic axes, and elements that are looked up where they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.padded_values import PaddedForm, padded_form
from tunefarm.compiler.operators.shape import PAD_MODES
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import (
    Axis,
    Factor,
    PaddedShape,
    extent_of,
    is_unpadded,
    joined,
    size_of,
    true_shape,
    whole,
)
from tunefarm.compiler.types.sizes import Dimension, bounds_of, greater, product_of

# --- Shapes that padding does not lie in: elements are looked up where they are ------------------
#
# A reshape keeps the order of the elements that are there. Where it takes an axis with padding
# apart, or leaves padding inside of one, each element's number among those that are there says its
# place.


def rearranged(value: Value, shape: Sequence[Dimension], graph: GraphBuilder) -> Value:
    """The value under another true shape, copied; every axis has one factor then.

    As many elements must be there before as after: it is checked at run time where it is not known.
    """
    count = product_of(true_shape(value.dims))
    graph.run_time.require_equal(count, product_of(shape), f"node {graph.source!r}")
    behind = _common_end(value.dims, shape)
    end = value.dims[value.rank - behind :]
    before, after = value.dims[: value.rank - behind], shape[: len(shape) - behind]
    kept = _common(before, after)
    begin, rows = before[:kept], before[kept:]
    moved: PaddedShape = tuple(((size, bounds_of(size)[1]),) for size in after[kept:])
    plain = graph.with_dims(graph.readable(value), None)
    first, last = tuple(map(extent_of, begin)), tuple(map(extent_of, end))
    factors = joined(factor for axis in rows for factor in axis)
    if len(factors) == 2 and extent_of(factors) == prod(map(extent_of, moved)) and len(moved) == 1:
        (high, most_rows), (wide, most_columns) = factors
        vector, (number, columns) = graph.vector_of((high, wide))
        apart = graph.reshape(plain, (*first, most_rows, most_columns, *last))
        numbers = {"axis": kept, "rows": number, "columns": columns}
        result = graph.emit("merge_rows", apart, vector, **numbers)
        return graph.with_dims(result, (*begin, *moved, *end))
    places = _places(rows, moved, graph)
    flat = graph.reshape(plain, (prod(first), prod(map(extent_of, rows)), *last))
    picked = graph.emit("gather", flat, graph.reshape(places, (places.type.size,)), axis=1)
    result = graph.reshape(picked, (*first, *map(extent_of, moved), *last))
    return graph.with_dims(result, (*begin, *moved, *end))


def compacted(value: Value, graph: GraphBuilder) -> Value:
    """The value, none of whose axes has padding inside."""
    if all(len(axis) == 1 for axis in value.dims):
        return value
    return rearranged(value, value.true_shape, graph)


def in_one_piece(value: Value, axis: int, graph: GraphBuilder) -> Value:
    """The value, whose elements along an axis lie side by side: positions there count all."""
    return value if len(value.dims[axis]) == 1 else compacted(value, graph)


def _common_end(dims: PaddedShape, shape: Sequence[Dimension]) -> int:
    """How many of the last axes are the same before and after."""
    return _common(dims[::-1], shape[::-1])


def _common(dims: PaddedShape, shape: Sequence[Dimension]) -> int:
    """How many of the first axes are the same before and after; not all of them."""
    kept = 0
    for axis, size in zip(dims, shape, strict=False):
        if len(axis) > 1 or size_of(axis) != size:
            break
        kept += 1
    return min(kept, len(dims) - 1, len(shape) - 1) if kept else 0


def _places(before: PaddedShape, after: PaddedShape, graph: GraphBuilder) -> Value:
    """For each place after, padding included, the place before of the element that is there."""
    number = _number(after, graph)
    factors = joined(factor for axis in before for factor in axis)
    return _place(number, factors, graph)


def _number(dims: PaddedShape, graph: GraphBuilder) -> Value:
    """Each place's number among the elements that are there."""
    result = graph.scalar(0, DType.I64)
    sizes = true_shape(dims)
    for axis, dimension in enumerate(dims):
        extent = extent_of(dimension)
        graph.check_array((extent,), DType.I64.bytes)
        indices = graph.constant(np.arange(extent, dtype=np.int64))
        behind = product_of(sizes[axis + 1 :])
        along = graph.reshape(indices, (extent, *(1,) * (len(dims) - axis - 1)))
        result = graph.emit("add", result, graph.emit("mul", along, graph.size(behind)))
    return result


def _place(number: Value, factors: Sequence[Factor], graph: GraphBuilder) -> Value:
    """Where the element of a number lies."""
    place, inner = graph.scalar(0, DType.I64), 1
    for position, (true, extent) in reversed(list(enumerate(factors))):
        index = number
        if position:
            count = graph.size(greater(true, 1))  # nothing is looked up where there is nothing
            index = graph.emit("mod", number, count)
            number = graph.emit("div", number, count)
        place = graph.emit("add", place, graph.emit("mul", index, graph.scalar(inner, DType.I64)))
        inner *= extent
    return place


# --- Moves along dynamic axes --------------------------------------------------------------------


def moved(count: int, start: Dimension, step: int, graph: GraphBuilder) -> Value:
    """start + step * i, a vector of i64."""
    if isinstance(start, int):
        return graph.constant(start + step * np.arange(count, dtype=np.int64))
    steps = graph.constant(step * np.arange(count, dtype=np.int64))
    return graph.emit("add", steps, graph.size(start))


def extent_there(size: Dimension, graph: GraphBuilder) -> Dimension:
    """A size as that of an axis, which every run checks if bounds do not say that it is one."""
    if bounds_of(size)[0] >= 0:
        return size
    there = greater(size, 0)
    graph.run_time.require_equal(size, there, f"node {graph.source!r}")
    return there


def along(vector: Value, axis: int, rank: int, graph: GraphBuilder) -> Value:
    """A vector as what broadcasts along an axis."""
    return graph.reshape(vector, (*vector.shape, *(1,) * (rank - axis - 1)))


def with_axis(value: Value, axis: int, dims: Axis, graph: GraphBuilder) -> Value:
    """The value, of whose axis another part is there."""
    return graph.with_dims(value, (*value.dims[:axis], dims, *value.dims[axis + 1 :]))


def as_whole(value: Value, axis: int, graph: GraphBuilder) -> Value:
    """The value with an axis taken as it is, padding included."""
    return with_axis(value, axis, whole(value.shape[axis]), graph)


def taken(
    value: Value,
    axis: int,
    places: Value,
    dims: Axis,
    graph: GraphBuilder,
    *,
    there: bool = False,
) -> Value:
    """Elements of an axis at computed places, clamped to it; `dims` say which are there.

    `there`: the places of those are all of elements that are there too.
    """
    if there:
        data = graph.readable(value)
        picked = graph.append("gather", (data, graph.readable(places)), {"axis": axis})
        return graph.with_dims(picked, (*value.dims[:axis], dims, *value.dims[axis + 1 :]))
    picked = graph.emit("gather", as_whole(value, axis, graph), places, axis=axis)
    return with_axis(picked, axis, dims, graph)


def shifted(
    value: Value,
    axis: int,
    dims: Axis,
    start: Dimension,
    graph: GraphBuilder,
    *,
    step: int = 1,
    outside: Value | None = None,
) -> Value:
    """Elements of an axis from `start` on, `step` apart; `dims` say which of them are there.

    Where the value has none, there is 0, or the one element `outside`.
    """
    size, data = size_of(value.dims[axis]), as_whole(value, axis, graph)
    vector, (first, end) = graph.vector_of((start, size))
    attributes = {"axis": axis, "start": first, "extent": extent_of(dims), "step": step, "end": end}
    return with_axis(graph.emit("shift", data, vector, outside, **attributes), axis, dims, graph)


def window(
    value: Value, axis: int, start: Dimension, count: Dimension, graph: GraphBuilder, step: int = 1
) -> Value:
    """`count` elements of an axis from `start` on, `step` apart."""
    return windows(value, [Window(axis, start, count, step)], graph)


class Window(NamedTuple):
    """`size` elements of an axis from `start` on, `step` apart."""

    axis: int
    start: Dimension
    size: Dimension
    step: int

    def is_whole(self, value: Value) -> bool:
        """Whether it is all of the axis, as it lies."""
        whole = self.start == 0 and self.size == size_of(value.dims[self.axis])
        return whole and (self.step == 1 or self.size == 1)

    def is_in_place(self, value: Value) -> bool:
        """Whether a number says where it begins, and all of it lies in the memory of the value."""
        most = bounds_of(self.size)[1]
        if not isinstance(self.start, int) or (self.step == 0 and most > 1):
            return False
        ends = self.start, self.start + (most - 1) * self.step
        return min(ends) >= 0 and max(ends) < value.shape[self.axis]


def windows(value: Value, cuts: Iterable[Window], graph: GraphBuilder) -> Value:
    """The value of some of whose axes parts are taken: all that lie in place at once."""
    cuts = [cut for cut in cuts if not cut.is_whole(value)]
    if any(len(value.dims[cut.axis]) > 1 for cut in cuts):
        value = compacted(value, graph)
    dims, shape = list(value.dims), list(value.shape)
    is_empty = any(bounds_of(cut.size)[1] == 0 for cut in cuts)
    placed = [cut for cut in cuts if is_empty or cut.is_in_place(value)]
    starts, steps = [0] * value.rank, [1] * value.rank
    for axis, start, count, step in placed:
        shape[axis] = most = bounds_of(count)[1]
        dims[axis], starts[axis] = ((count, most),), bounds_of(start)[0]
        steps[axis] = step if most > 1 else 1
        value = as_whole(value, axis, graph)
    if is_empty:  # what a Concat leaves out
        value = graph.constant(np.empty(shape, value.dtype.numpy))
    elif placed:
        attributes = {"starts": tuple(starts), "steps": tuple(steps), "shape": tuple(shape)}
        value = graph.emit("slice", value, **attributes)
    value = graph.with_dims(value, tuple(dims)) if placed else value
    for axis, start, count, step in (cut for cut in cuts if cut not in placed):
        there = ((count, bounds_of(count)[1]),)
        value = shifted(value, axis, there, start, graph, step=step)
    return value


@padded_form("concat")
def _concat(
    graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
) -> Value | None:
    """Parts one behind the other, each from where the one before ends: i < n ? a[i] : b[i - n]."""
    axis, parts = attributes.integer("axis"), [value for value in operands if value is not None]
    if all(is_unpadded(part.dims[axis]) for part in parts):
        return None
    parts = [part if len(part.dims[axis]) == 1 else compacted(part, graph) for part in parts]
    total: Dimension = 0
    ends = [total := total + size_of(part.dims[axis]) for part in parts]
    if all(is_unpadded(part.dims[axis]) for part in parts[:-1]):
        joined = graph.emit("concat", *(as_whole(part, axis, graph) for part in parts), axis=axis)
        return with_axis(joined, axis, ((total, joined.shape[axis]),), graph)
    extent = bounds_of(total)[1]
    sizes, numbers = graph.vector_of(ends[:-1])
    first, *others = (as_whole(part, axis, graph) for part in parts)
    if first.shape[axis] < extent:  # of a cache, whose place may be as long
        pads = [0] * (2 * first.rank)
        pads[first.rank + axis] = extent - first.shape[axis]
        first = graph.emit("pad", first, pads=tuple(pads))
    result = graph.emit("ragged_concat", sizes, first, *others, axis=axis, ends=numbers)
    # What lies behind is 0, so that nobody has to copy the whole for it.
    return graph.padded.filled(with_axis(result, axis, ((total, extent),), graph), axis, "zero")


@padded_form("matmul")
def _matmul(
    graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
) -> Value | None:
    """Keys lie in one piece: attention walks them, where rows that stay rows may lie apart.

    They are the columns of a product with dynamic rows, or rows that were turned to be columns; and
    what is summed over with weights that lie so.
    """
    left, right = operands[:2]
    assert left is not None
    assert right is not None
    if left.array is not None or right.array is not None:
        return None
    last = left.rank - 1, right.rank - 1
    rows, summed = last[0] - 1, last[0]
    if attributes.flag("transpose_a"):
        rows, summed = summed, rows
    met, columns = last[1] - 1, last[1]
    if attributes.flag("transpose_b"):
        met, columns = columns, met
    keys = None
    if len(right.dims[columns]) > 1:
        turned = columns < last[1] or graph.padded.was_inside(right, columns)
        keys = columns if turned or not is_unpadded(left.dims[rows]) else None
    elif len(right.dims[met]) > 1 and len(left.dims[summed]) == 1:
        keys = met
    if keys is None:
        return None
    return graph.emit("matmul", left, graph.padded.in_one_piece(right, keys), **attributes)


@padded_form("pad")
def _pad(
    graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
) -> Value | None:
    """Elements before and behind an axis: at its end they come behind the true size."""
    data, fill = operands[0], operands[1] if len(operands) > 1 else None
    assert data is not None
    pads, mode = attributes.integers("pads"), attributes.choice("mode", PAD_MODES)
    rank = data.rank
    padded = [
        a for a in range(rank) if not is_unpadded(data.dims[a]) and (pads[a] or pads[a + rank])
    ]
    if not padded:
        return None
    for axis in padded:
        content = fill if fill is not None else attributes.number("value")
        data = pad_axis(data, axis, (pads[axis], pads[axis + rank]), mode, content, graph)
    rest = tuple(0 if axis % rank in padded else pad for axis, pad in enumerate(pads))
    if not any(rest):
        return data
    return graph.emit("pad", data, fill, pads=rest, mode=mode, value=attributes.number("value"))


def pad_axis(
    data: Value,
    axis: int,
    pads: tuple[Dimension, Dimension],
    mode: str,
    content: Value | int | float,
    graph: GraphBuilder,
) -> Value:
    """An axis with so many elements more before and behind it, or fewer."""
    if len(data.dims[axis]) > 1:
        data = compacted(data, graph)
    size = size_of(data.dims[axis])
    begin, total = pads[0], extent_there(size + pads[0] + pads[1], graph)
    extent = bounds_of(total)[1]
    if extent < 1:
        raise graph.refusal(f"padding by {pads[0]} and {pads[1]} may leave nothing", [data])
    dims: Axis = ((total, extent),)
    if mode == "constant":
        value = content if isinstance(content, Value) else graph.scalar(content, data.dtype)
        is_zero = value.array is not None and not value.array.any()
        outside = None if is_zero else graph.reshape(value, ())
        result = shifted(data, axis, dims, -begin, graph, outside=outside)
        if is_zero:
            graph.padded.fills(result, axis, "zero")
        return result
    if (parts := _borders(data, axis, pads, mode, graph)) is not None:
        return graph.emit("concat", *parts, axis=axis)
    places = moved(extent, -begin, 1, graph)
    last = graph.size(size - 1)
    if mode == "edge":
        places = graph.emit("max", graph.emit("min", places, last), graph.scalar(0, DType.I64))
    elif mode == "wrap":
        places = graph.emit("mod", places, graph.size(size))
    elif mode == "reflect":
        period = graph.emit("max", graph.size(2 * size - 2), graph.scalar(1, DType.I64))
        around = graph.emit("mod", places, period)
        places = graph.emit("min", around, graph.emit("sub", period, around))
    return taken(data, axis, places, dims, graph)


def _borders(
    data: Value, axis: int, pads: tuple[Dimension, Dimension], mode: str, graph: GraphBuilder
) -> list[Value] | None:
    """An axis between what is before and behind it, parts of it that are moved; None where it may
    be too short for one of them."""
    begin, end = pads
    size = size_of(data.dims[axis])
    before, behind, step = {
        "edge": (0, size - 1, 0),
        "reflect": (begin, size - 2, -1),
        "wrap": (size - begin, 0, 1),
    }[mode]
    kept = {"edge": 1, "reflect": 1 + greater(begin, end), "wrap": greater(begin, end)}[mode]
    if min(bounds_of(least)[0] for least in (begin, end, size - kept)) < 0:
        return None
    parts = [(before, begin), (behind, end)]
    moved = [
        window(data, axis, start, count, graph, step=step) for start, count in parts if count != 0
    ]
    return [*moved[: begin != 0], data, *moved[begin != 0 :]]


def from_start(places: Value, sizes: Sequence[Dimension], graph: GraphBuilder) -> Value:
    """Places of axes of these sizes, of which negative ones count from the end, from the start.

    Of several sizes each is that of one entry of the places' last axis.
    """
    if places.array is not None and (places.array.size == 0 or places.array.min() >= 0):
        return places
    one = len(sizes) == 1
    end = graph.size(sizes[0], places.dtype) if one else graph.size_vector(sizes, places.dtype)
    negative = graph.emit("less", places, graph.scalar(0, places.dtype))
    return graph.emit("where", negative, graph.emit("add", places, end), places)


def _gathering(operator: str) -> PaddedForm:
    def form(
        graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
    ) -> Value | None:
        """Negative positions count from the true end."""
        data, picks = operands[:2]
        assert data is not None
        assert picks is not None
        axis = attributes.integer("axis")
        if is_unpadded(data.dims[axis]):
            return None
        if len(data.dims[axis]) > 1:
            data = compacted(data, graph)
        places = from_start(picks, [size_of(data.dims[axis])], graph)
        return graph.emit(operator, as_whole(data, axis, graph), places, axis=axis)

    return form


for _operator in ("gather", "gather_elements"):
    padded_form(_operator)(_gathering(_operator))
