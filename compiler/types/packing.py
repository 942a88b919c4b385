"""How the numbers of a constant lie in memory, and what moves them there and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.tensor_type import Array

NewArray: TypeAlias = Callable[[tuple[int, ...], np.dtype[np.generic]], Array]


@frozen
class Packing:
    """An array of `shape` whose dimensions are split and then permuted.

    Each (axis, factor) of `splits` divides a dimension into (ceil(n / factor), factor), padded with
    zeros; `order` permutes the resulting dimensions.
    """

    shape: tuple[int, ...]
    splits: tuple[tuple[int, int], ...]
    order: tuple[int, ...]

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """The shape in memory."""
        split = self._split_shape
        return tuple(split[axis] for axis in self.order)

    def pack(self, array: Array, empty: NewArray = np.empty) -> Array:
        """The numbers of an array of `shape` as they lie in memory, C-contiguous.

        `empty` makes the array that is returned.
        """
        factors = dict(self.splits)
        pads = [(0, -extent % factors.get(axis, 1)) for axis, extent in enumerate(self.shape)]
        padded = np.pad(array, pads) if any(after for _, after in pads) else array
        split = padded.reshape(self._split_shape).transpose(self.order)
        result = empty(split.shape, array.dtype)
        np.copyto(result, split)
        return result

    def unpack(self, packed: Array) -> Array:
        """The array of `shape` that lies packed."""
        split = self._split_shape
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        apart = packed.reshape([split[axis] for axis in self.order]).transpose(inverse)
        factors = dict(self.splits)
        padded = [extent + -extent % factors.get(axis, 1) for axis, extent in enumerate(self.shape)]
        whole = apart.reshape(padded)[tuple(map(slice, self.shape))]
        return np.ascontiguousarray(whole)

    @property
    def _split_shape(self) -> tuple[int, ...]:
        factors = dict(self.splits)
        split: list[int] = []
        for axis, extent in enumerate(self.shape):
            if axis in factors:
                split += [-(-extent // factors[axis]), factors[axis]]
            else:
                split.append(extent)
        return tuple(split)
