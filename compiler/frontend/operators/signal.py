"""Signals: Fourier transforms of whole axes and of frames, and the mel scale's weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.frontend.converter import converter, dynamic_operand
from tunefarm.compiler.frontend.element_types import dtype_of
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.numbers import Numbers, integers, vector
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import as_whole, in_one_piece, with_axis
from tunefarm.compiler.frontend.settle import (
    chosen,
    converted,
    declared,
    expect_constant,
    listed_shapes,
    require,
    selected,
)
from tunefarm.compiler.types.dtypes import FLOATS, DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import is_unpadded, size_of
from tunefarm.compiler.types.sizes import Dimension, bounds_of, divide, greater
from tunefarm.compiler.types.tensor_type import Array

# --- Discrete Fourier transforms as products with constant matrices ------------------------------
#
# A transform of n elements is one product where n is small. Else it is taken apart (Cooley and
# Tukey): n = a b transforms of length a, a factor for each element, transforms of length b. Where
# n has a large prime factor it is a convolution (Bluestein), made of transforms of a length that
# has none. What is cheapest is chosen by the number of multiplications and of passes over the
# data.


Complex = npt.NDArray[np.complex128]

_PASS = 24.0  # multiplications that take as long as an element's way through memory and back
LARGEST_MATRIX = 2048
_SMALL_FACTOR = 64  # transforms of such a prime length are products


@frozen
class Plan:
    """How a transform is computed: `first` and `second` lengths, or a convolution of `padded`.

    All are 0 where it is one product; `cost` is that of one transform, in multiplications.
    """

    cost: float
    first: int = 0
    second: int = 0
    padded: int = 0


@lru_cache(maxsize=4096)
def plan_transform(length: int) -> Plan:
    """The cheapest way to transform so many complex elements."""
    plans = [_bluestein(length)] if _largest_factor(length) > _SMALL_FACTOR else []
    if length <= LARGEST_MATRIX:
        plans.append(Plan(4.0 * length * length))
    for first in range(2, math.isqrt(length) + 1):
        if length % first == 0:
            second = length // first
            own = second * plan_transform(first).cost + first * plan_transform(second).cost
            plans.append(Plan(own + 4 * _PASS * length, first, second))
    return min(plans, key=lambda plan: plan.cost)


def _bluestein(length: int) -> Plan:
    padded = smooth_length(2 * length - 1)
    return Plan(2 * plan_transform(padded).cost + 6 * _PASS * padded, padded=padded)


def smooth_length(least: int) -> int:
    """The smallest product of twos, and a few threes and fives, that is not less."""
    candidates = (int(3**threes * 5**fives) for threes in range(8) for fives in range(4))
    return min(odd << (-(-least // odd) - 1).bit_length() for odd in candidates)


def _largest_factor(number: int) -> int:
    """The largest prime factor."""
    factor, largest = 2, 1
    while factor * factor <= number:
        if number % factor:
            factor += 1
        else:
            number, largest = number // factor, factor
    return max(largest, number)


def transform(
    data: Value, graph: GraphBuilder, *, sign: int = -1, count: int | None = None, scale: float = 1
) -> Value:
    """sum_j data[b, j] exp(sign 2 pi i j k / n) scale for k < count (None: all n).

    `data` is [batch, n, parts] of one part (real) or two (real, imaginary), in f32 or f64; the
    result is [batch, count, 2].
    """
    length, parts = data.shape[1:]
    wanted = length if count is None else count
    plan = plan_transform(length)
    if length <= LARGEST_MATRIX and parts * 2 * wanted * length <= plan.cost:
        plan = Plan(0)
    if plan.padded:
        return _head(_convolved(data, plan.padded, sign, scale, graph), wanted, graph)
    if plan.first:
        return _apart(data, plan, sign, wanted, scale, graph)
    matrix = _roots(length, wanted, sign) * scale
    return _product(data, matrix, graph)


def _roots(rows: int, columns: int, sign: int, length: int = 0) -> Complex:
    """exp(sign 2 pi i j k / length), exact in the large: the length is the rows' if 0."""
    length = length or rows
    turns = np.outer(np.arange(rows), np.arange(columns)) % length
    return np.asarray(np.exp(sign * 2j * np.pi * turns / length))


