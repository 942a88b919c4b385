"""Reshape, Expand, Slice, Split and Tile with dynamic shapes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import extent_there, rearranged, window, with_axis
from tunefarm.compiler.types.dims import ONE, Axis, extent_of, joined, size_of
from tunefarm.compiler.types.sizes import (
    Dimension,
    Size,
    bounds_of,
    common_factor,
    divide,
    greater,
    product_of,
    quotient,
    remainder,
    smaller,
)


def is_sized(node: OnnxNode, *positions: int) -> bool:
    """Whether the data is padded, or one of these operands is computed of run-time sizes."""
    given = (node.optional(position) for position in positions)
    return node.input(0).padded is not None or any(
        value is not None and value.sizes is not None for value in given
    )


def sized_reshape(node: OnnxNode, graph: GraphBuilder) -> Value:
    """0 keeps a size (unless `allowzero`), one -1 takes what is left."""
    data = node.input(0)
    shape = list(_given(node, "shape", 1, "the shape") or ())
    if not node.integer("allowzero", 0):
        for axis, size in enumerate(shape):
            if isinstance(size, int) and size == 0:
                if axis >= data.rank:
                    raise node.bad_shape(f"the shape keeps axis {axis} of {data.type}")
                shape[axis] = data.true_shape[axis]
    free = [axis for axis, size in enumerate(shape) if size == -1]
    if len(free) > 1:
        raise node.bad_shape(f"{_text(shape)} is no shape")
    if free:
        rest = product_of(size for size in shape if size != -1)
        left = quotient(product_of(data.true_shape), rest)
        if left is None:
            left = _quotient_by_axes(data.true_shape, shape)
        if left is None:
            left = _with_equal_axes(data, shape, graph)
        if left is None:
            left = _with_whole_blocks(data, shape, graph)
        if left is None:
            left = _divided_rows(data, shape, graph)
        if left is None:
            raise graph.refusal(
                f"[{_text(data.true_shape)}] under the shape [{_text(shape)}] leaves a size that "
                "is not known",
                [data],
                sizes=shape,
            )
        shape[free[0]] = left
    return under_shape(data, [extent_there(size, graph) for size in shape], graph)


def under_shape(data: Value, shape: Sequence[Dimension], graph: GraphBuilder) -> Value:
    """The value under another true shape, its elements moved if they lie otherwise."""
    viewed = graph.padded.view(data, shape)
    return rearranged(data, shape, graph) if viewed is None else viewed


def _quotient_by_axes(given: Sequence[Dimension], shape: Sequence[Dimension]) -> Dimension | None:
    """What is left of the given sizes without those that the shape has, too."""
    rest, divisors = list(given), [size for size in shape if size != -1]
    for size in shape:
        if size in rest:
            rest.remove(size)
            divisors.remove(size)
    return quotient(product_of(rest), product_of(divisors))


def _with_equal_axes(data: Value, shape: list[Dimension], graph: GraphBuilder) -> Dimension | None:
    """What is left where the first sizes are the data's own under other names.

    Exporters name the batch of each input apart: such sizes are equal wherever a model runs at all,
    which is checked at run time. `shape` gets the data's sizes for them.
    """
    pairs = []
    for axis, (given, wanted) in enumerate(zip(data.true_shape, shape, strict=False)):
        if isinstance(given, int) or isinstance(wanted, int):
            break
        if given != wanted:
            pairs.append((axis, given, wanted))
    equal = dict(enumerate(shape)) | {axis: given for axis, given, _ in pairs}
    left = _quotient_by_axes(data.true_shape, list(equal.values()))
    if left is not None:
        for axis, given, wanted in pairs:
            graph.run_time.require_equal(given, wanted, f"node {graph.source!r}")
            shape[axis] = given
    return left


def _with_whole_blocks(
    data: Value, shape: list[Dimension], graph: GraphBuilder
) -> Dimension | None:
    """What is left where sizes are put together again of blocks into which they were divided.

    Blocks of windows of an image are h // 7 by 7 rows: all h of them wherever a model runs at all,
    which is checked at run time. `shape` gets the blocks' sizes for them.
    """
    given, blocks = list(data.true_shape), dict[int, Dimension]()
    for axis, wanted in enumerate(shape):
        if wanted == -1:
            break
        product: Dimension = 1
        for taken, size in enumerate(given, start=1):
            product = product * size
            if product == wanted or _are_blocks(product, wanted):
                blocks[axis] = product
                del given[:taken]
                break
    found = [blocks.get(axis, wanted) for axis, wanted in enumerate(shape)]
    left = _quotient_by_axes(data.true_shape, found)
    if left is not None:
        for axis, product in blocks.items():
            graph.run_time.require_equal(product, shape[axis], f"node {graph.source!r}")
            shape[axis] = product
    return left


def _are_blocks(product: Dimension, wanted: Dimension) -> bool:
    """Whether a size is another one less what is over when it is divided by a number."""
    if not (isinstance(product, Size) and isinstance(wanted, Size)):
        return False
    by = common_factor(product)
    return by > 1 and divide(wanted, by) * by == product


def _divided_rows(data: Value, shape: Sequence[Dimension], graph: GraphBuilder) -> Dimension | None:
    """What is left of a first size that is split by numbers, such as beams of each sentence.

    That it is a multiple is checked at run time.
    """
    rest = list(shape)
    for size in reversed(data.true_shape[1:]):
        if len(rest) < 2 or rest.pop() != size:
            return None
    rows, count = data.true_shape[0] if data.rank else 1, product_of(n for n in rest if n != -1)
    if -1 not in rest or not isinstance(count, int) or bounds_of(rows)[1] < count:
        return None
    graph.run_time.require_equal(remainder(rows, count), 0, f"node {graph.source!r}")
    return divide(rows, count)


def sized_expand(
    data: Value, shape: Sequence[Dimension], node: OnnxNode, graph: GraphBuilder
) -> Value:
    """Broadcasting in both directions: a size of 1 in the shape keeps the data's."""
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


