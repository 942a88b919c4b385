"""NestShape: the loops of many candidates at once, as arrays, without lowering any of them.

A sketch says in closed form which loops its choices lead to; what a loop touches, and how often,
follows from the index expressions. Cost models take their features from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.expr.affine import affine
from compiler.expr.nodes import Expr
from compiler.expr.walk import axes_of, loads
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.stage import Stage

PAGE = 4096  # bytes; the sets of a first-level cache repeat after so many
Positions: TypeAlias = Mapping[str, npt.NDArray[np.int64]]
"""By the name of a choice: the positions of n candidates' values in its domain, shape [n]."""
Numbers: TypeAlias = npt.NDArray[np.float64]
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

    def footprint(self, extents: Numbers) -> Numbers:
        """Bytes touched while each axis a runs over extents[a] points; shapes [axes, n] and [n]."""
        size = np.full(extents.shape[1], float(self.element_bytes))
        for dimension, limit in zip(self.dimensions, self.extents, strict=True):
            reach = np.ones(extents.shape[1])
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

    def moves_with(self, axes: int) -> npt.NDArray[np.bool_]:
        """Which of so many axes index it; shape [axes]."""
        found = np.zeros(axes, np.bool_)
        for dimension in self.dimensions:
            for axis, _ in dimension:
                found[axis] = True
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NestShape:
    """The main loop nest of n candidates; arrays have the shape [n] unless said otherwise.

    The innermost, unrolled body runs over `inside` points of each axis; round it stand loops.
    """

    operands: tuple[Operand, ...]
    inside: Numbers  # [axes, n] extent of each axis in the body
    order: npt.NDArray[np.int64]  # [loops, n] number of the axis of each loop, innermost first
    trips: Numbers  # [loops, n] iterations of each loop; 1 where there is none
    body: Numbers  # vector operations (multiply-adds in a reduction) in the unrolled body
    accumulators: Numbers  # vectors held from one step to the next
    registers: Numbers  # vectors that are needed at the same time, accumulators included
    loads: Numbers  # vectors and broadcast values loaded for one step
    step: Numbers  # vector operations of one step, which share those loads
    cycles: Numbers  # of the arithmetic units, two vector operations a cycle, tails included
    flops: Numbers  # floating-point operations executed, repeated ones included
    full: Numbers  # share of the points that are computed in whole register tiles
    lanes: Numbers  # useful lanes of all lanes computed
    aliased: Numbers  # cache lines read in one step whose addresses are equal modulo a page
    temporary: Numbers  # bytes written to memory and read again within the kernel
    pieces: Numbers  # iterations of the parallel loop, 1 where it is serial
    grains: Numbers  # chunks that threads take turns with, 1 where it is serial


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


class NestBuilder:
    """Collects the loops of n candidates, innermost first."""

    def __init__(self, axes: Sequence[str], count: int) -> None:
        self.numbers = {name: number for number, name in enumerate(axes)}
        self.inside = np.ones((len(axes), count))
        self._order: list[npt.NDArray[np.int64]] = []
        self._trips: list[Numbers] = []
        self._count = count

    def loop(self, axis: str | npt.NDArray[np.int64], trips: Numbers | float) -> None:
        """Add a loop round those there are; `axis` is a name, or a number per candidate."""
        number = self.numbers[axis] if isinstance(axis, str) else axis
        self._order.append(np.broadcast_to(np.asarray(number, np.int64), (self._count,)))
        self._trips.append(np.maximum(1.0, np.broadcast_to(trips, (self._count,))))

    @property
    def order(self) -> npt.NDArray[np.int64]:
        return np.stack(self._order) if self._order else np.zeros((0, self._count), np.int64)

    @property
    def trips(self) -> Numbers:
        return np.stack(self._trips) if self._trips else np.ones((0, self._count))
