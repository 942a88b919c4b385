"""Domains of the row-wise sketch: vectors at once, accumulators, rows ahead, with defaults."""

from __future__ import annotations

from math import gcd, prod

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.sketches.borders import period
from tunefarm.compiler.schedule.sketches.row_arrangement import (
    STACK_ELEMENTS,
    Arrangement,
    short_row,
)
from tunefarm.compiler.schedule.vectors import UNROLLS, vector_lanes
from tunefarm.compiler.target import Target

ACCUMULATORS = (1, 2, 3, 4, 6, 8)
MOST_PIECES = 12  # vectors that hold rows which are shorter than they
MOST_PATTERNS = 16  # vectors that hold one pattern: beyond, their code costs more than divisions


def unroll_domain(
    kernel: FusedKernel, rows: Arrangement, lanes: int
) -> tuple[tuple[int, ...], int]:
    """Vectors along the row at once, and how many by rule.

    As many as hold a whole pattern of divided positions, or the row: each then is one of fixed
    shuffles.
    """
    if not rows.vector:
        return UNROLLS[:1], 1
    axis = next(axis for axis in kernel.output.axes if axis.name == rows.vector)
    pattern = period(kernel.output.body, axis)
    whole = min(pattern // gcd(pattern, lanes), -(-axis.extent // lanes))
    if whole == 1 or whole > MOST_PATTERNS:
        return UNROLLS, UNROLLS[1]
    return tuple(sorted({*UNROLLS, whole, 2 * whole})), whole


def vectors_across(
    kernel: FusedKernel, rows: Arrangement, target: Target
) -> tuple[tuple[int, ...], int]:
    """Vectors of neighbouring rows that are computed at once, and how many by rule.

    Each step along a row reads so many adjacent vectors; what is kept of them should stay in the
    first-level cache.
    """
    lanes = vector_lanes(kernel, target)
    extent = next(axis.extent for axis in kernel.output.axes if axis.name == rows.vector)
    held = tuple(
        count
        for count in UNROLLS
        if count == 1 or (count * lanes <= extent and count * lanes * rows.kept <= STACK_ELEMENTS)
    )
    element = kernel.output.dtype.bytes * max(rows.kept, 1)
    fitting = [c for c in held if c == 1 or c * lanes * element <= target.l1_bytes]
    width = max(prod(axis.extent for axis in stage.reduce_axes) for stage in kernel.stages)
    if width < short_row(lanes):  # all of the rows at once
        fitting = [c for c in fitting if c == 1 or c * width <= MOST_PIECES]
    return held, max(fitting)


def streamed_rows(kernel: FusedKernel, arrangement: Arrangement, target: Target) -> dict[str, int]:
    """Inputs that come from memory row by row, and the elements of a row.

    Hardware stops to look ahead while a row is walked for the second time.
    """
    rows = prod(axis.extent for axis in kernel.output.axes if axis.name in arrangement.rows)
    return {
        buffer.name: prod(buffer.shape) // rows
        for buffer in kernel.inputs
        if buffer.type.bytes > target.l2_bytes and prod(buffer.shape) % rows == 0
    }


def accumulator_domain(
    kernel: FusedKernel, reduction: tuple[str, str], target: Target
) -> tuple[tuple[int, ...], int]:
    """How many vectors a reduction may be summed up in, and how many is the rule.

    One waits for itself at each step; where the row is short, combining several costs as much.
    """
    name, reduced = reduction
    extent = next(a.extent for a in kernel.stage(name).reduce_axes if a.name == reduced)
    lanes = vector_lanes(kernel, target)
    fitting = tuple(a for a in ACCUMULATORS if a == 1 or a * lanes <= extent)
    return fitting, max(a for a in fitting if a == 1 or (a in (2, 4) and 2 * a * lanes <= extent))


def computed_per_row(kernel: FusedKernel, arrangement: Arrangement) -> bool:
    """Some stage without a reduction is computed for a row, before the row is written."""
    return any(
        not kernel.stage(name).reduce_axes
        and arrangement.vector in [axis.name for axis in kernel.stage(name).axes]
        for name in arrangement.attached
    )
