"""Value: a tensor of the model that is being imported."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import PaddedShape
from tunefarm.compiler.types.sizes import Dimension
from tunefarm.compiler.types.tensor_type import Array, TensorType

Sizes = npt.NDArray[np.object_]
"""Integers some of which are dynamic: `Dimension`s."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the model being imported; `array` holds its contents when they are constant.

    A constant becomes part of the graph only when a node reads it, so constants that shape
    computations use up leave no trace; a tensor without elements is always constant. The same
    holds for integers that are computed of run-time sizes: `sizes` has them, and `array` is None.

    `type` has the shape at the bounds of all symbols, and says what is there of it.
    """

    name: str
    type: TensorType
    array: Array | None = None
    sizes: Sizes | None = None

    @property
    def padded(self) -> PaddedShape | None:
        """What is there of each axis, None where all is."""
        return self.type.padded

    @property
    def dims(self) -> PaddedShape:
        """What is there of each axis: its factors, each a true size and an extent."""
        return self.type.dims

    @property
    def true_shape(self) -> tuple[Dimension, ...]:
        """The shape without padding."""
        return self.type.true_shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape as it is stored, padding included."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.type.shape)
