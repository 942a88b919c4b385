"""Floats that are computed of sizes: of one a table of what they are for each number it may be.

Exporters compute sizes in floats: half of a height, times 1.5, rounded up. What comes out as
integers again is a quotient (a * size + c) // b, between two bounds, if one gives all numbers of
the table. Of several sizes, as of the scale that fits an image into a square, bounds are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.sizes import Dimension, Size, bounds_of, divide, greater, smaller
from tunefarm.compiler.types.tensor_type import Array

_MOST_TRIED = 2**16
_MOST_DIVISOR = 96
_LARGEST = 2**31
_FLOATS = (DType.F16, DType.F32, DType.F64)
_Integers: TypeAlias = npt.NDArray[np.int64]


class UndecidedError(Exception):
    """The result depends on a dynamic size."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A float for each number that a size may be, from the minimum on."""

    size: Size
    values: Array


@frozen
class Between:
    """An integer that nodes compute, and what it is at least and at most."""

    low: int
    high: int


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A float that is computed of several sizes, and what it is at least and at most."""

    low: np.generic
    high: np.generic


Real: TypeAlias = "Table | Span | np.generic"

_STEADY: Final = (
    *(np.add, np.subtract, np.multiply, np.divide, np.minimum, np.maximum),
    *(np.negative, np.positive, np.reciprocal, np.floor, np.ceil, np.rint, np.sqrt),
)
"""Functions that rise or fall in each operand: where all are at an end of theirs, they are."""


def real_of(size: Dimension, dtype: DType) -> Real:
    """A size as a float; raises `UndecidedError` for types and bounds that have no table."""
    low, high = bounds_of(size)
    if dtype not in _FLOATS or high - low > _MOST_TRIED:
        raise UndecidedError
    if isinstance(size, int):
        number: np.generic = dtype.numpy.type(size)
        return number
    return Table(size, np.arange(low, high + 1).astype(dtype.numpy))


def applied(function: Callable[..., Array], *operands: Real) -> Real:
    """A function of floats; raises `UndecidedError` where it has no bounds that are found."""
    sizes = {operand.size for operand in operands if isinstance(operand, Table)}
    if len(sizes) > 1 or any(isinstance(operand, Span) for operand in operands):
        return _spanned(function, [_ends(operand) for operand in operands])
    with np.errstate(all="ignore"):
        found = function(*(_numbers(operand) for operand in operands))
    if not sizes:
        return cast("np.generic", found)
    (size,) = sizes
    return Table(size, found)


def _numbers(operand: Real) -> Array | np.generic:
    assert not isinstance(operand, Span)
    return operand.values if isinstance(operand, Table) else operand


def _ends(operand: Real) -> tuple[np.generic, np.generic]:
    """The minimum and maximum of a float."""
    match operand:
        case Span(low=low, high=high):
            return low, high
        case Table(values=values):
            return values.min(), values.max()
    return operand, operand


def _spanned(function: Callable[..., Array], ends: Sequence[tuple[np.generic, np.generic]]) -> Span:
    """A function of floats between these ends."""
    low, high = (float(end.item()) for end in ends[-1])
    divides = any(function is one for one in (np.divide, np.reciprocal)) and low <= 0 <= high
    if divides or not any(function is one for one in _STEADY):
        raise UndecidedError
    with np.errstate(all="ignore"):
        found = np.array([function(*corner) for corner in product(*ends)])
    return Span(found.min(), found.max())


def whole_number(value: Real) -> Dimension | Between:
    """A float without its fraction; raises `UndecidedError` where that may be no number, or many.

    Rounding makes some numbers of a table no quotient: of these the bounds are known.
    """
    if isinstance(value, Span):
        ends = np.array([value.low, value.high])
        if not np.isfinite(ends).all() or np.abs(ends).max() > _LARGEST:
            raise UndecidedError
        low, high = int(ends[0]), int(ends[1])
        return Between(low, high) if low != high else low
    if not isinstance(value, Table):
        if not np.isfinite(value):
            raise UndecidedError
        return int(value)
    if not np.isfinite(value.values).all() or np.abs(value.values).max() > _LARGEST:
        raise UndecidedError
    numbers = value.values.astype(np.int64)
    low, high = int(numbers.min()), int(numbers.max())
    if low == high:
        return low
    places = np.arange(len(numbers), dtype=np.int64) + bounds_of(value.size)[0]
    found = _line(value.size, places, numbers, np.full(2, False))
    if found is None:
        ends = np.stack([numbers == low, numbers == high])
        found = _line(value.size, places, numbers, ends)
        if found is None:
            return Between(low, high)
        found = smaller(greater(found, low), high)
    return found


def _line(
    size: Size, places: _Integers, numbers: _Integers, ends: npt.NDArray[np.bool_]
) -> Dimension | None:
    """(a * size + c) // b with all of these numbers; None if there is none with a small b.

    At the `ends` of a table it may be less than the minimum, or more than the maximum.
    """
    least, greatest = ends if ends.ndim == 2 else (np.zeros(len(numbers), np.bool_),) * 2
    inner = np.flatnonzero(~least & ~greatest)
    first, last = (inner[0], inner[-1]) if len(inner) > 1 else (0, len(numbers) - 1)
    slope = (numbers[last] - numbers[first]) / (places[last] - places[first])
    for by in range(1, _MOST_DIVISOR + 1):
        near = round(slope * by)
        for factor in (near, near - 1, near + 1):
            low = (numbers * by - factor * places)[~least].max()
            high = ((numbers + 1) * by - factor * places)[~greatest].min() - 1
            if low <= high:
                return divide(size * factor + int(low), by)
    return None
