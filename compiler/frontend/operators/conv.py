"""Convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.padded_moves import as_whole
from tunefarm.compiler.frontend.operators.sized_shapes import under_shape
from tunefarm.compiler.frontend.operators.sized_windows import conv_windows
from tunefarm.compiler.frontend.operators.windows import Windows, window_attributes, windows
from tunefarm.compiler.types.dims import is_unpadded
from tunefarm.compiler.types.sizes import Dimension, bounds_of, divide


def conv_value(
    node: OnnxNode, data: Value, weight: Value, bias: Value | None, graph: GraphBuilder
) -> Value:
    """A convolution with the node's attributes on operands of any (equal) element type."""
    data, found = conv_windows(node, data, _kernel(node, data, weight), graph)
    groups = node.integer("group", 1)
    return graph.emit("conv", data, weight, bias, **found.steps, pads=found.pads, groups=groups)


def _kernel(node: OnnxNode, data: Value, weight: Value) -> tuple[int, ...]:
    """The weight's spatial extents, which `kernel_shape` only repeats."""
    if data.rank < 3 or weight.rank != data.rank:
        raise node.bad_shape(f"the data {data.type} and the weight {weight.type} do not fit")
    kernel = weight.shape[2:]
    if node.has("kernel_shape") and node.integers("kernel_shape") != kernel:
        raise node.bad_shape(f"kernel_shape is not the weight's, {list(kernel)}")
    return kernel


@converter("Conv", 1, 11, 22)
def conv(node: OnnxNode, graph: GraphBuilder) -> Value:
    return conv_value(node, node.input(0), node.input(1), node.optional(2), graph)


@converter("ConvTranspose", 1, 11, 22)
def conv_transpose(node: OnnxNode, graph: GraphBuilder) -> Value:
    data, weight = node.input(0), node.input(1)
    given = window_attributes(node, _kernel(node, data, weight))
    rank = len(given.kernel)
    extra = node.integers("output_padding", (0,) * rank)
    wanted = node.integers("output_shape", ())
    if wanted and data.padded is not None and not all(map(is_unpadded, data.dims[2:])):
        raise graph.refusal("output_shape of an axis", [data])
    if len(extra) != rank or len(wanted) not in (0, rank) or any(value < 0 for value in extra):
        raise node.bad_shape(f"output_padding and output_shape need {rank} entries")
    begins, shape = list(given.pads[:rank]), [0] * rank
    for axis, extent in enumerate(data.shape[2:]):
        full = given.reach(axis, extent) + extra[axis]
        if not wanted and not given.auto_pad.startswith("SAME"):
            shape[axis] = full - begins[axis] - given.pads[rank + axis]
            continue
        shape[axis] = wanted[axis] if wanted else extent * given.strides[axis]
        total = max(full - shape[axis], 0)
        upper = given.auto_pad == "SAME_UPPER"
        begins[axis] = total // 2 if upper else total - total // 2
    ends = tuple(
        max(given.reach(axis, extent) - begins[axis] - shape[axis], 0)
        for axis, extent in enumerate(data.shape[2:])
    )
    if any(extent < 1 for extent in shape):
        raise node.bad_shape(f"the spatial shape of the result would be {shape}")
    return graph.emit(
        "conv_transpose",
        data,
        weight,
        node.optional(2),
        **given.steps,
        pads=tuple(begins) + ends,
        shape=tuple(shape),
        groups=node.integer("group", 1),
    )


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
