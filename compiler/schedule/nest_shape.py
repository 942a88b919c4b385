"""NestShape: the loops of many candidates at once, as arrays, without lowering any of them.

A sketch's plan says which loops its choices lead to; what a loop touches, and how often, follows
from the index expressions. Cost models take their features from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import Expr
from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage

PAGE = 4096  # bytes; the sets of a first-level cache repeat after so many
LOOP_CYCLES = 0.3  # of a step of a sum, for its loop
TILE_CYCLES = 24  # to begin a register tile's sums, and to store them (measured on Zen 5)
REST = 1.5  # times as long as in whole tiles takes what they leave over (measured on Zen 5)
EDGES = 2  # turns that stand apart: the first and the last
Positions: TypeAlias = Mapping[str, "Counts"]
"""By the name of a choice: the positions of n candidates' values in its domain, shape [n]."""
Numbers: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Dimension: TypeAlias = tuple[tuple[int, int], ...]
"""The axes that index a dimension of a tensor: (number of the axis, its coefficient)."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that the nest reads or writes.

    `dimensions` says which axes move along each dimension, `extents` how long they are,
    `element_bytes` what one point takes.
    """

    name: str
    element_bytes: int
    dimensions: tuple[Dimension, ...]
    extents: tuple[int, ...]

    def stepped(self, axis: int, step: int) -> Operand:
        """The same operand, where a step along the axis goes over so many points."""
        dimensions = tuple(
            tuple((number, c * step if number == axis else c) for number, c in dimension)
            for dimension in self.dimensions
        )
        return replace(self, dimensions=dimensions)

    def footprint(self, extents: Numbers) -> Numbers:
        """Bytes touched while each axis a runs over extents[a] points.

        Shapes [axes, n] and [n], or with more dimensions alike in both.
        """
        size = np.full(extents.shape[1:], float(self.element_bytes))
        for dimension, limit in zip(self.dimensions, self.extents, strict=True):
            reach = np.ones(extents.shape[1:])
            for axis, coefficient in dimension:
                reach += abs(coefficient) * (extents[axis] - 1.0)
            size *= np.minimum(reach, limit)
        return size

    def stride(self, axis: int) -> int:
        """Bytes between neighbours along the axis; 0 if it stands still."""
        total, step = 0, self.element_bytes
        for dimension, extent in zip(
            reversed(self.dimensions), reversed(self.extents), strict=True
        ):
            total += step * sum(c for number, c in dimension if number == axis)
            step *= extent
        return abs(total)

    def moves_with(self, axes: int) -> Mask:
        """Which of so many axes index it; shape [axes]."""
        found = np.zeros(axes, np.bool_)
        for dimension in self.dimensions:
            for axis, _ in dimension:
                found[axis] = True
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop over tiles of an axis, called `name` in steps; numbers are arrays [n], or one for all.

    What whole tiles leave over is peeled off, or where tiles are `whole` shifted or masked. The
    first and the last turn may stand `apart`, and the range be cut into pieces at `cuts`.
    """

    name: str
    axis: str
    extent: Counts | int
    tile: Counts | int = 1
    whole: Mask | bool = False
    apart: Mask | bool = False
    cuts: tuple[Counts | Numbers | int, ...] = ()

    @property
    def trips(self) -> Numbers:
        """Iterations, with what whole tiles leave over as a part of one."""
        return np.maximum(1.0, self.extent / self.tile)

    @property
    def turns(self) -> Numbers:
        """Iterations of the loop that lowering makes for whole tiles, of its longest piece."""
        trips = self.trips
        turns = np.where(self.whole, np.ceil(trips), np.floor(trips))
        if self.cuts:
            ends = [np.zeros_like(turns), *(np.clip(cut, 0, turns) for cut in self.cuts), turns]
            turns = np.diff(np.sort(np.stack(np.broadcast_arrays(*ends)), axis=0), axis=0).max(0)
        return np.where(self.apart, np.where(turns > EDGES + 1, turns - EDGES, 1.0), turns)


@dataclass(frozen=True, slots=True)
class Level:
    """A level of a loop nest: candidate i has the loop `loops[which[i]]`, or all the only one."""

    loops: tuple[Loop, ...]
    which: Counts | None = None

    def of(self, numbers: Sequence[Numbers | Mask | float], count: int) -> Numbers:
        """Each candidate's own of the loops' numbers, shape [n]."""
        if self.which is None:
            return np.broadcast_to(numbers[0], (count,))
        if all(number is numbers[0] for number in numbers):
            return np.broadcast_to(numbers[0], (count,))
        rows = np.empty((len(numbers), count))
        for row, number in enumerate(numbers):
            rows[row] = number
        return np.asarray(rows[self.which, np.arange(count)], np.float64)


class Nest:
    """The loops of n candidates, and the unrolled body inside of them."""

    def __init__(self, axes: Sequence[str], count: int) -> None:
        self.axes = tuple(axes)
        self.numbers = {name: number for number, name in enumerate(axes)}
        self.inside: Numbers = np.ones((len(axes), count))
        """Extent of each axis in the body, shape [axes, n]."""
        self.levels: list[Level] = []
        """The loops, innermost first."""
        self._count = count

    def loop(self, *loops: Loop, which: Counts | None = None) -> None:
        """Add a loop round those there are: candidate i has `loops[which[i]]`."""
        self.levels.append(Level(loops, which))

    def order(self) -> Counts:
        """The number of each loop's axis, shape [loops, n]."""
        order = np.empty((len(self.levels), self._count), np.int64)
        for row, level in enumerate(self.levels):
            numbers = np.array([self.numbers[loop.axis] for loop in level.loops])
            order[row] = numbers[0] if level.which is None else numbers[level.which]
        return order

    def overlapped(self) -> Numbers:
        """Loops whose last tile is shifted or masked instead of peeled, shape [n]."""
        total = np.zeros(self._count)
        for level in self.levels:
            left = [loop.whole & (loop.extent % loop.tile != 0) for loop in level.loops]
            total += level.of([np.broadcast_to(item, self._count) for item in left], self._count)
        return total

    def trips(self) -> Numbers:
        """Iterations of each loop, with a tail as a part of one, shape [loops, n]."""
        trips = np.empty((len(self.levels), self._count))
        known: dict[int, Numbers] = {}  # by identity: orders of the same loops share them
        for row, level in enumerate(self.levels):
            for loop in level.loops:
                if id(loop) not in known:
                    known[id(loop)] = loop.trips
            trips[row] = level.of([known[id(loop)] for loop in level.loops], self._count)
        return trips


