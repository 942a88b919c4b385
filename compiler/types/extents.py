"""Extents as users give them: a number, or a symbol with bounds or values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import index
from typing import Final, SupportsIndex, TypeAlias

from tunefarm.compiler.errors import ShapeError

_MOST = 2**31 - 1
_NAME = r"[^\d\s,:|.=][^,:|=]*"
_FORM = re.compile(rf"(?:(?P<name>{_NAME}?)(?::|$))?(?P<sizes>[\d.|]*)")
_TOO_LONG = re.compile(r"\d{11}")  # more digits than _MOST has
HINT: Final = "give a number, a name with bounds (batch:1..8) or a name with values (batch:1|4|16)"


@dataclass(frozen=True, slots=True)
class Extent:
    """A size that is known at run time: `name:low..high`, or `name:value|value|…`.

    Without a name it is that which the model declares, without bounds those that are usual for the
    name. With values `low` and `high` are the least and the greatest. Values may be bounds too
    (`seq:1..64|65..512`): those are `buckets`, from the lowest on, and there are no `values` then.
    """

    name: str = ""
    low: int | None = None
    high: int | None = None
    values: tuple[int, ...] = ()
    buckets: tuple[tuple[int, int], ...] = ()

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Values and buckets as bounds; none where there is one pair of bounds alone."""
        return tuple((value, value) for value in self.values) or self.buckets

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return self.name
        parts = self.parts or ((self.low, self.high),)
        sizes = "|".join(str(low) if low == high else f"{low}..{high}" for low, high in parts)
        return f"{self.name}:{sizes}" if self.name else sizes


Given: TypeAlias = int | str | tuple[int, int] | Extent
"""An extent in Python: what `Extent` prints, or (low, high)."""

Shapes: TypeAlias = Mapping[str, Sequence[Given]]
"""Shapes by the name of an input, or a single extent by that of a symbol."""


def extent_of(given: Given) -> int | Extent:
    """An extent as given by a user; raises `ShapeError` for one that cannot be read.

    Numbers are as they are: which of them fit is said where a shape is needed.
    """
    if isinstance(given, Extent):
        return _checked(given)
    if isinstance(given, SupportsIndex):  # NumPy's integers too
        return index(given)
    if isinstance(given, tuple):
        return _checked(_between(given))
    if not isinstance(given, str):
        raise ShapeError(f"{given!r} is no extent", hint=HINT)
    return _parsed(given.strip())


def _between(given: tuple[int, int]) -> Extent:
    if len(given) != 2 or not all(isinstance(bound, SupportsIndex) for bound in given):
        raise ShapeError(f"{given!r} is no extent", hint="bounds are two numbers, as in (1, 8)")
    low, high = map(index, given)
    return Extent("", low, high)


def check_lists(shapes: Shapes) -> None:
    """Raise `ShapeError` for a shape that is an extent alone, or whose extents are one text.

    None is that of an optional without content.
    """
    if not isinstance(shapes, Mapping):
        raise ShapeError(
            f"the shapes are {shapes!r}, and must be a dictionary",
            hint="write {'input': [1, 3, 224, 224]}, or {'batch': ['1..8']}",
        )
    for name, shape in shapes.items():
        if isinstance(shape, str) or not isinstance(shape, Sequence | None):
            parts = shape.split(",") if isinstance(shape, str) else [shape]
            raise ShapeError(
                f"the shape of {name!r} is {shape!r}, and must be a list of extents",
                hint=f"write {{{name!r}: {parts}}}",
            )


def named(extent: Extent, name: str) -> Extent:
    """The extent under a name, unless it has one."""
    return extent if extent.name else replace(extent, name=name)


def texts(shapes: Shapes) -> dict[str, list[int | str]]:
    """Shapes as JSON has them; `extent_of` reads each entry again."""
    return {
        name: [item if isinstance(item, int) else str(item) for item in map(extent_of, shape)]
        for name, shape in shapes.items()
    }


def _parsed(text: str) -> int | Extent:
    if _TOO_LONG.search(text):
        raise ShapeError(f"'{text[:20]}…' is beyond any extent", hint=HINT)
    if re.fullmatch(r"-?\d+", text):
        return extent_of(int(text))
    found = _FORM.fullmatch(text)
    name, sizes = (found["name"] or "", found["sizes"]) if found else ("", "")
    bounds = re.fullmatch(r"(\d+)\.\.(\d+)", sizes)
    if bounds:
        return _checked(Extent(name, int(bounds[1]), int(bounds[2])))
    if re.fullmatch(r"\d+(\|\d+)*", sizes):
        values = tuple(sorted({int(value) for value in sizes.split("|")}))
        if len(values) == 1:
            return extent_of(values[0])
        return _checked(Extent(name, values[0], values[-1], values))
    if re.fullmatch(r"\d+(\.\.\d+)?(\|\d+(\.\.\d+)?)+", sizes):
        return _checked(_with_buckets(name, sizes, text))
    if found is None or sizes or not name or text.endswith(":") or ".." in name:
        raise ShapeError(f"{text!r} is no extent", hint=HINT)
    return Extent(name)


def _with_buckets(name: str, sizes: str, text: str) -> Extent:
    """An extent of several bounds, which must not overlap."""
    ends = [tuple(map(int, part.split(".."))) for part in sizes.split("|")]
    buckets = tuple(sorted((end[0], end[-1]) for end in ends))
    backwards = any(low > high for low, high in buckets)
    if backwards or any(low <= before for (_, before), (low, _) in pairwise(buckets)):
        raise ShapeError(
            f"the bounds in {text!r} overlap or hold no extent", hint="as in seq:1..64|65..512"
        )
    return Extent(name, buckets[0][0], buckets[-1][1], buckets=buckets)


def _checked(extent: Extent) -> int | Extent:
    low, high = extent.low, extent.high
    if low is None or high is None:
        if extent.name:
            return extent
        raise ShapeError("an extent has neither a name nor bounds", hint=HINT)
    if not 0 <= low <= high <= _MOST or high == 0:
        raise ShapeError(
            f"the bounds {low}..{high} hold no extent",
            hint="bounds are two numbers, the smaller one first, as in batch:1..8",
        )
    return low if low == high else extent
