"""Guards: for which sizes of a model's inputs a program is, besides the CPUs of its target.

An artifact may hold several programs of one model. The one that runs is the first whose target this
CPU can run and whose guards admit the shapes of the arguments: a chain of comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tunefarm.compiler.types.frozen import frozen

Shape: TypeAlias = tuple[int, ...]


@frozen
class SizeGuard:
    """The program is for extents from `low` to `high` of an input's axis, which is the `symbol`."""

    symbol: str
    input: str
    axis: int
    low: int
    high: int

    def admits(self, shape: Shape) -> bool:
        """Whether an argument of this shape is one that the program is for."""
        return self.axis < len(shape) and self.low <= shape[self.axis] <= self.high

    def __str__(self) -> str:
        sizes = str(self.low) if self.low == self.high else f"{self.low}..{self.high}"
        return f"{self.symbol}={sizes}"

    def to_json(self) -> list[Any]:
        """The guard as JSON values."""
        return [self.symbol, self.input, self.axis, self.low, self.high]

    @staticmethod
    def from_json(data: Sequence[Any]) -> SizeGuard:
        """The inverse of `to_json`; `TypeError` or `ValueError` on other JSON."""
        symbol, input, axis, low, high = data
        kinds = (type(symbol), type(input), type(axis), type(low), type(high))
        if kinds != (str, str, int, int, int):
            raise TypeError("a guard is a symbol, an input, an axis and two sizes")
        return SizeGuard(symbol, input, axis, low, high)


def sizes_text(guards: Sequence[SizeGuard]) -> str:
    """What the guards admit, each symbol once: `batch=4, seq=1..64`; "" if there are none."""
    return ", ".join(dict.fromkeys(map(str, guards)))


def refusal(programs: Sequence[Sequence[SizeGuard]], shapes: Mapping[str, Shape]) -> str:
    """Why none of the programs with these guards is for arguments of these shapes.

    Names the first symbol whose size no program has, with all sizes that there are, or the sizes
    together where only their combination is missing.
    """
    every = [guard for guards in programs for guard in guards]
    for guard in every:
        alike = [other for other in every if _place(other) == _place(guard)]
        shape = shapes.get(guard.input, ())
        if guard.axis < len(shape) and not any(other.admits(shape) for other in alike):
            sizes = ", ".join(dict.fromkeys(str(other).split("=")[1] for other in alike))
            return (
                f"input {guard.input!r} has {shape[guard.axis]} as axis {guard.axis} "
                f"({guard.symbol}): the model was built for {sizes}"
            )
    found = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
    built = "; ".join(sizes_text(guards) for guards in programs)
    return f"the model has no program for the sizes of {found}: it was built for {built}"


def _place(guard: SizeGuard) -> tuple[str, int]:
    return guard.input, guard.axis