@dataclass(frozen=True, slots=True, kw_only=True)
class NestShape:
    """The main loop nest of n candidates; arrays have the shape [n] unless said otherwise.

    Loops, body and operations are exact, as lowering makes them; what they cost is an estimate.
    """

    operands: tuple[Operand, ...]
    nest: Nest
    operations: Numbers  # vector operations of the body that are executed, repeated ones included
    body: Numbers  # vector operations (multiply-adds in a reduction) in the unrolled body
    accumulators: Numbers  # vectors held from one step to the next
    pieces: Numbers  # iterations of the parallel loop, 1 where it is serial
    grains: Numbers  # chunks of a loop for each thread, 1 where it is serial

    registers: Numbers  # vectors that are needed at the same time, accumulators included
    loads: Numbers  # vectors and broadcast values loaded for one step
    step: Numbers  # vector operations of one step, which share those loads
    cycles: Numbers  # of the arithmetic units of the target's machine, tails included
    flops: Numbers  # floating-point operations executed, repeated ones included
    full: Numbers  # share of the points that are computed in whole register tiles
    lanes: Numbers  # useful lanes of all lanes computed
    aliased: Numbers  # cache lines read in one step whose addresses are equal modulo a page
    temporary: Numbers  # bytes written to memory and read again within the kernel

    ahead: Numbers | Counts | float = 0.0  # how far data are prefetched, in the choice's own unit
    partial: Numbers | Counts | float = 0.0  # partial results of all reductions along a row
    straight: Numbers | Counts | float = 1.0  # vectors of a row's parts in straight code


def operands_of(
    kernel: FusedKernel, stages: Sequence[Stage], numbers: Mapping[str, int]
) -> tuple[Operand, ...]:
    """What the stages read from outside of themselves, each tensor once, and the kernel's output.

    `numbers` gives the number of each axis by name; axes that it does not name stand still.
    """
    own = {stage.name for stage in stages}
    shapes = {buffer.name: buffer.shape for buffer in kernel.inputs}
    shapes |= {s.name: tuple(axis.extent for axis in s.axes) for s in kernel.stages}
    found: dict[str, Operand] = {}
    for stage in stages:
        for load in loads(stage.body):
            if load.buffer in own or load.buffer in found:
                continue
            dimensions = tuple(_dimension(item, numbers) for item in load.indices)
            found[load.buffer] = Operand(
                load.buffer, load.dtype.bytes, dimensions, shapes[load.buffer]
            )
    output = kernel.output
    written = Operand(
        output.name,
        output.dtype.bytes,
        tuple(((numbers[a.name], 1),) if a.name in numbers else () for a in output.axes),
        shapes[output.name],
    )
    return (*found.values(), written)


def _dimension(item: Expr, numbers: Mapping[str, int]) -> Dimension:
    """The axes in an index; those inside of a division or the like count as adjacent."""
    result: dict[int, int] = {}
    for atom, coefficient in affine(item, {}).terms:
        if isinstance(atom, str):
            if atom in numbers:
                result[numbers[atom]] = coefficient
        else:
            for axis in sorted(axes_of(atom)):
                if axis in numbers:
                    result.setdefault(numbers[axis], 1)
    return tuple(result.items())


def aliased_lines(stride: int, count: Numbers) -> Numbers:
    """How many of `count` lines, `stride` bytes apart, have equal addresses modulo a page."""
    if stride == 0:
        return np.ones_like(count)
    return np.maximum(1.0, count * math.gcd(stride, PAGE) / PAGE)
