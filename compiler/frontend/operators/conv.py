"""Convolutions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tunefarm.compiler.frontend.converter import converter, dynamic_operand
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import as_whole, extent_there, in_one_piece, window
from tunefarm.compiler.frontend.operators.shape import under_shape
from tunefarm.compiler.frontend.operators.windows import (
    Windows,
    conv_windows,
    whole_kernel,
    window_attributes,
    windows,
)
from tunefarm.compiler.frontend.settle import declared, expect_constant, fitting
from tunefarm.compiler.types.padded_shape import is_unpadded
from tunefarm.compiler.types.sizes import Dimension, bounds_of, divide, greater


def conv_value(
    node: OnnxNode, data: Value, weight: Value, bias: Value | None, graph: GraphBuilder
) -> Value:
    """A convolution with the node's attributes on operands of any (equal) element type."""
    weight = _weight(node, data, weight, graph)
    data, weight, found = conv_windows(node, data, weight, graph)
    groups = node.integer("group", 1)
    return graph.emit("conv", data, weight, bias, **found.steps, pads=found.pads, groups=groups)


def _weight(node: OnnxNode, data: Value, weight: Value, graph: GraphBuilder) -> Value:
    """The weight, whose spatial sizes must be those of `kernel_shape` if there is one."""
    if data.rank < 3 or weight.rank != data.rank:
        raise node.bad_shape(f"the data {data.type} and the weight {weight.type} do not fit")
    sizes = weight.true_shape[2:]
    kernel = node.integers("kernel_shape", weight.shape[2:])
    if not node.has("kernel_shape") or kernel == sizes:
        return weight
    if len(kernel) != len(sizes) or any(
        not low <= wanted <= high
        for wanted, (low, high) in zip(kernel, map(bounds_of, sizes), strict=True)
    ):
        raise node.bad_shape(f"kernel_shape is not the weight's, {_text(sizes)}")
    weight = graph.padded.dense(weight)
    for axis, (wanted, size) in enumerate(zip(kernel, sizes, strict=True), start=2):
        graph.run_time.require_equal(size, wanted, f"node {graph.source!r}")
        weight = as_whole(graph.padded.cut(weight, axis, wanted), axis, graph)
    return weight


