"""What is there of a tensor that a custom operator takes or gives, where sizes are open.

As `tunefarm.compiler.types.padded_shape`, in terms of a vector of sizes that is known when the
function is called: a factor's true size is a number, or `~place` of the vector's element `place`.
"""

from __future__ import annotations

from math import prod
from typing import TypeAlias

from tunefarm.compiler.types.padded_shape import PaddedShape
from tunefarm.compiler.types.sizes import Dimension, Symbol
from tunefarm.compiler.types.tensor_type import TensorType

OpenAxes: TypeAlias = tuple[tuple[tuple[int, int], ...], ...]
"""For each axis its factors, from the outermost to the innermost: (true size, extent) each."""

_MOST = 2**31 - 1


def bound_shape(axes: OpenAxes) -> tuple[int, ...]:
    """The shape of the memory that the tensor has, padding included."""
    return tuple(prod(extent for _, extent in axis) for axis in axes)


def whole_axes(type: TensorType) -> OpenAxes:
    """The axes of a tensor of which all is there."""
    return tuple(((extent, extent),) for extent in type.shape)


def lies_dense(axes: OpenAxes) -> bool:
    """Whether what is there is the beginning of the memory, without padding inside."""
    factors = [factor for axis in axes for factor in axis if factor != (1, 1)]
    return all(true == extent for true, extent in factors[1:])


def places_of(axes: OpenAxes) -> frozenset[int]:
    """The places of the vector that are read."""
    return frozenset(~true for axis in axes for true, _ in axis if true < 0)


def place_symbol(place: int) -> Symbol:
    """What stands for an element of the vector in `symbolic`."""
    return Symbol(str(place), 0, _MOST)


def symbolic(axes: OpenAxes) -> PaddedShape:
    """The same with a symbol for each element of the vector."""
    return tuple(tuple((_symbolic(true), extent) for true, extent in axis) for axis in axes)


def _symbolic(true: int) -> Dimension:
    return true if true >= 0 else Symbol.of(str(~true), 0, _MOST)
