"""Sizes that are given as values or buckets: `--shape x=batch:1|4|16,3,224,224` is a program for
each, `seq:1..64|65..512` one for each of the bounds.

The model is imported once for each combination of them. What the inputs' shapes then differ in
says, as guards, which arguments each program is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from tunefarm.compiler.types.extents import (
    Extent,
    Given,
    Shapes,
    extent_of,
    fixed_inputs,
    listed,
    open_shapes,
)
from tunefarm.configs.errors import SettingsError

if TYPE_CHECKING:
    from tunefarm.compiler.graph.ir import Graph
    from tunefarm.compiler.runtime.spec.guards import SizeGuard

MOST_PROGRAMS = 64
"""For so many combinations of values a model is built at most."""


@dataclass(frozen=True, slots=True)
class ProgramSizes:
    """Shapes without values, for one program, and the bounds of the symbols that had several."""

    shapes: Shapes
    bounds: Mapping[str, tuple[int, int]]

    def __str__(self) -> str:
        """What tells the program from others, as guards print it; "" if nothing does."""
        texts = (
            f"{symbol}={low}" if low == high else f"{symbol}={low}..{high}"
            for symbol, (low, high) in self.bounds.items()
        )
        return ", ".join(texts)


def programs_of(shapes: Shapes) -> tuple[ProgramSizes, ...]:
    """The shapes for each combination of the values in them; themselves where there are none.

    Raises SettingsError for too many combinations, and for a symbol with two lists of values.
    """
    shapes = listed(shapes)
    lists: dict[str, tuple[tuple[int, int], ...]] = {}
    for symbol, extent in _with_values(shapes):
        if lists.setdefault(symbol, extent.parts) != extent.parts:
            raise SettingsError(f"the symbol {symbol!r} is given two lists of values")
    count = prod(map(len, lists.values()))
    if count > MOST_PROGRAMS:
        raise SettingsError(
            f"the values given make {count} programs, and {MOST_PROGRAMS} is the most",
            hint="give bounds (batch:1..8) for one program that serves all sizes",
        )
    found = []
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        fixed: Shapes = fixed_inputs(shapes) | {
            name: tuple(_fixed(shape, name, chosen)) for name, shape in open_shapes(shapes).items()
        }
        found.append(ProgramSizes(fixed if lists else shapes, chosen))
    return tuple(found)


def _with_values(shapes: Shapes) -> Iterator[tuple[str, Extent]]:
    """The extents that are lists of values, each with the name of its symbol."""
    for name, shape in open_shapes(shapes).items():
        for axis, given in enumerate(shape):
            extent = extent_of(given)
            if isinstance(extent, Extent) and extent.parts:
                yield _symbol(extent, name, axis, len(shape)), extent


def _fixed(
    shape: Sequence[Given], name: str, chosen: Mapping[str, tuple[int, int]]
) -> Iterator[int | Extent]:
    for axis, given in enumerate(shape):
        extent = extent_of(given)
        if isinstance(extent, Extent) and extent.parts:
            low, high = chosen[_symbol(extent, name, axis, len(shape))]
            yield low if low == high else Extent(extent.name, low, high)
        else:
            yield extent


def _symbol(extent: Extent, name: str, axis: int, rank: int) -> str:
    """The symbol that an extent in the shape of that name is about."""
    if extent.name:
        return extent.name
    return name if rank == 1 else f"{name}[{axis}]"  # of one extent: a symbol, as a rule


def guards_of(
    graphs: Sequence[Graph], programs: Sequence[ProgramSizes]
) -> list[tuple[SizeGuard, ...]]:
    """What tells the programs apart: the axes of inputs in which the graphs differ."""
    from tunefarm.compiler.runtime.spec.guards import SizeGuard
    from tunefarm.compiler.types.signature import SIZES

    guards: list[list[SizeGuard]] = [[] for _ in graphs]
    for name in (name for name in graphs[0].inputs if name != SIZES):
        for axis in range(len(graphs[0].types[name].shape)):
            bounds = [_bounds(graph, name, axis) for graph in graphs]
            if len(set(bounds)) == 1:
                continue
            symbol = _label(bounds, programs) or f"{name}[{axis}]"
            for own, (low, high) in zip(guards, bounds, strict=True):
                own.append(SizeGuard(symbol, name, axis, low, high))
    return [tuple(own) for own in guards]


def _bounds(graph: Graph, name: str, axis: int) -> tuple[int, int]:
    """The minimum and the maximum size of an input's axis."""
    from tunefarm.compiler.types.sizes import bounds_of

    port = next(port for port in graph.signature.inputs if port.name == name)
    return bounds_of(port.shape[axis])


def _label(bounds: Sequence[tuple[int, int]], programs: Sequence[ProgramSizes]) -> str:
    """The symbol whose bounds these are; "" if there is none."""
    for symbol in programs[0].bounds:
        if [program.bounds[symbol] for program in programs] == list(bounds):
            return symbol
    return ""
