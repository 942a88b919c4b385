"""Layouts of constant inputs: the shape, the index map and the packing itself agree here."""

from __future__ import annotations

from typing import Any

import numpy as np

from tunefarm.compiler.expr.nodes import Expr, binary, integer
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.packing import NewArray, Packing
from tunefarm.compiler.types.tensor_type import Array
from tunefarm.compiler.types.winograd_filter import pack_transformed, transformed_shape


@frozen
class ConstantLayout:
    """How a constant input lies in memory: the `splits` and the `order` of a `Packing`.

    With `winograd` m, a 3x3 filter [OC, IC, 3, 3] is first transformed to [m+2, m+2, OC, IC], in
    f32 if it is of narrow floats.
    """

    splits: tuple[tuple[int, int], ...]
    order: tuple[int, ...]
    winograd: int = 0

    def shape(self, logical: tuple[int, ...]) -> tuple[int, ...]:
        """The physical shape of a constant of the logical (for Winograd: transformed) shape."""
        return self.packing(logical).packed_shape

    def packing(self, logical: tuple[int, ...]) -> Packing:
        """How the numbers of an array of the logical (for Winograd: transformed) shape lie."""
        return Packing(logical, self.splits, self.order)

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
            return self.packing(array.shape).pack(array, empty)
        packing = self.packing(transformed_shape(array.shape, self.winograd))
        return pack_transformed(array, self.winograd, packing, self.dtype(array.dtype), empty)

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
