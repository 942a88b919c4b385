"""Padding rules: what an operator does to axes of which only a part is there.

A model with run-time sizes is a graph at their bounds (`tunefarm.compiler.types.signature`). An
operator's padding rule, a field of its definition, says which axes of the result are padded how,
and in which operands padding would change what is there, so that it has to be filled. Operators
without a rule are refused where an operand is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.operators.use import Attributes
from tunefarm.compiler.types.dims import (
    ONE,
    Axis,
    Dims,
    extent_of,
    is_unpadded,
    size_of,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Dimension, bounds_of, smaller


class LyingApartError(ShapeError):
    """Elements that do not lie as they are read: a copy without padding inside would do."""


@dataclass(slots=True)
class PaddedUse:
    """A use of an operator on padded operands, and what its rule says of it.

    `dims` are the operands' axes, None of absent ones. Rules call `fill`, `same` and `broadcast`;
    `known` says what the padding of the result's axes holds (a value of `operators.fill`).
    """

    attributes: Attributes
    dims: tuple[Dims | None, ...]
    dtypes: tuple[DType | None, ...]
    fills: dict[tuple[int, int], str] = field(default_factory=dict)
    extents: dict[tuple[int, int], int] = field(default_factory=dict)
    equal: list[tuple[Dimension, Dimension]] = field(default_factory=list)
    known: dict[int, str] = field(default_factory=dict)

    def operand(self, position: int) -> Dims:
        """The axes of an operand that is there."""
        dims = self.dims[position]
        if dims is None:
            raise ShapeError(f"input {position} is required but absent")
        return dims

    def present(self) -> list[int]:
        """The positions of operands that are there."""
        return [position for position, dims in enumerate(self.dims) if dims is not None]

    def fill(self, operand: int, axis: int, value: str) -> None:
        """Ask that the padding of an operand's axis is replaced; nothing where it has none."""
        if not is_unpadded(self.operand(operand)[axis]):
            self.fills[operand, axis] = value

    def require_whole(self, operand: int, axis: int, what: str) -> None:
        """Raise `ShapeError` where an axis is padded that must not be."""
        axis_dims = self.operand(operand)[axis]
        if not is_unpadded(axis_dims):
            raise ShapeError(f"{what} would have the size {size_of(axis_dims)}")

    def require_in_one_piece(self, operand: int, axis: int, what: str) -> None:
        """Raise `LyingApartError` where there is padding between an axis' elements."""
        axis_dims = self.operand(operand)[axis]
        if len(axis_dims) > 1:
            raise LyingApartError(f"{what} of {size_of(axis_dims)} would reach across padding")

    def same(self, *places: tuple[int, int]) -> Axis:
        """The axis of the result that (operand, axis) share, which are of one size or of size 1.

        Sizes that may differ are compared at run time; the longest ones are cut off.
        """
        axes = {place: self.operand(place[0])[place[1]] for place in places}
        wide = {place: axis for place, axis in axes.items() if axis != ONE}
        if not wide:
            return ONE
        first = next(iter(wide.values()))
        if all(axis == first for axis in wide.values()):
            return first
        if any(len(axis) != 1 for axis in wide.values()):
            return self._same_elements(list(wide.values()))
        factors = [axis[0] for axis in wide.values()]
        shortest = min(factors, key=lambda factor: factor[1])
        size, extent = next((item for item in factors if isinstance(item[0], int)), shortest)
        extent = size if isinstance(size, int) else extent
        for true, _ in factors:
            if true != size:
                self._require_overlap(true, size)
                self.equal.append((size, true))
        for place, ((_, own),) in wide.items():
            if own > extent:
                self.extents[place] = extent
        return ((size, extent),)

    def within(self, place: tuple[int, int], outer: tuple[int, int]) -> Axis:
        """The axis of an operand that must be no longer than another one's.

        Sizes of which this is not known are compared at run time; the longer axis is cut off.
        """
        given, most = (self.operand(operand)[axis] for operand, axis in (place, outer))
        size, limit = size_of(given), size_of(most)
        low, high = bounds_of(size - limit)
        if low > 0:
            raise ShapeError(f"the size {size} is always more than {limit}")
        if high <= 0 and extent_of(given) <= extent_of(most):
            return given
        if len(given) > 1 or len(most) > 1:
            raise LyingApartError(f"elements of axes of {size} and {limit} lie apart")
        if high > 0:
            size = smaller(size, limit)
            self.equal.append((size_of(given), size))
        extent = min(extent_of(given), extent_of(most))
        if extent < extent_of(given):
            self.extents[place] = extent
        return ((size, extent),)

    def _same_elements(self, axes: Sequence[Axis]) -> Axis:
        """The axis of several factors that all are, the factors' sizes compared at run time."""
        first = axes[0]
        shapes = {tuple(extent for _, extent in axis) for axis in axes}
        if len(shapes) > 1:
            texts = " and ".join(str(size_of(axis)) for axis in axes)
            raise LyingApartError(
                f"elements of axes of {texts} lie apart, some with padding between them"
            )
        for axis in axes[1:]:
            for (true, _), (other, _) in zip(first, axis, strict=True):
                if true != other:
                    self.equal.append((true, other))
        return first

    def _require_overlap(self, left: Dimension, right: Dimension) -> None:
        low, high = bounds_of(left - right)
        if low > 0 or high < 0:
            raise ShapeError(
                f"the sizes {left} and {right} are never equal",
                hint="give bounds that have a size in common",
            )

    def broadcast(self, *operands: int, but: int = 0) -> Dims:
        """The axes of operands under NumPy broadcasting, without the last `but` ones."""
        ranks = {position: len(self.operand(position)) - but for position in operands}
        rank = max(ranks.values(), default=0)
        return tuple(
            self.same(*((p, axis - rank + own) for p, own in ranks.items() if axis >= rank - own))
            for axis in range(rank)
        )


PaddingRule: TypeAlias = Callable[[PaddedUse], Dims]


def pointwise(use: PaddedUse) -> Dims:
    """Each element of the result is made of one element of each operand."""
    return use.broadcast(*use.present())


def unchanged(use: PaddedUse) -> Dims:
    """The result has the axes of the first operand."""
    return use.operand(0)


def shapes_text(dims: Dims) -> str:
    """Sizes as errors show them."""
    return f"[{', '.join(str(size_of(axis)) for axis in dims)}]"
