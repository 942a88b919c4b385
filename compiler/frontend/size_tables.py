"""Floats that are computed of one size: a table of what they are for each number it may be.

Exporters compute sizes in floats: half of a height, times 1.5, rounded up. What comes out as
integers again is a quotient (a * size + c) // b, between two bounds, if one gives all numbers of
the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from compiler.types.dtypes import DType
from compiler.types.sizes import Dimension, Size, bounds_of, divide, greater, smaller
from compiler.types.tensor_type import Array

_MOST_TRIED = 2**16
_MOST_DIVISOR = 96
_LARGEST = 2**31
_FLOATS = (DType.F16, DType.F32, DType.F64)
_Integers: TypeAlias = npt.NDArray[np.int64]


class UndecidedError(Exception):
    """The result depends on what is known at run time only."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A float for each number that a size may be, from its least on."""

    size: Size
    values: Array


@dataclass(frozen=True, slots=True)
class Between:
    """An integer that nodes compute, and what it is at least and at most."""

    low: int
    high: int


Real: TypeAlias = "Table | np.generic"


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
    """A function of floats; raises `UndecidedError` where they are those of several sizes."""
    sizes = {operand.size for operand in operands if isinstance(operand, Table)}
    if len(sizes) > 1:
        raise UndecidedError
    with np.errstate(all="ignore"):
        found = function(*(o.values if isinstance(o, Table) else o for o in operands))
    if not sizes:
        return cast("np.generic", found)
    (size,) = sizes
    return Table(size, found)


def whole_number(value: Real) -> Dimension | Between:
    """A float without its fraction; raises `UndecidedError` where that may be no number, or many.

    Rounding makes some numbers of a table no quotient: of these the bounds are known.
    """
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

    At the `ends` of a table it may be less than the least number, or more than the greatest.
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
