"""Sizes that a kernel reads: which of its inputs hold them, how large they may be, what they limit.

Of a model with run-time sizes some kernels have an input of i64 that says how far tensors are
filled: in the kernel's limits, and in selects by `index < sizes[k]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.expr.affine import Ranges, expr_range
from tunefarm.compiler.expr.nodes import Binary, Const, Index, Load
from tunefarm.compiler.expr.walk import postorder
from tunefarm.compiler.kernels.kernel import DensePitch, FusedKernel, Pitch, RowPitch
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.tensor_type import Array


def greatest_sizes(kernel: FusedKernel) -> dict[str, dict[int, int]]:
    """By the name of an input that holds sizes: the maximum value of each element that is read.

    That is how far a tensor is padded along the axis that the element limits.
    """
    found: dict[str, dict[int, int]] = {}

    def note(name: str, number: int, size: int) -> None:
        known = found.setdefault(name, {})
        known[number] = max(known.get(number, 0), size)

    for limit in kernel.limits:
        note(limit.sizes, limit.number, limit.extent)
    for pitch in kernel.pitches.values():
        if isinstance(pitch, RowPitch):
            note(pitch.sizes, pitch.number, pitch.extent)
            continue
        for place, extent in zip(pitch.numbers, pitch.extents, strict=True):
            if place is not None:
                note(pitch.sizes, place, extent)
    names = {b.name for b in kernel.inputs if b.dtype is DType.I64 and len(b.shape) == 1}
    for stage in kernel.stages if names else ():
        axes = (*stage.axes, *stage.reduce_axes)
        ranges: Ranges = {axis.name: (0, axis.extent - 1) for axis in axes}
        for node in postorder(stage.body):
            match node:
                case Binary(
                    op="lt", left=left, right=Load(buffer=name, indices=(Const(value=number),))
                ) if name in names:
                    note(name, int(number), expr_range(left, ranges)[1] + 1)
    return found


def size_vectors(
    kernel: FusedKernel, sizes: Sequence[int] = ()
) -> dict[str, npt.NDArray[np.int64]]:
    """What the inputs that hold sizes are to contain: `sizes`, or else those that the kernel is
    tuned for, or else the maximum ones.

    `sizes` are those of the model; inputs with another number of elements hold others.
    """
    sizes = sizes or kernel.sizes
    vectors = {}
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    for name, greatest in greatest_sizes(kernel).items():
        vector = np.full(shapes[name], max(1, *greatest.values()), np.int64)
        for number, size in greatest.items():
            vector[number] = size
        vectors[name] = np.minimum(vector, sizes) if vector.shape == (len(sizes),) else vector
    return vectors


def kernel_at(kernel: FusedKernel, sizes: Sequence[int]) -> FusedKernel:
    """The kernel as it is tuned for these sizes of its model.

    Only sizes that it reads count: it is itself where those are the maximum, or where it reads
    none.
    """
    for name, vector in size_vectors(replace(kernel, sizes=())).items():
        if len(vector) == len(sizes):
            read = greatest_sizes(kernel)[name]
            at = [
                min(int(greatest), sizes[number]) if number in read else int(greatest)
                for number, greatest in enumerate(vector)
            ]
            return replace(kernel, sizes=() if at == vector.tolist() else tuple(at))
    return replace(kernel, sizes=())


@frozen
class LiveExtents:
    """How far a kernel's loops run at the sizes that it is tuned for: the extents of its output's
    axes, and of axes that are summed over, by name."""

    output: tuple[int, ...]
    reduce: Mapping[str, int]


def live_extents(kernel: FusedKernel) -> LiveExtents:
    """The extents at the kernel's sizes; of axes that no size ends, those there are."""
    vectors = size_vectors(kernel)
    output: list[int] = []
    for position, axis in enumerate(kernel.output.axes):
        after = math.prod(kernel.output.shape[position + 1 :])
        extent = float(axis.extent)
        for limit in kernel.limits:
            if after <= limit.stride < after * axis.extent:
                size = int(vectors[limit.sizes][limit.number]) + limit.offset
                extent *= min(1.0, max(size, 0) / limit.extent)
        output.append(max(1, math.ceil(extent)))
    reduce: dict[str, int] = {}
    for stage in kernel.stages if vectors else ():
        extents = {axis.name: axis.extent for axis in stage.reduce_axes}
        for node in postorder(stage.body):
            match node:
                case Binary(
                    op="lt",
                    left=Index(name=axis_name),
                    right=Load(buffer=name, indices=(Const(value=number),)),
                ) if axis_name in extents and name in vectors:
                    size = max(1, int(vectors[name][int(number)]))
                    known = reduce.get(axis_name, extents[axis_name])
                    reduce[axis_name] = min(known, size)
    return LiveExtents(tuple(output), reduce)


def needed_elements(
    kernel: FusedKernel, inputs: Mapping[str, Array]
) -> npt.NDArray[np.bool_] | None:
    """Which elements of the output matter for these sizes (by input); None: all of them."""
    if not kernel.limits:
        return None
    place = np.arange(math.prod(kernel.output.shape)).reshape(kernel.output.shape)
    needed = np.ones(kernel.output.shape, np.bool_)
    for limit in kernel.limits:
        size = inputs[limit.sizes][limit.number] + limit.offset
        needed &= place // limit.stride % limit.extent < size
    return needed


def as_stored(array: Array, pitch: Pitch | None, sizes: Mapping[str, Array]) -> Array:
    """A tensor's elements, at its bounds, as they lie in memory for these sizes (by input).

    Of the same shape; itself where all of them lie at the bounds.
    """
    if isinstance(pitch, DensePitch):
        there = array[tuple(map(slice, pitch.there(sizes)))]
        stored = np.empty_like(array)
        stored.reshape(-1)[: there.size] = there.reshape(-1)
        return stored
    if pitch is None or pitch.columns(sizes) == pitch.extent:
        return array
    stored = np.array(array)
    _rows_in_memory(stored, pitch, sizes)[...] = _rows(array, pitch, sizes)
    return stored


def as_logical(stored: Array, pitch: RowPitch | None, sizes: Mapping[str, Array]) -> Array:
    """What `as_stored` was given, but for elements that are not there."""
    if pitch is None or pitch.columns(sizes) == pitch.extent:
        return stored
    array = np.array(stored)
    _rows(array, pitch, sizes)[...] = _rows_in_memory(stored, pitch, sizes)
    return array


def _rows(array: Array, pitch: RowPitch, sizes: Mapping[str, Array]) -> Array:
    """The columns that are there: a view [planes, rows, columns, column]."""
    planes = array.reshape(-1, pitch.rows, pitch.extent, pitch.column)
    return planes[:, :, : pitch.columns(sizes)]


def _rows_in_memory(stored: Array, pitch: RowPitch, sizes: Mapping[str, Array]) -> Array:
    """The same elements where they lie: a view."""
    columns = pitch.columns(sizes)
    planes = stored.reshape(-1, pitch.plane)[:, : pitch.rows * columns * pitch.column]
    shape = (len(planes), pitch.rows, columns, pitch.column)
    strides = (stored.itemsize * step for step in (pitch.plane, columns * pitch.column))
    inner = (stored.itemsize * pitch.column, stored.itemsize)
    return np.lib.stride_tricks.as_strided(planes, shape, (*strides, *inner))
