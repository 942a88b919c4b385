"""Layouts of constant inputs: the shape, the index map and the packing itself agree here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tunefarm.compiler.expr.nodes import Expr, binary, integer
from tunefarm.compiler.kernels.winograd import transform_taps
from tunefarm.compiler.types.tensor_type import Array

NewArray: TypeAlias = Callable[[tuple[int, ...], np.dtype[np.generic]], Array]


@dataclass(frozen=True, slots=True)
class ConstantLayout:
    """How a constant input lies in memory: split dimensions, then permuted.

    Each (axis, factor) of `splits` divides a dimension into (ceil(n / factor), factor), padded with
    zeros; `order` permutes the resulting dimensions. With `winograd` m, a 3x3 filter
    [OC, IC, 3, 3] is first transformed to [m+2, m+2, OC, IC], in f32 if it is of narrow floats.
    """

    splits: tuple[tuple[int, int], ...]
    order: tuple[int, ...]
    winograd: int = 0

    def shape(self, logical: tuple[int, ...]) -> tuple[int, ...]:
        """The physical shape of a constant of the logical (for Winograd: transformed) shape."""
        split = self._split_shape(logical)
        return tuple(split[axis] for axis in self.order)

    def indices(self, logical: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Physical indices of a logical element."""
        factors = dict(self.splits)
        split: list[Expr] = []
        for axis, item in enumerate(logical):
            if axis in factors:
                factor = integer(factors[axis])
                split += [binary("floordiv", item, factor), binary("mod", item, factor)]
            else:
                split.append(item)
        return tuple(split[axis] for axis in self.order)

    def pack(self, array: Array, empty: NewArray = np.empty) -> Array:
        """The constant in its physical layout, C-contiguous; padding elements are zero.

        `empty` makes the array that is returned.
        """
        if not self.winograd:
            return self._packed(array, empty)
        edge, dtype = self.winograd + 2, self.dtype(array.dtype)
        taps = array.transpose(2, 3, 0, 1)
        if self.order[:2] == (0, 1):  # packing first gives the same, and moves less
            packed = self._packed(taps, np.empty)
            result = empty((edge, edge, *packed.shape[2:]), dtype)
            transform_taps(packed, self.winograd, result)
            return result
        transformed = np.empty((edge, edge, *taps.shape[2:]), dtype)
        transform_taps(taps, self.winograd, transformed)
        return self._packed(transformed, empty)

    def unpack(self, packed: Array, logical: tuple[int, ...]) -> Array:
        """The constant of the logical (for Winograd: transformed) shape that lies packed."""
        split = self._split_shape(logical)
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        apart = packed.reshape([split[axis] for axis in self.order]).transpose(inverse)
        factors = dict(self.splits)
        padded = [extent + -extent % factors.get(axis, 1) for axis, extent in enumerate(logical)]
        whole = apart.reshape(padded)[tuple(map(slice, logical))]
        return np.ascontiguousarray(whole)

    def dtype(self, logical: np.dtype[np.generic]) -> np.dtype[np.generic]:
        """The physical element type of a constant of the logical one."""
        narrow = self.winograd and logical.itemsize < np.dtype(np.float32).itemsize
        return np.dtype(np.float32) if narrow else logical

    def to_json(self) -> list[Any]:
        """The splits, the order and Winograd's m."""
        return [self.splits, self.order, self.winograd]

    @staticmethod
    def from_json(data: Any) -> ConstantLayout:
        """The inverse of `to_json`; TypeError or ValueError for anything else."""
        splits, order, winograd = data
        pairs = tuple((int(axis), int(factor)) for axis, factor in splits)
        return ConstantLayout(pairs, tuple(map(int, order)), int(winograd))

    def _packed(self, array: Array, empty: NewArray) -> Array:
        factors = dict(self.splits)
        pads = [
            (0, -extent % factors[axis] if axis in factors else 0)
            for axis, extent in enumerate(array.shape)
        ]
        padded = np.pad(array, pads) if any(after for _, after in pads) else array
        split = padded.reshape(self._split_shape(array.shape)).transpose(self.order)
        result = empty(split.shape, array.dtype)
        np.copyto(result, split)
        return result

    def _split_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        factors = dict(self.splits)
        split: list[int] = []
        for axis, extent in enumerate(shape):
            if axis in factors:
                split += [-(-extent // factors[axis]), factors[axis]]
            else:
                split.append(extent)
        return tuple(split)
