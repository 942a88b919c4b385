"""Strategies that draw how far a kernel is needed, and graphs that fill what lies behind."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from hypothesis import strategies as st

from tests.compiler.schedule.drawn_graphs import Case, Chain, extents
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel, ValidExtent
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array

SIZES = 3


@st.composite
def limits(draw: st.DrawFn, case: Case) -> tuple[FusedKernel, dict[str, Array], Array]:
    """The kernel with limits on runs of its axes, its inputs, and which elements are needed."""
    shape = case.kernel.output.shape
    name = f"in{len(case.kernel.inputs)}"
    found, sizes = [], [0] * SIZES
    needed = np.ones(prod(shape), np.bool_)
    for number in range(draw(st.integers(1, SIZES))):
        first = draw(st.integers(0, len(shape) - 1)) if shape else 0
        last = draw(st.integers(first + 1, len(shape))) if shape else 0
        extent, stride = prod(shape[first:last]), prod(shape[last:])
        parts = [part for part in range(1, extent + 1) if extent % part == 0]
        extent = draw(st.just(extent) | st.sampled_from(parts))
        sizes[number] = draw(st.integers(0, extent) | st.just(extent))
        offset = draw(st.just(0) | st.integers(-1, 2))
        found.append(ValidExtent(stride, extent, name, number, offset))
        needed &= np.arange(needed.size) // stride % extent < sizes[number] + offset
    kernel = replace(
        case.kernel,
        inputs=(*case.kernel.inputs, Buffer(name, DType.I64, (SIZES,))),
        limits=tuple(found),
    )
    inputs = {**case.inputs, name: np.array(sizes, np.int64)}
    return kernel, inputs, needed.reshape(shape)


@st.composite
def filled_rows(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Reductions, softmax and products along an axis behind whose true size is padding."""
    chain = Chain()
    rows, columns = draw(extents(lanes, 13)), draw(extents(lanes))
    size = draw(st.integers(1, columns) | st.just(columns))
    sizes = chain.input((2,), DType.I64)
    chain.values[sizes] = np.array([size, rows], np.int64)

    def fill(value: str, axis: int, content: str) -> str:
        number = 0 if chain.shape(value)[axis] == columns else 1
        return chain.apply("fill", value, sizes, axis=axis, number=number, value=content)

    data = _padded(chain, (rows, columns), 1, size)
    kinds = "softmax", "sum", "max", "mean", "all rows", "blocks", "product", "attention", "copy"
    kind = draw(st.sampled_from(kinds))
    if kind == "softmax":
        chain.apply("softmax", fill(data, 1, "lowest"), axis=1)
    elif kind == "sum":
        chain.apply("reduce_sum", fill(data, 1, "zero"), axes=(1,), keepdims=0)
    elif kind == "max":
        chain.apply("reduce_max", fill(data, 1, "lowest"), axes=(1,), keepdims=0)
    elif kind == "all rows":
        chain.apply("reduce_max", fill(data, 1, "lowest"), axes=(0, 1), keepdims=0)
    elif kind == "blocks":
        blocks = _padded(chain, (rows, columns, lanes), 1, size)
        chain.apply("reduce_sum", fill(blocks, 1, "zero"), axes=(0, 1, 2), keepdims=0)
    elif kind == "mean":
        total = chain.apply("reduce_sum", fill(data, 1, "zero"), axes=(1,), keepdims=1)
        chain.apply("sub", data, chain.apply("mul", total, chain.input((1,), constant=True)))
    elif kind == "product":
        other = _padded(chain, (columns, draw(extents(lanes, 33))), 0, size)
        chain.apply("matmul", fill(data, 1, "zero"), fill(other, 0, "zero"))
    elif kind == "attention":
        return _attention(draw, chain, lanes, sizes)
    else:
        chain.apply("relu", fill(data, 1, "one"))
    return chain.cases()


def _attention(draw: st.DrawFn, chain: Chain, lanes: int, sizes: str) -> list[Case]:
    batch = draw(st.sampled_from([(), (3,), (2, 2)]))
    queries = draw(extents(lanes, 33))
    keys = draw(st.sampled_from([1, 7, 49, 128, 197, 300]))
    size = draw(st.integers(1, keys) | st.just(keys))
    begin, since = draw(st.integers(-2, size - 1)), draw(st.sampled_from([-1, 0]))
    chain.values[sizes] = np.array([begin, size], np.int64)
    features, columns = (draw(st.sampled_from([5, 8, 32])) for _ in range(2))
    query = chain.input((*batch, queries, features))
    key = _padded(chain, (*batch, keys, features), len(batch), size)
    value = _padded(chain, (*batch, keys, columns), len(batch), size)
    masks = [chain.input((queries, keys))] if draw(st.booleans()) else []
    chain.apply("attention", query, key, value, *masks, sizes, scale=0.2, filled=1, since=since)
    return chain.cases()


def _padded(chain: Chain, shape: tuple[int, ...], axis: int, size: int) -> str:
    """An input that is NaN behind the true size of an axis."""
    name = chain.input(shape)
    np.moveaxis(chain.values[name], axis, 0)[size:] = np.nan
    return name


@st.composite
def filled_planes(draw: st.DrawFn, lanes: int) -> tuple[Case, Array]:
    """Blocked convolutions that fill their planes behind run-time sizes, and what is needed.

    Data is NaN where no window of a true element reads it.
    """
    chain = Chain()
    taps, stride = draw(st.sampled_from([1, 3, 3, 3, 5])), draw(st.sampled_from([1, 1, 1, 2]))
    plane = [draw(st.integers(taps, 18)) for _ in range(2)]
    pads = [draw(st.integers(0, taps // 2)) for _ in range(4)]
    inputs, outputs = draw(st.integers(1, 2)), draw(st.integers(1, 5))
    data = chain.input((draw(st.integers(1, 2)), inputs, *plane, lanes))
    weight = chain.input((outputs * lanes, inputs * lanes, taps, taps), constant=True)
    sizes = chain.input((2,), DType.I64)
    value = chain.apply(
        "conv", data, weight, layout="NCHWc", pads=tuple(pads), strides=(stride, stride)
    )
    shape = chain.shape(value)
    true = [draw(st.integers(1, extent) | st.just(extent)) for extent in shape[2:4]]
    chain.values[sizes] = np.array(true, np.int64)
    for number, size in enumerate(true):
        reach = (size - 1) * stride + taps - pads[number]
        np.moveaxis(chain.values[data], 2 + number, 0)[max(0, reach) :] = np.nan
    if draw(st.booleans()):
        value = chain.apply("relu", value)
    fills = [number for number in (0, 1) if draw(st.sampled_from([True, True, False]))]
    for number in fills:
        chain.apply("fill", chain.nodes[-1].output, sizes, axis=2 + number, number=number)
    (case,) = chain.cases()
    needed, found = np.ones(shape, np.bool_), []
    name = (
        next(item.name for item in case.kernel.inputs if item.dtype is DType.I64) if fills else ""
    )
    for number in fills:
        offset = draw(st.integers(0, 2))
        stride_of = prod(shape[3 + number :])
        found.append(ValidExtent(stride_of, shape[2 + number], name, number, offset))
        np.moveaxis(needed, 2 + number, 0)[true[number] + offset :] = False
    needed &= ~np.isnan(case.expected)
    return replace(case, kernel=replace(case.kernel, limits=tuple(found))), needed
