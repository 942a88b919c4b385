"""Discrete Fourier transforms as products with constant matrices.

A transform of n elements is one product where n is small. Else it is taken apart (Cooley and
Tukey): n = a b transforms of length a, a factor for each element, transforms of length b. Where n
has a large prime factor it is a convolution (Bluestein), made of transforms of a length that has
none. What is cheapest is chosen by the number of multiplications and of passes over the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value

Complex = npt.NDArray[np.complex128]

_PASS = 24.0  # multiplications that take as long as an element's way through memory and back
LARGEST_MATRIX = 2048
_SMALL_FACTOR = 64  # transforms of such a prime length are products


@dataclass(frozen=True, slots=True)
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
