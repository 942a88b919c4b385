"""The shape of loops that go over the output in rows of vectors, as for rows and windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tunefarm.compiler.expr.walk import loads
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.schedule.nest_shape import (
    Counts,
    Loop,
    Nest,
    NestShape,
    Numbers,
    Operand,
    operands_of,
)
from tunefarm.compiler.schedule.space import Values
from tunefarm.compiler.target import Target

MASKED_BYTES = (4, 8)  # of elements that vectors are masked by


@dataclass(frozen=True)
class KernelFacts:
    """What all candidates of a kernel have in common; found out when it is asked for first."""

    kernel: FusedKernel
    lanes: int
    threads: int
    target: Target

    def masks(self, stage: Stage) -> bool:
        """Parts of vectors can be loaded and stored, in one instruction each."""
        types = {stage.dtype, *(load.dtype for load in loads(stage.body))}
        return self.target.masks_vectors and all(type.bytes in MASKED_BYTES for type in types)

    @cached_property
    def extents(self) -> dict[str, int]:
        """All axes of the stages by name: the output's first, then the others'."""
        extents = {axis.name: axis.extent for axis in self.kernel.output.axes}
        for stage in self.kernel.stages:
            for axis in (*stage.axes, *stage.reduce_axes):
                extents.setdefault(axis.name, axis.extent)
        return extents

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """What the stages read and write, axes by their number in `extents`."""
        numbers = {name: number for number, name in enumerate(self.extents)}
        return operands_of(self.kernel, self.kernel.stages, numbers)

    @cached_property
    def work(self) -> int:
        """Points of all stages."""
        return sum(
            math.prod(axis.extent for axis in (*stage.axes, *stage.reduce_axes))
            for stage in self.kernel.stages
        )

    @cached_property
    def copied(self) -> int:
        """Bytes of the stages before the anchor that can be written or inlined."""
        kernel = self.kernel
        stages = [s for s in kernel.stages[:-1] if s.name != kernel.anchor and not s.reduce_axes]
        return sum(math.prod(s.shape) * s.dtype.bytes for s in stages)


def row_shape(
    facts: KernelFacts,
    values: Values,
    variants: Sequence[Sequence[Loop]],
    which: Counts,
    vectors: Counts,
    parallel: tuple[Numbers, Numbers],
    accumulators: Counts | None = None,
    kept: int = 1,
    partial: Counts | None = None,
) -> NestShape:
    """Rows one after another, so many `vectors` at a time along the loop that is a tile.

    Candidate i has the loops `variants[which[i]]`, outermost first, and `parallel` pieces and
    grains. `kept` is how many values an element has until it is written (the points of a window).
    Reductions over the whole row count as one pass over it; `partial` results they have in all.
    """
    lanes, count = facts.lanes, values.count
    tiles = [loop for loop in variants[0] if loop.name != loop.axis]
    along = facts.extents[tiles[0].axis] if tiles else 1
    nest = Nest(list(facts.extents), count)
    outputs = [axis.name for axis in facts.kernel.output.axes]
    for name, extent in facts.extents.items():
        if name not in outputs:
            nest.inside[nest.numbers[name]] = extent
    if tiles:
        nest.inside[nest.numbers[tiles[0].axis]] = np.minimum(vectors * lanes, along)
    for loops in zip(*(reversed(variant) for variant in variants), strict=True):
        nest.loop(*loops, which=which)
    stored = math.prod(facts.extents[name] for name in outputs) // along * kept
    whole = bool(tiles) and tiles[0].whole
    row = np.where(whole, np.ceil(along / (vectors * lanes)) * vectors, -(-along // lanes))
    body = (vectors * kept).astype(np.float64)
    held = (vectors if accumulators is None else accumulators).astype(np.float64)
    tile = np.minimum(vectors * lanes, along)
    pieces, grains = parallel
    return NestShape(
        operands=facts.operands,
        nest=nest,
        operations=stored * row,
        body=body,
        accumulators=held,
        registers=np.maximum(held, vectors) + 1,
        loads=body,
        step=body,
        cycles=np.full(count, facts.work / lanes / facts.target.machine.vectors.fma),
        flops=np.full(count, float(facts.work)),
        full=np.floor(along / tile) * tile / along,
        lanes=np.full(count, along / (math.ceil(along / lanes) * lanes)),
        aliased=np.ones(count),
        temporary=np.where(values.are("padding", "copy"), 2.0 * facts.copied, 0.0),
        pieces=pieces,
        grains=grains,
        ahead=values.integers("prefetch") + values.integers("rows_ahead"),
        partial=np.zeros(count) if partial is None else partial,
        straight=values.integers("unroll_parts", 1),
    )
