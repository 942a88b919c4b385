"""Sliding windows: padding, dilation and output extents of convolutions and pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import as_whole, pad_axis, with_axis
from tunefarm.compiler.frontend.padded_values import padded_form
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import ONE, is_unpadded, size_of
from tunefarm.compiler.types.sizes import Dimension, Size, bounds_of, divide, greater, smaller

_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@frozen
class Windows:
    """Per spatial axis: kernel, stride, dilation; padding (begins, then ends); number of windows.

    As the node gives them, pads leave out what `auto_pad` asks for, and there is no `shape`.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str
    shape: tuple[int, ...] = ()

    @property
    def steps(self) -> dict[str, tuple[int, ...]]:
        """Strides and dilations, as attributes of the graph's operators."""
        return {"strides": self.strides, "dilations": self.dilations}

    def reach(self, axis: int, count: int = 1) -> int:
        """The extent that `count` windows cover along an axis."""
        return (count - 1) * self.strides[axis] + (self.kernel[axis] - 1) * self.dilations[axis] + 1


def window_attributes(node: OnnxNode, kernel: tuple[int, ...]) -> Windows:
    """Read and check the attributes for windows of extents `kernel`."""
    rank = len(kernel)
    strides = node.integers("strides", (1,) * rank)
    dilations = node.integers("dilations", (1,) * rank)
    pads = node.integers("pads", (0,) * (2 * rank))
    auto_pad = node.choice("auto_pad", "NOTSET", _AUTO_PADS)
    for name, values, wanted in (
        ("strides", strides, rank),
        ("dilations", dilations, rank),
        ("pads", pads, 2 * rank),
    ):
        if len(values) != wanted:
            raise node.bad_shape(f"{name} has {len(values)} entries instead of {wanted}")
    if any(value < 1 for value in kernel + strides + dilations) or any(pad < 0 for pad in pads):
        raise node.bad_shape("a kernel, stride or dilation is below 1, or a padding negative")
    if auto_pad != "NOTSET":
        pads = (0,) * (2 * rank)
    return Windows(kernel, strides, dilations, pads, auto_pad)


def pool_windows(node: OnnxNode, data: tuple[int, ...]) -> Windows:
    """The windows of a pool, of which the only one along an axis may hang over its end.

    With `ceil_mode` the last of several may, unless it would start in the padding.
    """
    kernel = node.integers("kernel_shape")
    if not kernel:
        raise node.bad_shape("kernel_shape is empty")
    return windows(node, data, kernel, ceil_mode=bool(node.integer("ceil_mode", 0)), cut=True)


def windows(
    node: OnnxNode,
    data: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    ceil_mode: bool = False,
    cut: bool = False,
) -> Windows:
    """The windows over spatial extents `data`.

    With `ceil_mode` a last window may hang over the end, unless it would start in the padding.
    With `cut` there is one where the padded extent is shorter than a window by less than a stride,
    as ONNX's formula has it in integers. Raises ShapeError when the ranks differ or no window fits.
    """
    given = window_attributes(node, kernel)
    rank = len(kernel)
    if len(data) != rank:
        raise node.bad_shape(f"the data has {len(data)} spatial axes, the kernel {rank}")
    begins, ends, shape = list(given.pads[:rank]), list(given.pads[rank:]), [0] * rank
    for axis, extent in enumerate(data):
        stride = given.strides[axis]
        reach = given.reach(axis)
        if given.auto_pad.startswith("SAME"):
            shape[axis] = -(-extent // stride)
            total = max(given.reach(axis, shape[axis]) - extent, 0)
            small, large = total // 2, total - total // 2
            upper = given.auto_pad == "SAME_UPPER"
            begins[axis], ends[axis] = (small, large) if upper else (large, small)
            continue
        room = extent + begins[axis] + ends[axis] - reach
        shape[axis] = room // stride + 1
        if ceil_mode or (cut and room < 0):
            shape[axis] = -(-room // stride) + 1
        if ceil_mode and (shape[axis] - 1) * stride >= extent + begins[axis]:
            shape[axis] -= 1
        if (room < 0 and not cut) or shape[axis] < 1:
            raise node.bad_shape(
                f"a window of {reach} does not fit into the padded size {room + reach}"
            )
    return replace(given, pads=(*begins, *ends), shape=tuple(shape))


def overhanging_ends(data: tuple[int, ...], found: Windows) -> tuple[int, ...]:
    """Padding after each axis with which windows that hang over the end fit exactly."""
    return tuple(
        max(found.reach(axis, count) - extent - begin, 0)
        for axis, (count, extent, begin) in enumerate(
            zip(found.shape, data, found.pads, strict=False)
        )
    )


# --- Windows along dynamic axes ------------------------------------------------------------------


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


def rounds_up(node: OnnxNode) -> bool:
    """Whether a pool's last window may hang over the end of the data."""
    return bool(node.integer("ceil_mode", 0))


def filled_behind(data: Value, content: str, hangs: bool, graph: GraphBuilder) -> Value:
    """The data of a pool; where its windows hang over the end `content` is behind it."""
    if hangs:
        for axis in range(2, data.rank):
            data = graph.padded.filled(data, axis, content)
    return data


def with_ceil_count(
    result: Value, data: Value, found: Windows, node: OnnxNode, graph: GraphBuilder
) -> Value:
    """The result of a pool with the number of windows that `ceil_mode` makes it have."""
    if data.padded is None or not rounds_up(node) or found.auto_pad.startswith("SAME"):
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
        if not isinstance(count, Size):
            graph.padded.is_all_there(result, 2 + number)
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


def _same_begin(given: Windows, axis: int) -> int | None:
    """The padding before an axis if it is the same for any size, as with 2x2 at a stride of 2."""
    last = range(1, given.strides[axis] + 1)  # of the elements, those from the last window's on
    totals = [max(given.reach(axis) - count, 0) for count in last]
    if given.auto_pad == "SAME_UPPER":
        begins = {total // 2 for total in totals}
    else:
        begins = {total - total // 2 for total in totals}
    return begins.pop() if len(begins) == 1 else None


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
            before = _same_begin(given, number) if missing == 0 else None
            if before is not None:  # as many windows as with so much behind
                pads = before, max(given.reach(number) - 1 - before, 0)
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
    *,
    hangs: bool = False,
) -> Value:
    """Sums over windows by the number of elements that are there.

    `windows` has the attributes of a pool; `sized` gives what it makes the number of windows, the
    last of which `hangs` over the end. Where padding counts, a window that it reaches across counts
    as one of `least` elements by axis: those that are cut off, too.
    """
    pads, rank = windows["pads"], data.rank - 2
    summed = filled_behind(graph.cast(data, data.dtype.wide), "zero", hangs, graph)
    total = sized(graph.emit("sum_pool", summed, **windows))
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
    ones = filled_behind(graph.padded.begins(ones, (ONE, ONE, *there)), "zero", hangs, graph)
    counts = sized(graph.emit("sum_pool", ones, **{**windows, "pads": pads}))
    return graph.cast(graph.emit("div", total, counts), data.dtype)
