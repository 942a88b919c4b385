"""Tensor types: the element type and shape of a value, arrays and attributes."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import (
    PaddedShape,
    extent_of,
    is_unpadded,
    true_shape,
    unpadded_shape,
)
from tunefarm.compiler.types.sizes import Dimension

Attribute: TypeAlias = (
    int | float | str | bool | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | None
)

Array: TypeAlias = npt.NDArray[np.generic]


@frozen
class TensorType:
    """Element type and shape of a value; a scalar has the shape ().

    `shape` is that of its memory, at the bounds of all symbols. Where less than that may be there
    `padded` says what is (None: all of it, or nobody knows). Types of equal memory are equal.
    """

    dtype: DType
    shape: tuple[int, ...]
    padded: PaddedShape | None = None

    @staticmethod
    def of(dtype: DType, dims: PaddedShape) -> TensorType:
        """The type of a value that has these axes."""
        extents = tuple([axis[0][1] if len(axis) == 1 else extent_of(axis) for axis in dims])
        return TensorType(dtype, extents, None if all(map(is_unpadded, dims)) else dims)

    @property
    def dims(self) -> PaddedShape:
        """What is there of each axis: its factors, each a true size and an extent."""
        return unpadded_shape(self.shape) if self.padded is None else self.padded

    @property
    def true_shape(self) -> tuple[Dimension, ...]:
        """The shape without padding."""
        return self.shape if self.padded is None else true_shape(self.padded)

    @property
    def stored(self) -> TensorType:
        """The type of its memory, all of which is there."""
        return self if self.padded is None else TensorType(self.dtype, self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def bytes(self) -> int:
        """Bytes of the contiguous tensor."""
        return self.size * self.dtype.bytes

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not TensorType:
            return NotImplemented
        return self.dtype == other.dtype and self.shape == other.shape

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def bytes_of(array: Array) -> memoryview:
    """What an array holds in row-major order, whatever the type of its elements."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