def _product(data: Value, matrix: Complex, graph: GraphBuilder) -> Value:
    """Rows [batch, n, parts] times a complex matrix [n, k], as one real product: [batch, k, 2]."""
    batch, length, parts = data.shape
    real = np.stack([matrix.real, matrix.imag], axis=-1)
    imaginary = np.stack([-matrix.imag, matrix.real], axis=-1)
    rows = np.stack([real, imaginary][:parts], axis=1).reshape(length * parts, -1)
    graph.check_array(rows.shape, data.dtype.bytes)
    flat = graph.reshape(data, (batch, length * parts))
    product = graph.emit("matmul", flat, graph.constant(rows, data.dtype))
    return graph.reshape(product, (batch, matrix.shape[1], 2))


def _apart(
    data: Value, plan: Plan, sign: int, wanted: int, scale: float, graph: GraphBuilder
) -> Value:
    """Element j = second j1 + j2 goes to k = k1 + first k2."""
    batch, length, parts = data.shape
    first, second = plan.first, plan.second
    split = graph.reshape(data, (batch, first, second, parts))
    columns = graph.reshape(graph.transpose(split, (0, 2, 1, 3)), (batch * second, first, parts))
    inner = graph.reshape(transform(columns, graph, sign=sign), (batch, second, first, 2))
    turned = _times(inner, _roots(second, first, sign, length) * scale, graph)
    rows = graph.reshape(graph.transpose(turned, (0, 2, 1, 3)), (batch * first, second, 2))
    count = -(-wanted // first)
    outer = transform(rows, graph, sign=sign, count=count)
    outer = graph.transpose(graph.reshape(outer, (batch, first, count, 2)), (0, 2, 1, 3))
    return _head(graph.reshape(outer, (batch, count * first, 2)), wanted, graph)


def _times(data: Value, factors: Complex, graph: GraphBuilder) -> Value:
    """Complex data [..., 2] times a constant of complex numbers in its last axes before that."""
    real = np.stack([factors.real, factors.real], axis=-1)
    imaginary = np.stack([-factors.imag, factors.imag], axis=-1)
    last = data.rank - 1
    swapped = graph.emit(
        "slice",
        data,
        starts=(0,) * last + (1,),
        steps=(1,) * last + (-1,),
        shape=data.shape,
    )
    straight = graph.emit("mul", data, graph.constant(real, data.dtype))
    crossed = graph.emit("mul", swapped, graph.constant(imaginary, data.dtype))
    return graph.emit("add", straight, crossed)


def _convolved(data: Value, padded: int, sign: int, scale: float, graph: GraphBuilder) -> Value:
    """jk = (j^2 + k^2 - (k - j)^2) / 2: a convolution with exp(-sign pi i n^2 / length)."""
    batch, length, parts = data.shape
    squares = np.arange(length) ** 2 % (2 * length)
    chirp = np.exp(sign * 1j * np.pi * squares / length)
    kernel = np.zeros(padded, np.complex128)
    kernel[:length] = chirp.conj()
    kernel[padded - length + 1 :] = chirp[:0:-1].conj()
    if parts == 1:
        zeros = graph.constant(np.zeros((batch, length, 1)), data.dtype)
        data = graph.concat([data, zeros], 2)
    turned = _times(data, chirp, graph)
    pads = (0, 0, 0, 0, padded - length, 0)
    wide = graph.emit("pad", turned, graph.scalar(0, data.dtype), pads=pads, mode="constant")
    product = _times(transform(wide, graph), np.fft.fft(kernel) / padded, graph)
    back = _head(transform(product, graph, sign=1), length, graph)
    return _times(back, chirp * scale, graph)


def _head(data: Value, count: int, graph: GraphBuilder) -> Value:
    return graph.part(data, 1, 0, count)


def real_inverse(data: Value, length: int, graph: GraphBuilder) -> Value:
    """The real signal [batch, length, 1] of the first half of its spectrum [batch, h, 2]."""
    batch, half, _ = data.shape
    if 2 * half * length <= plan_transform(length).cost and length <= LARGEST_MATRIX:
        counts = np.full(half, 2.0)
        counts[0] = 1
        if length % 2 == 0:
            counts[-1] = 1
        roots = _roots(half, length, 1, length) * (counts / length)[:, None]
        rows = np.stack([roots.real, -roots.imag], axis=1).reshape(2 * half, length)
        flat = graph.reshape(data, (batch, 2 * half))
        product = graph.emit("matmul", flat, graph.constant(rows, data.dtype))
        return graph.reshape(product, (batch, length, 1))
    mirrored = np.arange(length - half, 0, -1)
    behind = graph.emit("gather", data, graph.constant(mirrored.astype(np.int64)), axis=1)
    behind = graph.emit("mul", behind, graph.constant(np.array([1.0, -1.0]), data.dtype))
    whole = graph.concat([data, behind], 1)
    signal = transform(whole, graph, sign=1, scale=1 / length)
    return graph.part(signal, 2, 0, 1)


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


# --- Fourier transforms along a computed axis, and of frames at computed steps -------------------


@dynamic_operand("DFT", at=(1, 2), padded=True)
def computed_dft(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Axes whose transforms have the declared shape, or the length that the shape says."""
    data = node.input(0)
    inverse, onesided = bool(node.integer("inverse", 0)), bool(node.integer("onesided", 0))
    if node.is_computed(1):
        wanted = declared(node, 1, "the length")
        if node.is_computed(2) or (onesided and not inverse):  # of two lengths, or of several axes
            raise node.not_settled(1, "the length")
        axis = node.integer("axis", 1) if node.version < 20 else -2
        if node.optional(2) is not None:
            axis = node.constant_integer(2, "the axis")
        length = wanted[node.axis(axis, data.rank)]
        return node.with_constants({1: expect_constant(node, graph, 1, (length,), "the length")})
    given = None if node.optional(1) is None else node.constant_integer(1, "the length")

    def size(old: Dimension) -> Dimension:
        if inverse and onesided:
            return given or 2 * (old - 1)
        length = given or old
        return divide(length, 2) + 1 if onesided else length

    shape = data.true_shape
    choices: dict[tuple[int, ...], Sequence[Dimension]] = {
        (axis,): (*shape[:axis], size(old), *shape[axis + 1 : -1], 1 if inverse and onesided else 2)
        for axis, old in enumerate(shape[:-1])
    }
    return chosen(node, graph, listed_shapes(node, choices), data.rank, position=2)


@dynamic_operand("STFT", at=(1, 3))
def computed_stft(node: OnnxNode, graph: GraphBuilder) -> OnnxNode | Value:
    """Frames read at computed places; their length is one that gives the declared bins."""
    signal, window = node.input(0), node.optional(2)
    at = 1 if node.is_computed(1) else 3
    wanted = declared(node, at, "the step of the frames" if at == 1 else "the length of the frames")
    if len(wanted) != 4 or signal.rank not in (2, 3):
        raise node.bad_shape(f"the frames of {signal.type} are none of {list(wanted)}")
    _, count, bins, _ = wanted
    if not node.is_computed(3) and node.optional(3) is not None:
        lengths = [node.constant_integer(3, "the length of the frames")]
    elif window is not None:
        lengths = [window.shape[0]]
    elif node.optional(3) is None:
        lengths = [signal.shape[1]]
    else:
        lengths = [2 * bins - 2, 2 * bins - 1] if node.integer("onesided", 1) else [bins]
    lengths = [length for length in lengths if 1 <= length <= signal.shape[1]]
    if not lengths:
        raise node.bad_shape(f"no frames of {signal.type} have {bins} bins")
    step = vector(node.input(1), graph)
    given = vector(node.input(3), graph) if node.is_computed(3) else step.like([lengths[0]])
    here = [given.equals(length) for length in lengths]
    right = here[0]
    for other in here[1:]:
        right = right | other
    length_of = " or ".join(map(str, lengths))
    if node.is_computed(3):
        require(node, graph, 3, right, f"the length of the frames must be {length_of}")
    room = step.like([signal.shape[1]]) - given
    fits = (step >= 1) & (room.at_least(0) / step.at_least(1) + 1).equals(count)
    require(node, graph, 1, fits, f"the step must give {count} frames")
    values = [_of_frames(node, graph, step, count, length) for length in lengths]
    return selected(node, here, values)


def _of_frames(
    node: OnnxNode, graph: GraphBuilder, step: Numbers, count: int, length: int
) -> Value:
    """The transforms of frames that are laid one behind the other."""
    signal = node.input(0)
    first = integers(range(count), graph) * step.at_most(signal.shape[1])
    places = first.reshape(count, 1) + integers(range(length), graph)
    inside = places.reshape(count * length).at_least(0).at_most(signal.shape[1] - 1)
    frames = graph.emit("gather", signal, inside.value, axis=1)
    constants = {0: frames, 1: graph.integers((length,)), 3: graph.integers((length,))}
    return converted(node.with_constants(constants), graph)
