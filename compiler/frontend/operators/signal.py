"""Signals: Fourier transforms of whole axes and of frames, and the mel scale's weights."""

from __future__ import annotations

import math

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.fourier import LARGEST_MATRIX, real_inverse, transform
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.padded_moves import as_whole, with_axis
from tunefarm.compiler.frontend.operators.rearranged import in_one_piece
from tunefarm.compiler.types.dims import is_unpadded, size_of
from tunefarm.compiler.types.dtypes import FLOATS, DType
from tunefarm.compiler.types.sizes import Dimension, bounds_of, divide, greater
from tunefarm.compiler.types.tensor_type import Array


@converter("DFT", 17, 20)
def dft(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Along one axis of signals whose last axis holds one part (real) or two.

    The one-sided inverse takes the first half of a spectrum and makes a real signal.
    """
    data = node.input(0)
    if data.rank < 2 or data.shape[-1] not in (1, 2) or data.dtype not in FLOATS:
        raise node.bad_shape(f"{data.type} has no last axis of one or two parts")
    given = node.integer("axis", 1) if node.version < 20 else -2
    if node.optional(2) is not None:
        given = node.constant_integer(2, "the axis")
    axis = node.axis(given, data.rank)
    if axis == data.rank - 1:
        raise node.bad_shape("the axis is that of the parts")
    inverse, onesided = bool(node.integer("inverse", 0)), bool(node.integer("onesided", 0))
    length = 2 * (data.shape[axis] - 1) if inverse and onesided else data.shape[axis]
    if node.optional(1) is not None:
        length = node.constant_integer(1, "the length")
    elif not is_unpadded(data.dims[axis]):
        return _open_transform(node, axis, graph)
    if length < 1:
        raise node.bad_shape(f"a transform of length {length}")
    if not is_unpadded(data.dims[axis]):
        data = as_whole(graph.padded.filled(data, axis, "zero"), axis, graph)
    perm = (*(a for a in range(data.rank - 1) if a != axis), axis, data.rank - 1)
    moved = graph.transpose(graph.cast(data, data.dtype.wide), perm)
    outer = moved.shape[:-2]
    rows = graph.reshape(moved, (math.prod(outer), *moved.shape[-2:]))
    half = length // 2 + 1
    if inverse and onesided:
        found = real_inverse(_with_parts(_cut(rows, half, graph), graph), length, graph)
    else:
        scale, sign = (1 / length, 1) if inverse else (1.0, -1)
        count = half if onesided else length
        found = transform(_cut(rows, length, graph), graph, sign=sign, count=count, scale=scale)
    found = graph.reshape(found, (*outer, *found.shape[1:]))
    back = tuple(perm.index(position) for position in range(data.rank))
    return graph.cast(graph.transpose(found, back), data.dtype)


def _open_transform(node: OnnxNode, axis: int, graph: GraphBuilder) -> Value:
    """Along a dynamic axis: a product with computed roots."""
    data, onesided = in_one_piece(node.input(0), axis, graph), bool(node.integer("onesided", 0))
    inverse, extent, parts = bool(node.integer("inverse", 0)), data.shape[axis], data.shape[-1]
    size = size_of(data.dims[axis])
    if extent > LARGEST_MATRIX or (inverse and onesided):
        hint = "give the length of the transform, or fix the size with --shape"
        raise graph.refusal(f"a transform of {size} elements", [data], hint)
    wanted = divide(size, 2) + 1 if onesided else size
    count = bounds_of(wanted)[1]
    graph.check_array((extent * parts, count * 2), data.dtype.wide.bytes)
    filled = graph.cast(graph.padded.filled(data, axis, "zero"), data.dtype.wide)
    perm = (*(a for a in range(data.rank - 1) if a != axis), axis, data.rank - 1)
    moved = graph.transpose(as_whole(filled, axis, graph), perm)
    outer = moved.shape[:-2]
    rows = graph.reshape(moved, (*outer, extent * parts))
    matrix = _open_roots(size, (extent, count), parts, inverse, graph)
    found = graph.emit("matmul", rows, graph.cast(matrix, rows.dtype))
    found = graph.reshape(found, (*outer, count, 2))
    found = with_axis(found, len(outer), ((wanted, count),), graph)
    back = tuple(perm.index(position) for position in range(data.rank))
    return graph.cast(graph.transpose(found, back), data.dtype)


def _open_roots(
    size: Dimension, shape: tuple[int, int], parts: int, inverse: bool, graph: GraphBuilder
) -> Value:
    """exp(-+ 2 pi i j k / size) as a real matrix [j * parts, k * 2]; the inverse's divided."""
    rows, columns = shape
    length = Numbers(graph.size(greater(size, 1)), graph)
    row = graph.reshape(graph.integers(range(rows)), (rows, 1))
    turns = Numbers(graph.append("mul", (row, graph.integers(range(columns))), {}), graph) % length
    wide = length.cast(DType.F64)
    angles = turns.cast(DType.F64) / wide * (2 * math.pi if inverse else -2 * math.pi)
    real, imaginary = (Numbers(graph.emit(f, angles.value), graph) for f in ("cos", "sin"))
    if inverse:
        real, imaginary = real / wide, imaginary / wide
    sides = [(real, imaginary), (imaginary * -1, real)][:parts]
    blocks = [[part.reshape(rows, 1, columns, 1).value for part in side] for side in sides]
    matrix = graph.concat([graph.concat(block, 3) for block in blocks], 1)
    return graph.reshape(matrix, (rows * parts, columns * 2))


def _cut(rows: Value, length: int, graph: GraphBuilder) -> Value:
    """[batch, n, parts] with `length` elements: the first ones, or zeros behind."""
    extent = rows.shape[1]
    if length <= extent:
        return graph.part(rows, 1, 0, length)
    pads = (0, 0, 0, 0, length - extent, 0)
    return graph.emit("pad", rows, graph.scalar(0, rows.dtype), pads=pads, mode="constant")


def _with_parts(rows: Value, graph: GraphBuilder) -> Value:
    """A spectrum of both parts."""
    if rows.shape[2] == 2:
        return rows
    zeros = graph.constant(np.zeros(rows.shape), rows.dtype)
    zeros = graph.padded.begins(zeros, rows.dims)
    return graph.concat([rows, zeros], 2)


@converter("STFT", 17)
def stft(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Transforms of frames [batch, frames, bins, 2] of a signal [batch, length, parts]."""
    signal, step = node.input(0), node.constant_integer(1, "the step of the frames")
    window = node.optional(2)
    if signal.rank == 2:
        signal = graph.reshape(signal, (*signal.shape, 1))
    if signal.rank != 3 or signal.shape[2] not in (1, 2):
        raise node.bad_shape(f"{signal.type} is not [batch, length, one or two parts]")
    length = signal.shape[1] if window is None else window.shape[0]
    if node.optional(3) is not None:
        length = node.constant_integer(3, "the length of the frames")
    if (window is not None and window.padded is not None) or (
        window is None and node.optional(3) is None and not is_unpadded(signal.dims[1])
    ):
        hint = "give frame_length as a constant, or fix the size with --shape"
        size = size_of(signal.dims[1] if window is None else window.dims[0])
        raise graph.refusal(f"frames of {size} elements", [signal, window], hint)
    if step < 1 or not 1 <= length <= signal.shape[1]:
        raise node.bad_shape(f"frames of {length} in steps of {step} in {signal.type}")
    if window is not None and window.shape != (length,):
        raise node.bad_shape(f"the window {window.type} is not of the frames' length {length}")
    count, (batch, _, parts) = 1 + (signal.shape[1] - length) // step, signal.shape
    wide = graph.cast(signal, signal.dtype.wide)
    frames = graph.emit("frames", wide, axis=1, count=count, length=length, step=step)
    if window is not None:
        factors = graph.reshape(graph.cast(window, wide.dtype), (length, 1))
        frames = graph.emit("mul", frames, factors)
    rows = graph.reshape(frames, (batch * count, length, parts))
    bins = length // 2 + 1 if node.integer("onesided", 1) else length
    found = transform(rows, graph, count=bins)
    return graph.cast(graph.reshape(found, (batch, count, bins, 2)), signal.dtype)


@converter("MelWeightMatrix", 17)
def mel_weight_matrix(node: OnnxNode, graph: GraphBuilder) -> Value:
    """Triangles whose corners lie at equal distances on the mel scale: [bins, mel bins]."""
    mels = node.constant_integer(0, "the number of mel bins")
    length = node.constant_integer(1, "the length of the transform")
    rate = node.constant_integer(2, "the sample rate")
    low, high = (float(node.constant(position, "an edge").reshape(-1)[0]) for position in (3, 4))
    dtype = dtype_of(node.integer("output_datatype", 1), f"{node.label}: the result")
    if min(mels, length, rate) < 1 or not 0 <= low <= high:
        raise node.invalid(f"{mels} mel bins of {low} to {high} Hz")
    graph.check_array((length // 2 + 1, mels), DType.F64.bytes)
    corners = _corners(mels, length, rate, low, high)
    if corners[-1] > length // 2 + 1:
        raise node.invalid(f"the upper edge of {high} Hz is above half of the rate {rate}")
    return graph.constant(_triangles(corners, length // 2 + 1), dtype)


def _corners(mels: int, length: int, rate: int, low: float, high: float) -> Array:
    first, last = (2595 * np.log10(1 + edge / 700) for edge in (low, high))
    points = first + np.arange(mels + 2) * (last - first) / (mels + 2)
    hertz = 700 * (10 ** (points / 2595) - 1)
    return np.asarray((length + 1) * hertz // rate).astype(np.int64)


def _triangles(corners: Array, bins: int) -> Array:
    places = np.arange(bins)
    weights = np.zeros((bins, len(corners) - 2))
    for mel, (left, centre, right) in enumerate(
        zip(corners[:-2], corners[1:-1], corners[2:], strict=True)
    ):
        rising = (places >= left) & (places <= centre)
        weights[rising, mel] = (places[rising] - left) / max(centre - left, 1)
        if centre == left:
            weights[centre, mel] = 1
        falling = (places >= centre) & (places < right)
        weights[falling, mel] = (right - places[falling]) / max(right - centre, 1)
    return weights