def _expanded(
    data: Value, shape: tuple[int, ...], axes: tuple[Axis, ...], graph: GraphBuilder
) -> Value:
    plain = graph.with_dims(data, None)
    return graph.with_dims(graph.emit("expand", plain, shape=shape), axes)


def sized_slice(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Parts of axes by sizes; negative bounds count from the end, and all are clamped."""
    data = node.input(0)
    starts, ends = (_given(node, name, at, f"the list of {name}") or () for at, name in _BOUNDS)
    axes = node.given_integers("axes", 3, "the list of axes")
    steps = node.given_integers("steps", 4, "the list of steps")
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.bad_shape("starts, ends, axes and steps differ in length")
    node.axes(axes, data.rank)
    for start, end, given, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise node.invalid("a step is 0")
        axis = node.axis(given, data.rank)
        size = size_of(data.dims[axis])
        first, count = _chosen(start, end, step, size)
        data = window(data, axis, first, count, graph, step)
    return data


_BOUNDS = ((1, "starts"), (2, "ends"))


def _chosen(
    start: Dimension, end: Dimension, step: int, size: Dimension
) -> tuple[Dimension, Dimension]:
    """The first position and the number of positions."""
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


def sized_split(node: OnnxNode, graph: GraphBuilder) -> list[Value]:
    """One part per output; without sizes the parts are equal, the last one may be smaller."""
    data, parts = node.input(0), len(node.outputs)
    sizes = _given(node, "split", 1, "the sizes of the parts")
    axis = node.axis(node.integer("axis", 0), data.rank)
    size = size_of(data.dims[axis])
    if sizes is None:
        each = -divide(-size, parts)
        rest = [smaller(each, greater(size - each * part, 0)) for part in range(parts)]
        sizes = tuple(rest)
    total: Dimension = 0
    results: list[Value] = []
    for part in (extent_there(size, graph) for size in sizes):
        results.append(window(data, axis, total, part, graph))
        total = total + part
    if total != size:
        graph.run_time.require_equal(total, size, f"node {graph.source!r}")
    return results


def sized_tile(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Axes of one element are expanded; others are repeated a number of times that is known."""
    data, repeats = node.input(0), _given(node, "", 1, "the list of repeats") or ()
    if len(repeats) != data.rank:
        raise node.bad_shape(f"repeats [{_text(repeats)}] do not fit {data.type}")
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


def sized_range(node: OnnxNode, graph: GraphBuilder) -> Value | None:
    """Integers from a start to a limit that a run computes; None where all are constant."""
    values = [node.input(position) for position in range(3)]
    if all(value.sizes is None for value in values):
        return None
    start, limit, delta = (_scalar(node, position) for position in range(3))
    least, greatest = bounds_of(delta)
    if least <= 0 <= greatest:
        raise node.unsupported(f"a step of {delta}, which may be 0,")
    length, apart = (limit - start, delta) if least > 0 else (start - limit, -delta)
    count = greater(length if apart == 1 else -divide(-length, apart), 0)
    most = bounds_of(count)[1]
    if most == 0:
        raise node.bad_shape("the range has no elements")
    graph.check_array((most,), 8)
    dtype = values[0].dtype
    if isinstance(delta, int):
        steps = graph.constant(delta * np.arange(most, dtype=np.int64), dtype)
    else:
        numbers = graph.constant(np.arange(most, dtype=np.int64), dtype)
        steps = graph.emit("mul", numbers, graph.size(delta, dtype))
    result = graph.emit("add", steps, graph.size(start, dtype))
    return with_axis(result, 0, ((count, most),), graph)


def _scalar(node: OnnxNode, position: int) -> Dimension:
    found = node.sizes(position, "a bound of the range")
    if len(found) != 1:
        raise node.bad_shape("start, limit and delta must be scalars")
    return found[0]


def sized_fill(node: OnnxNode, fill: Value, graph: GraphBuilder) -> Value:
    """A value in each place of a dynamic shape."""
    shape = node.sizes(0, "the shape")
    if any(bounds_of(size)[1] < 0 for size in shape):
        raise node.bad_shape(f"the shape [{_text(shape)}] has a negative dimension")
    return sized_expand(fill, shape, node, graph)


def _given(node: OnnxNode, name: str, position: int, meaning: str) -> tuple[Dimension, ...] | None:
    """A list that is an attribute in old versions, and an operand in new ones."""
    if name and node.has(name):
        return node.integers(name)
    return None if node.optional(position) is None else node.sizes(position, meaning)


def _text(shape: Sequence[Dimension]) -> str:
    return ", ".join(map(str, shape))
