"""Windows along dynamic axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.padded_moves import as_whole, pad_axis, with_axis
from tunefarm.compiler.frontend.operators.windows import (
    Windows,
    pool_windows,
    window_attributes,
    windows,
)
from tunefarm.compiler.frontend.padded_forms import padded_form
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.dims import ONE, is_unpadded, size_of
from tunefarm.compiler.types.sizes import Dimension, bounds_of, divide, greater, smaller


def conv_windows(
    node: OnnxNode, data: Value, weight: Value, graph: GraphBuilder
) -> tuple[Value, Value, Windows]:
    """The windows of a convolution, the data that they run over, and the weight.

    A weight of a dynamic kernel is 0 behind its true size, where it meets zeros behind the data.
    """
    kernel, sizes = weight.shape[2:], weight.true_shape[2:]
    if kernel == sizes and not is_same_at_strides(node, data, kernel):
        return data, weight, windows(node, data.shape[2:], kernel)
    data, found = _padded(node, data, kernel, 0.0, graph, sizes)
    return data, whole_kernel(weight, graph), found


def whole_kernel(weight: Value, graph: GraphBuilder) -> Value:
    """A weight [.., .., *kernel] with zeros behind the true sizes of its kernel."""
    for axis in range(2, weight.rank):
        weight = as_whole(graph.padded.filled(weight, axis, "zero"), axis, graph)
    return weight


def max_windows(node: OnnxNode, data: Value, graph: GraphBuilder) -> tuple[Value, Windows]:
    """The windows of a maximum, and the data that they run over."""
    lowest = -np.inf if data.dtype.is_float else data.dtype.limits[0]
    return pooled_windows(node, data, float(lowest), graph)


def pooled_windows(
    node: OnnxNode, data: Value, content: float, graph: GraphBuilder
) -> tuple[Value, Windows]:
    """The windows of a pool, and the data that they run over, with `content` around it."""
    kernel = node.integers("kernel_shape")
    if not is_same_at_strides(node, data, kernel):
        return data, pool_windows(node, data.shape[2:])
    return _padded(node, data, kernel, content, graph)


def same_average(node: OnnxNode, data: Value, graph: GraphBuilder) -> Value:
    """Sums over windows by their elements; of what is around the data if that is to be counted."""
    total, kernel = _sums(node, graph.cast(data, data.dtype.wide), graph)
    if node.integer("count_include_pad", 0):
        counts = graph.scalar(prod(kernel), total.dtype)
    else:
        ones = graph.constant(np.ones((1, 1, *data.shape[2:]), total.dtype.numpy))
        ones = graph.padded.begins(ones, (ONE, ONE, *data.dims[2:]))
        counts, _ = _sums(node, ones, graph)
    return graph.cast(graph.emit("div", total, counts), data.dtype)


def _sums(node: OnnxNode, data: Value, graph: GraphBuilder) -> tuple[Value, tuple[int, ...]]:
    data, found = pooled_windows(node, data, 0.0, graph)
    windows = {"kernel": found.kernel, **found.steps, "pads": found.pads, "shape": found.shape}
    return graph.emit("sum_pool", data, **windows), found.kernel


def with_ceil_count(
    result: Value, data: Value, found: Windows, node: OnnxNode, graph: GraphBuilder
) -> Value:
    """The result of a pool with the number of windows that `ceil_mode` makes it have."""
    if data.padded is None or not node.integer("ceil_mode", 0) or found.auto_pad.startswith("SAME"):
        return result
    rank = len(found.kernel)
    for number in range(rank):
        axis = data.dims[2 + number]
        if is_unpadded(axis):
            continue
        size, stride = size_of(axis), found.strides[number]
        begin, end = found.pads[number], found.pads[number + rank]
        room = size + (begin + end - found.reach(number))
        count = _rounded_up(room, stride) + 1
        if found.reach(number) < stride + end:  # a window may start behind the data
            count = smaller(count, _rounded_up(size + begin, stride))
        result = with_axis(result, 2 + number, ((count, result.shape[2 + number]),), graph)
    return result


def _rounded_up(size: Dimension, divisor: int) -> Dimension:
    return divide(size + (divisor - 1), divisor)


def is_same_at_strides(node: OnnxNode, data: Value, kernel: tuple[int, ...]) -> bool:
    """Whether how much padding `auto_pad` asks for depends on a size."""
    if (
        not kernel
        or data.padded is None
        or not node.string("auto_pad", "NOTSET").startswith("SAME")
    ):
        return False
    strides = node.integers("strides", (1,) * len(kernel))
    padded = [not is_unpadded(axis) for axis in data.dims[2:]]
    return any(of_size and stride > 1 for of_size, stride in zip(padded, strides, strict=True))


def _padded(
    node: OnnxNode,
    data: Value,
    kernel: tuple[int, ...],
    content: float,
    graph: GraphBuilder,
    sizes: Sequence[Dimension] | None = None,
) -> tuple[Value, Windows]:
    """The data with `content` around it where how much depends on a size, and the windows over it.

    `sizes` are those of a kernel that is padded to `kernel`: as much more stands behind the data.
    """
    given, rank = window_attributes(node, kernel), len(kernel)
    if rank != data.rank - 2:
        raise node.bad_shape(f"the data has {data.rank - 2} spatial axes, the kernel {rank}")
    rest = list(given.pads)
    for number, stride in enumerate(given.strides):
        size, own = size_of(data.dims[2 + number]), (sizes or kernel)[number]
        missing = (kernel[number] - own) * given.dilations[number]
        reach = given.reach(number) - missing
        pads: tuple[Dimension, Dimension] = rest[number], rest[number + rank]
        if given.auto_pad.startswith("SAME"):
            total = greater((_rounded_up(size, stride) - 1) * stride + reach - size, 0)
            small = divide(total, 2)
            pads = (small, total - small)
            if given.auto_pad == "SAME_LOWER":
                pads = pads[::-1]
        begin, end = pads
        if isinstance(begin, int) and isinstance(end, int) and missing == 0:
            rest[number], rest[number + rank] = begin, end
            continue
        room = size + begin + end - reach
        if bounds_of(room)[0] < 0:
            fitting = greater(room, 0)
            graph.run_time.require_equal(room, fitting, f"node {graph.source!r}")
            end = end + fitting - room
        data = pad_axis(data, 2 + number, (begin, end + missing), "constant", content, graph)
        rest[number] = rest[number + rank] = 0
    found = replace(given, auto_pad="NOTSET", pads=tuple(rest))
    shape = tuple(
        (extent + rest[number] + rest[number + rank] - found.reach(number)) // found.strides[number]
        + 1
        for number, extent in enumerate(data.shape[2:])
    )
    return data, replace(found, shape=shape)


@padded_form("average_pool")
def _average_pool(
    graph: GraphBuilder, operands: Sequence[Value | None], attributes: Attributes
) -> Value | None:
    data = operands[0]
    assert data is not None
    if all(map(is_unpadded, data.dims[2:])):
        return None
    names = ("kernel", "strides", "dilations", "pads", "shape")
    windows = {name: attributes.integers(name) for name in names}
    counts_pads = attributes.flag("count_include_pad")
    return average_of_there(data, windows, counts_pads, lambda total: total, graph)


def average_of_there(
    data: Value,
    windows: Mapping[str, tuple[int, ...]],
    counts_pads: bool,
    sized: Callable[[Value], Value],
    graph: GraphBuilder,
    least: Sequence[int] | None = None,
) -> Value:
    """Sums over windows by the number of elements that are there.

    `windows` has the attributes of a pool; `sized` gives what it makes the number of windows. Where
    padding counts, a window that it reaches across counts as one of `least` elements by axis: those
    that are cut off, too.
    """
    pads, rank = windows["pads"], data.rank - 2
    total = sized(graph.emit("sum_pool", graph.cast(data, data.dtype.wide), **windows))
    around = (0,) * rank
    if counts_pads:
        around = tuple(map(sum, zip(pads[:rank], pads[rank:], strict=True)))
        pads = (0,) * (2 * rank)
    extents = tuple(extent + more for extent, more in zip(data.shape[2:], around, strict=True))
    sizes = [size_of(axis) + more for axis, more in zip(data.dims[2:], around, strict=True)]
    if counts_pads and least is not None:
        sizes = list(map(greater, sizes, least))
        extents = tuple(map(max, extents, least))
    ones = graph.constant(np.ones((1, 1, *extents), total.dtype.numpy))
    there = [((size, extent),) for size, extent in zip(sizes, extents, strict=True)]
    ones = graph.padded.begins(ones, (ONE, ONE, *there))
    counts = sized(graph.emit("sum_pool", ones, **{**windows, "pads": pads}))
    return graph.cast(graph.emit("div", total, counts), data.dtype)
