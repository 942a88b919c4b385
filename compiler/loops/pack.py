"""Packed layouts of constant inputs: the shape, the index map and the packing itself agree here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from compiler.expr.nodes import Expr, binary, integer
from compiler.kernels.winograd import transform_taps
from compiler.schedule.steps import PackLayout
from compiler.types.tensor_type import Array

NewArray: TypeAlias = Callable[[tuple[int, ...], np.dtype[np.generic]], Array]


def packed_shape(shape: tuple[int, ...], layout: PackLayout) -> tuple[int, ...]:
    """The physical shape of a constant of the logical (for Winograd: transformed) `shape`."""
    split = _split_shape(shape, layout)
    return tuple(split[axis] for axis in layout.order)


def packed_indices(indices: tuple[Expr, ...], layout: PackLayout) -> tuple[Expr, ...]:
    """Physical indices of a logical element."""
    factors = dict(layout.splits)
    split: list[Expr] = []
    for axis, item in enumerate(indices):
        if axis in factors:
            factor = integer(factors[axis])
            split += [binary("floordiv", item, factor), binary("mod", item, factor)]
        else:
            split.append(item)
    return tuple(split[axis] for axis in layout.order)


def pack_constant(array: Array, layout: PackLayout, empty: NewArray = np.empty) -> Array:
    """The constant in its physical layout, C-contiguous; padding elements are zero.

    `empty` makes the array that is returned.
    """
    if not layout.winograd:
        return _packed(array, layout, empty)
    edge = layout.winograd + 2
    taps = array.transpose(2, 3, 0, 1)
    if layout.order[:2] == (0, 1):  # packing first gives the same, and moves less
        packed = _packed(taps, layout, np.empty)
        result = empty((edge, edge, *packed.shape[2:]), array.dtype)
        transform_taps(packed, layout.winograd, result)
        return result
    transformed = np.empty((edge, edge, *taps.shape[2:]), array.dtype)
    transform_taps(taps, layout.winograd, transformed)
    return _packed(transformed, layout, empty)


def _packed(array: Array, layout: PackLayout, empty: NewArray) -> Array:
    factors = dict(layout.splits)
    pads = [
        (0, -extent % factors[axis] if axis in factors else 0)
        for axis, extent in enumerate(array.shape)
    ]
    padded = np.pad(array, pads) if any(after for _, after in pads) else array
    split = padded.reshape(_split_shape(array.shape, layout)).transpose(layout.order)
    result = empty(split.shape, array.dtype)
    np.copyto(result, split)
    return result


def _split_shape(shape: tuple[int, ...], layout: PackLayout) -> tuple[int, ...]:
    factors = dict(layout.splits)
    split: list[int] = []
    for axis, extent in enumerate(shape):
        if axis in factors:
            split += [-(-extent // factors[axis]), factors[axis]]
        else:
            split.append(extent)
    return tuple(split)
