"""Sketch: running sums and products, along their axis once.

Along the last axis:                          Along another one:
for rows.. (parallel):                        for outer.. (parallel): for tiles of columns:
    carried = 0                                   carried[..] = 0
    for vectors: vector of prefixes,              for steps: for vectors of the tile:
        carried = its last                            carried += x, y = carried

Stages before it are computed where they are used; stages after it read it from workspace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.running import running_reduction
from tunefarm.compiler.kernels.stage import Stage, inline
from tunefarm.compiler.schedule.nest_shape import Loop, NestShape
from tunefarm.compiler.schedule.sketches.merged_axes import merge_all
from tunefarm.compiler.schedule.sketches.parallel_choices import (
    chunk_choices,
    parallel_loops,
    parallel_steps,
    pieces_and_grains,
)
from tunefarm.compiler.schedule.sketches.row_shape import KernelFacts, row_shape
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.kernel_forms import MergeAxes
from tunefarm.compiler.schedule.steps.loop_kinds import Unroll, Vectorize
from tunefarm.compiler.schedule.steps.placement import Inline
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Reorder, Tile
from tunefarm.compiler.schedule.steps.walks import Scan
from tunefarm.compiler.schedule.vectors import UNROLLS, vector_lanes
from tunefarm.compiler.target import Target

TILES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # vectors of columns that are walked together
LONGEST_TILE = 64  # by rule: 4 KiB of each row follow each other, and carried values stay in L1


@dataclass(frozen=True, slots=True)
class _Scanned:
    """The scanned stage, the axis along it, the last axis, and the stages before."""

    stage: Stage
    axis: str
    vector: str
    before: tuple[str, ...]

    @property
    def across(self) -> bool:
        """Vectors run across the scanned axis."""
        return self.vector != self.axis


def scan_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel's only reduction is a running one."""
    merged, merges = merge_all(kernel)
    stage = merged.stage(merged.anchor)
    running = running_reduction(stage)
    if running is None or sum(bool(item.reduce_axes) for item in merged.stages) > 1:
        return []
    position = merged.stages.index(stage)
    before = tuple(item.name for item in merged.stages[:position])
    scanned = _Scanned(stage, running.axis, stage.axes[-1].name, before)
    lanes, extent = vector_lanes(merged, target), stage.axes[-1].extent
    unrolls = tuple(u for u in UNROLLS if u == 1 or u * lanes <= extent)
    preferred = unrolls[:3][-1] if scanned.across else 1
    choices: list[tuple[Choice, ChoiceValue]] = [(Choice("unroll", unrolls), preferred)]
    if scanned.across:
        tiles = tuple(t for t in TILES if t == 1 or t * lanes < 2 * extent)
        choices.append((Choice("tile", tiles), max(t for t in tiles if t <= LONGEST_TILE)))
    linear = _linear(merged, running.walked(stage), before)
    choices += chunk_choices(linear, threads)
    facts = KernelFacts(linear, lanes, threads, target)

    def plan(values: Values) -> _Candidates:
        return _Candidates(facts, merged, scanned, merges, values)

    return [Sketch.planned("scan", choices, plan)]


def _linear(kernel: FusedKernel, walked: Stage, before: tuple[str, ...]) -> FusedKernel:
    """A kernel of as much work as the scanned one: what costs are estimated from."""
    stages = [walked if stage.name == walked.name else stage for stage in kernel.stages]
    for name in reversed(before):
        inlined = next(stage for stage in stages if stage.name == name)
        stages = [
            replace(stage, body=inline(stage.body, inlined))
            for stage in stages
            if stage is not inlined
        ]
    return replace(kernel, stages=tuple(stages), anchor=kernel.output.name)


class _Candidates:
    """What is decided for n candidates."""

    def __init__(
        self,
        facts: KernelFacts,
        kernel: FusedKernel,
        scanned: _Scanned,
        merges: tuple[MergeAxes, ...],
        values: Values,
    ) -> None:
        self.facts, self.kernel, self.scanned = facts, kernel, scanned
        self.merges, self.values = merges, values
        lanes, vector = facts.lanes, scanned.vector
        self.unroll = values.integers("unroll")
        self.tile = np.maximum(values.integers("tile", 1), self.unroll)
        names = [axis.name for axis in scanned.stage.axes]
        extents = {axis.name: axis.extent for axis in scanned.stage.axes}
        others = [name for name in names if name not in (vector, scanned.axis)]
        rows = [Loop(name, name, extents[name]) for name in others]
        width = (self.tile if scanned.across else self.unroll) * lanes
        tiles = Loop(f"{vector}.o", vector, extents[vector], width)
        walk = Loop(scanned.axis, scanned.axis, extents[scanned.axis])
        self.loops = [*rows, tiles, walk] if scanned.across else [*rows, tiles]
        self.parallel = parallel_loops(values, rows or ([tiles] if scanned.across else []))

    def steps(self) -> list[Step]:
        stage, lanes, vector = self.scanned.stage.name, self.facts.lanes, self.scanned.vector
        unroll, chunks = self.unroll.item(), self.values.integers("chunks").item()
        steps: list[Step] = [*self.merges, Scan(stage)]
        steps += [Inline(name) for name in reversed(self.scanned.before)]
        inside = f"{vector}.i"
        if self.scanned.across:
            steps.append(Tile(stage, vector, self.tile.item() * lanes))
            steps.append(Tile(stage, inside, unroll * lanes))
            inner: tuple[str, ...] = (f"{inside}.o", f"{inside}.i.o", f"{inside}.i.i")
            steps.append(Tile(stage, f"{inside}.i", lanes))
        else:
            steps.append(Tile(stage, vector, unroll * lanes))
            steps.append(Tile(stage, inside, lanes))
            inner = (f"{inside}.o", f"{inside}.i")
        order = (*(loop.name for loop in self.loops), *inner)
        steps += [Reorder(stage, order), Unroll(stage, inner[-2]), Vectorize(stage, inner[-1])]
        steps += parallel_steps(stage, self.parallel, chunks)
        return [*steps, *self._epilogue(chunks)]

    def _epilogue(self, chunks: int) -> list[Step]:
        """The loops of the output, where it is another stage than the scanned one."""
        output, lanes = self.kernel.output, self.facts.lanes
        if output.name == self.scanned.stage.name or not output.axes:
            return []
        *rows, last = (axis.name for axis in output.axes)
        loops = [Loop(axis.name, axis.name, axis.extent) for axis in output.axes[:-1]]
        return [
            Tile(output.name, last, lanes),
            Reorder(output.name, (*rows, f"{last}.o", f"{last}.i")),
            Vectorize(output.name, f"{last}.i"),
            *parallel_steps(output.name, parallel_loops(self.values, loops), chunks),
        ]

    def shape(self) -> NestShape:
        values = self.values
        which = np.zeros(values.count, np.int64)
        shared = pieces_and_grains(values, [self.parallel], which, self.facts.threads)
        vectors = self.tile if self.scanned.across else self.unroll
        return row_shape(self.facts, values, [self.loops], which, vectors, shared)
