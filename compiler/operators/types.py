"""The types that an operator's type rule is given, and what it asks of them.

A type rule (`OperatorDefinition.infer`) says what an operator makes of its operands' types. With
dynamic sizes a value is stored at their bounds (`tunefarm.compiler.types.signature`), and only a
part of it may be there. So the rule is about axes (`tunefarm.compiler.types.padded_shape`): which
ones the result has, which ones are equal, and in which operands what lies behind the true size
would change the result, so that it has to be replaced. Of a static model all axes are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.types.padded_shape import (
    ONE,
    Axis,
    PaddedShape,
    extent_of,
    is_unpadded,
    size_of,
    whole,
)
from tunefarm.compiler.types.sizes import Dimension, bounds_of, smaller
from tunefarm.compiler.types.tensor_type import TensorType


class LyingApartError(ShapeError):
    """Elements that do not lie as they are read: a copy without padding inside would do."""


class DifferingSizesError(ShapeError):
    """Axes of numbers of elements that differ, at whatever sizes."""


@dataclass(slots=True)
class Needs:
    """What a type rule asks of operands, whose axes are counted as (operand, axis).

    `fills` says what has to stand in padding (a value of `operators.fill`), `extents` where an
    axis is cut off, `equal` which sizes must be equal in a run. `known` says what the padding of
    the result's axes holds.
    """

    fills: dict[tuple[int, int], str] = field(default_factory=dict)
    extents: dict[tuple[int, int], int] = field(default_factory=dict)
    equal: list[tuple[Dimension, Dimension]] = field(default_factory=list)
    known: dict[int, str] = field(default_factory=dict)


class Types(tuple[TensorType | None, ...]):
    """The types of a node's operands, None where an optional one is absent.

    What a rule asks of operands that are not all there is in `needs`.
    """

    @cached_property
    def needs(self) -> Needs:
        """What has been asked so far."""
        return Needs()

    def present(self, position: int) -> TensorType:
        """The type of an operand that is there."""
        type = self[position]
        if type is None:
            raise ShapeError(f"input {position} is required but absent")
        return type

    def optional(self, position: int) -> TensorType | None:
        """The type of an operand, or None when it is absent or not even listed."""
        return self[position] if position < len(self) else None

    def positions(self) -> list[int]:
        """The positions of operands that are there."""
        return [position for position, type in enumerate(self) if type is not None]

    def axis(self, operand: int, axis: int) -> Axis:
        """An axis of an operand that is there."""
        type = self.present(operand)
        return whole(type.shape[axis]) if type.padded is None else type.padded[axis]

    def fill(self, operand: int, axis: int, value: str) -> None:
        """Ask that the padding of an operand's axis is replaced; nothing where it has none."""
        if not is_unpadded(self.axis(operand, axis)):
            self.needs.fills[operand, axis] = value

    def require_whole(self, operand: int, axis: int, what: str) -> None:
        """Raise `ShapeError` where an axis is padded that must not be."""
        given = self.axis(operand, axis)
        if not is_unpadded(given):
            raise ShapeError(f"{what} would have the size {size_of(given)}")

    def require_all_whole(self, operand: int, what: str) -> None:
        """Raise `ShapeError` where any axis of an operand is padded, if it is there."""
        type = self.optional(operand)
        for axis in range(0 if type is None else len(type.shape)):
            self.require_whole(operand, axis, what)

    def require_in_one_piece(self, operand: int, axis: int, what: str) -> None:
        """Raise `LyingApartError` where there is padding between an axis' elements."""
        given = self.axis(operand, axis)
        if len(given) > 1:
            raise LyingApartError(f"{what} of {size_of(given)} would reach across padding")

    def same(self, *places: tuple[int, int], otherwise: str = "") -> Axis:
        """The axis of the result that (operand, axis) share, which are of one size.

        Raises `ShapeError(otherwise)` for numbers that differ. Sizes that may differ are compared
        at run time; the longest ones are cut off.
        """
        return self._same({place: self.axis(*place) for place in places}, otherwise)

    def stretched(self, *places: tuple[int, int], otherwise: str = "") -> Axis:
        """As `same`, of axes that are of one size or of size 1."""
        axes = {place: self.axis(*place) for place in places}
        wide = {place: axis for place, axis in axes.items() if axis != ONE}
        return self._same(wide, otherwise) if wide else ONE

    def _same(self, axes: dict[tuple[int, int], Axis], otherwise: str) -> Axis:
        first = next(iter(axes.values()))
        if all(axis == first for axis in axes.values()):
            return first
        if all(map(is_unpadded, axes.values())):
            extents = dict.fromkeys(map(extent_of, axes.values()))
            if len(extents) > 1:
                sizes = ", ".join(map(str, extents))
                raise DifferingSizesError(otherwise or f"the sizes {sizes} differ")
            return whole(extent_of(first))
        if any(len(axis) != 1 for axis in axes.values()):
            return self._same_elements(list(axes.values()))
        factors = [axis[0] for axis in axes.values()]
        shortest = min(factors, key=lambda factor: factor[1])
        size, extent = next((item for item in factors if isinstance(item[0], int)), shortest)
        extent = size if isinstance(size, int) else extent
        for true, _ in factors:
            if true != size:
                self._require_overlap(true, size)
                self.needs.equal.append((size, true))
        for place, ((_, own),) in axes.items():
            if own > extent:
                self.needs.extents[place] = extent
        return ((size, extent),)

    def within(self, place: tuple[int, int], outer: tuple[int, int], otherwise: str = "") -> Axis:
        """The axis of an operand that must be no longer than another one's.

        Raises `ShapeError(otherwise)` for one that is always longer. Sizes of which this is not
        known are compared at run time; the longer axis is cut off.
        """
        given, most = (self.axis(*at) for at in (place, outer))
        size, limit = size_of(given), size_of(most)
        low, high = bounds_of(size - limit)
        if low > 0:
            raise ShapeError(otherwise or f"the size {size} is always more than {limit}")
        if high <= 0 and extent_of(given) <= extent_of(most):
            return given
        if len(given) > 1 or len(most) > 1:
            raise LyingApartError(f"elements of axes of {size} and {limit} lie apart")
        if high > 0:
            size = smaller(size, limit)
            self.needs.equal.append((size_of(given), size))
        extent = min(extent_of(given), extent_of(most))
        if extent < extent_of(given):
            self.needs.extents[place] = extent
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
                    self.needs.equal.append((true, other))
        return first

    def _require_overlap(self, left: Dimension, right: Dimension) -> None:
        low, high = bounds_of(left - right)
        if low > 0 or high < 0:
            raise ShapeError(
                f"the sizes {left} and {right} are never equal",
                hint="give bounds that have a size in common",
            )

    def broadcast(self, *operands: int, but: int = 0, otherwise: str = "") -> PaddedShape:
        """The axes of operands under NumPy broadcasting, without the last `but` ones.

        Raises `ShapeError(otherwise)` where there are none.
        """
        ranks = {position: len(self.present(position).shape) - but for position in operands}
        rank = max(ranks.values(), default=0)
        try:
            return tuple(
                self.stretched(
                    *((p, axis - rank + own) for p, own in ranks.items() if axis >= rank - own)
                )
                for axis in range(rank)
            )
        except DifferingSizesError:
            shapes = (str(list(self.present(position).shape)) for position in operands)
            reason = otherwise or f"the shapes {' and '.join(shapes)} do not broadcast"
            raise ShapeError(reason) from None

    def broadcast_to(
        self, target: int, *operands: int, but: int = 0, otherwise: str
    ) -> PaddedShape:
        """The axes of the `target` that operands are broadcast to, without the last `but` ones."""
        given = self.present(target).dims
        for position in operands:
            own = self.present(position).dims
            behind = zip(reversed(own), reversed(given), strict=False)
            narrow = any(axis != ONE and other == ONE for axis, other in islice(behind, but, None))
            if narrow or len(own) > len(given):
                raise ShapeError(otherwise)
        return self.broadcast(target, *operands, but=but, otherwise=otherwise)
