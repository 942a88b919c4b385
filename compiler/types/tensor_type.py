"""Tensor types: the element type and shape of a value, arrays and attributes."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

Attribute: TypeAlias = (
    int | float | str | bool | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | None
)

Array: TypeAlias = npt.NDArray[np.generic]


@frozen
class TensorType:
    """Element type and static shape of a value; a scalar has the shape ()."""

    dtype: DType
    shape: tuple[int, ...]

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

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def bytes_of(array: Array) -> memoryview:
    """What an array holds in row-major order, whatever the type of its elements."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