def _text(sizes: Sequence[Dimension]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


@converter("Conv", 1, 11, 22)
def conv(node: OnnxNode, graph: GraphBuilder) -> Value:
    return conv_value(node, node.input(0), node.input(1), node.optional(2), graph)


@converter("ConvTranspose", 1, 11, 22)
def conv_transpose(node: OnnxNode, graph: GraphBuilder) -> Value:
    """What depends on a dynamic size is cut out of the whole result, with nothing taken off."""
    data = node.input(0)
    for axis in range(2, data.rank):
        data = in_one_piece(data, axis, graph)
    weight = _weight(node, data, node.input(1), graph)
    given, kernel = window_attributes(node, weight.shape[2:]), weight.true_shape[2:]
    rank = len(kernel)
    extra = node.integers("output_padding", (0,) * rank)
    wanted = node.integers("output_shape", ())
    if len(extra) != rank or len(wanted) not in (0, rank) or any(value < 0 for value in extra):
        raise node.bad_shape(f"output_padding and output_shape need {rank} entries")
    upper, is_same = given.auto_pad == "SAME_UPPER", given.auto_pad.startswith("SAME")

    def placed(axis: int, size: Dimension, taps: Dimension) -> tuple[Dimension, Dimension]:
        """Where the result of so many elements and taps begins in the whole, and its size."""
        stride, begin = given.strides[axis], given.pads[axis]
        whole = (size - 1) * stride + (taps - 1) * given.dilations[axis] + 1 + extra[axis]
        if not wanted and not is_same:
            return begin, whole - begin - given.pads[rank + axis]
        count = wanted[axis] if wanted else size * stride
        total = greater(whole - count, 0)
        return divide(total, 2) if upper else total - divide(total, 2), count

    begins, ends, shape = [0] * rank, [0] * rank, [0] * rank
    cuts: dict[int, tuple[Dimension, Dimension]] = {}
    for axis, extent in enumerate(data.shape[2:]):
        size, taps = data.true_shape[2 + axis], kernel[axis]
        begin, count = placed(axis, size, taps)
        longest = given.reach(axis, extent)
        if isinstance(taps, int) and isinstance(begin, int) and (size == extent or not wanted):
            begins[axis], shape[axis] = begin, bounds_of(placed(axis, extent, taps)[1])[1]
            ends[axis] = max(longest - begin - shape[axis], 0)
        else:
            shape[axis] = max(longest + extra[axis], bounds_of(count)[1])
            cuts[axis] = begin, extent_there(count, graph)
            data = as_whole(graph.padded.filled(data, 2 + axis, "zero"), 2 + axis, graph)
    if any(extent < 1 for extent in shape):
        raise node.bad_shape(f"the spatial shape of the result would be {shape}")
    result = graph.emit(
        "conv_transpose",
        data,
        whole_kernel(weight, graph),
        node.optional(2),
        **given.steps,
        pads=(*begins, *ends),
        shape=tuple(shape),
        groups=node.integer("group", 1),
    )
    for axis, (begin, count) in cuts.items():
        result = window(result, 2 + axis, begin, count, graph)
    return result


@converter("Col2Im", 18)
def col2im(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Sums of columns [N, C * block, windows]: a transposed convolution with one-hot weights."""
    data = node.input(0)
    sizes = node.sizes(1, "the image's shape")
    image = tuple(bounds_of(size)[1] for size in sizes)
    block = node.constant_integers(2, "the block's shape")
    area = math.prod(block)
    if data.rank != 3 or data.shape[1] % area:
        raise node.bad_shape(f"{data.type} has no columns of blocks {list(block)}")
    found = windows(node, image, block)
    is_open = image != sizes or not is_unpadded(data.dims[2])
    if not is_open and math.prod(found.shape) != data.shape[2]:
        raise node.bad_shape(f"{data.type} has not one column for each of {list(found.shape)}")
    channels = data.shape[1] // area
    graph.check_array((channels, area, area), data.dtype.bytes)
    weight = np.zeros((channels, area, 1, area), data.dtype.numpy)
    weight[:, np.arange(area), 0, np.arange(area)] = 1
    if is_open:
        columns = _open_columns(data, sizes, found, graph)
    else:
        columns = graph.reshape(data, (data.shape[0], data.shape[1], *found.shape))
    result = graph.emit(
        "conv_transpose",
        columns,
        graph.constant(weight.reshape(channels * area, 1, *block)),
        **found.steps,
        pads=found.pads,
        shape=image,
        groups=channels,
    )
    dims = (((size, extent),) for size, extent in zip(sizes, image, strict=True))
    return graph.with_dims(result, (*result.dims[:2], *dims)) if is_open else result


def _open_columns(
    data: Value, image: Sequence[Dimension], found: Windows, graph: GraphBuilder
) -> Value:
    """Columns [N, C, windows] of an image with dynamic sizes; zeros where there is none."""
    rank, counts = len(image), list[Dimension]()
    for axis, size in enumerate(image):
        room = size + found.pads[axis] + found.pads[axis + rank] - found.reach(axis)
        if bounds_of(room)[0] < 0:
            reason = f"a window of {found.reach(axis)} may not fit into the size {size}"
            raise graph.refusal(reason, [], "raise the lower bound of its symbols", [size])
        counts.append(divide(room, found.strides[axis]) + 1)
    columns = under_shape(data, (*data.true_shape[:2], *counts), graph)
    for axis in range(2, columns.rank):
        columns = as_whole(graph.padded.filled(columns, axis, "zero"), axis, graph)
    return columns


@dynamic_operand("Col2Im", at=(1, 2))
def computed_col2im(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Of blocks, all that fit the columns are candidates."""
    if node.is_computed(1):
        image = declared(node, 1, "the image's shape")[2:]
        node = node.with_constants({1: expect_constant(node, graph, 1, image, "the image's shape")})
    if not node.is_computed(2):
        return node
    channels = declared(node, 2, "the block's shape")[1]
    columns = node.input(0).shape[1]
    if channels < 1 or columns % channels:
        raise node.bad_shape(f"{columns} columns are no blocks of {channels} channels")
    blocks = list(_factors(columns // channels, node.input(2).type.size))
    return fitting(node, graph, 2, blocks, "the block's shape")


def _factors(product: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product of so many."""
    if count == 1:
        yield (product,)
        return
    for first in range(1, product + 1):
        if product % first == 0:
            for rest in _factors(product // first, count - 1):
                yield (first, *rest)
