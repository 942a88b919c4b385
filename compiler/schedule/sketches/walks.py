"""Sketches of kernels that walk along an axis: running sums and products, and scatters.

A running reduction, along the last axis:     Along another one:
for rows.. (parallel):                        for outer.. (parallel): for tiles of columns:
    carried = 0                                   carried[..] = 0
    for vectors: vector of prefixes,              for steps: for vectors of the tile:
        carried = its last                            carried += x, y = carried

Stages before it are computed where they are used; stages after it read it from workspace.

A scatter copies data, then updates it at the positions that are read, once along the updates:
across the scattered axis (parallel where rows are few: tiles)
  for rows (parallel): for tiles of columns: for the axis: for vectors: y = data
                                             for updates: place: for vectors: y[place] += value
along it
  for rows (parallel): for vectors: y = data
                       for updates: y[place] += value
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.running import running_reduction
from tunefarm.compiler.kernels.scatter import Scatter as ScatterForm
from tunefarm.compiler.kernels.scatter import scatter_of
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
from tunefarm.compiler.schedule.steps.walks import Scan, Scatter
from tunefarm.compiler.schedule.vectors import UNROLLS, vector_lanes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.frozen import frozen

SCAN_TILES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # vectors of columns that are walked together
LONGEST_TILE = 64  # by rule: 4 KiB of each row follow each other, and carried values stay in L1
SCATTER_TILES = tuple(1 << power for power in range(13))  # of columns that are updated together
TILES_PER_THREAD = 2


@frozen
class _Axes:
    """The axis that vectors run along, the walked one, and the others, with all extents."""

    vector: str
    walked: str
    rows: tuple[str, ...]
    extents: dict[str, int]

    @property
    def across(self) -> bool:
        """Vectors run across the walked axis."""
        return self.vector != self.walked

    def unrolls(self, lanes: int) -> tuple[int, ...]:
        """How many vectors may be together."""
        return tuple(u for u in UNROLLS if u == 1 or u * lanes <= self.extents[self.vector])

    def tiles(self, tiles: Sequence[int], lanes: int) -> tuple[int, ...]:
        """Those of these tiles that are not much longer than a row."""
        return tuple(t for t in tiles if t == 1 or t * lanes < 2 * self.extents[self.vector])


class _Walk:
    """What is decided for n candidates; rows that can be shared among threads are `shareable`."""

    def __init__(
        self, facts: KernelFacts, axes: _Axes, shareable: Sequence[str], values: Values
    ) -> None:
        self.facts, self.axes, self.values = facts, axes, values
        lanes, vector, extents = facts.lanes, axes.vector, axes.extents
        self.unroll = values.integers("unroll")
        self.tile = np.maximum(values.integers("tile", 1), self.unroll)
        rows = [Loop(name, name, extents[name]) for name in axes.rows]
        width = (self.tile if axes.across else self.unroll) * lanes
        tiles = Loop(f"{vector}.o", vector, extents[vector], width)
        walk = Loop(axes.walked, axes.walked, extents[axes.walked])
        self.loops = [*rows, tiles, walk] if axes.across else [*rows, tiles]
        shared = [row for row in rows if row.axis in shareable]
        self.parallel = parallel_loops(values, shared or ([tiles] if axes.across else []))
        self.names = [loop.name for loop in self.loops]

    @property
    def chunks(self) -> int:
        """The chunks of the candidate, where there is one."""
        return int(self.values.integers("chunks").item())

    def tiled(self, stage: str) -> tuple[list[Step], tuple[str, ...]]:
        """The steps that cut rows into vectors, and the loops of a tile."""
        lanes, inside = self.facts.lanes, f"{self.axes.vector}.i"
        vectors = self.unroll.item() * lanes
        if not self.axes.across:
            steps = [Tile(stage, self.axes.vector, vectors), Tile(stage, inside, lanes)]
            return [*steps], (f"{inside}.o", f"{inside}.i")
        steps = [
            Tile(stage, self.axes.vector, self.tile.item() * lanes),
            Tile(stage, inside, vectors),
            Tile(stage, f"{inside}.i", lanes),
        ]
        return [*steps], (f"{inside}.o", f"{inside}.i.o", f"{inside}.i.i")

    def shape(self) -> NestShape:
        """The loops of all candidates, and what they cost."""
        which = np.zeros(self.values.count, np.int64)
        shared = pieces_and_grains(self.values, [self.parallel], which, self.facts.threads)
        vectors = self.tile if self.axes.across else self.unroll
        return row_shape(self.facts, self.values, [self.loops], which, vectors, shared)


# --- running reductions -------------------------------------------------------------------------


def scan_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel's only reduction is a running one."""
    merged, merges = merge_all(kernel)
    stage = merged.stage(merged.anchor)
    running = running_reduction(stage)
    if running is None or sum(bool(item.reduce_axes) for item in merged.stages) > 1:
        return []
    before = tuple(item.name for item in merged.stages[: merged.stages.index(stage)])
    names, vector = [axis.name for axis in stage.axes], stage.axes[-1].name
    rows = tuple(name for name in names if name not in (vector, running.axis))
    extents = {axis.name: axis.extent for axis in stage.axes}
    axes, lanes = _Axes(vector, running.axis, rows, extents), vector_lanes(merged, target)
    unrolls = axes.unrolls(lanes)
    preferred = unrolls[:3][-1] if axes.across else 1
    choices: list[tuple[Choice, ChoiceValue]] = [(Choice("unroll", unrolls), preferred)]
    if axes.across:
        tiles = axes.tiles(SCAN_TILES, lanes)
        choices.append((Choice("tile", tiles), max(t for t in tiles if t <= LONGEST_TILE)))
    linear = _linear(merged, running.walked(stage), before)
    choices += chunk_choices(linear, threads)
    facts = KernelFacts(linear, lanes, threads, target)

    def plan(values: Values) -> _ScanCandidates:
        return _ScanCandidates(facts, axes, merged, before, merges, values)

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


class _ScanCandidates(_Walk):
    def __init__(
        self,
        facts: KernelFacts,
        axes: _Axes,
        kernel: FusedKernel,
        before: tuple[str, ...],
        merges: tuple[MergeAxes, ...],
        values: Values,
    ) -> None:
        super().__init__(facts, axes, axes.rows, values)
        self.kernel, self.before, self.merges = kernel, before, merges

    def steps(self) -> list[Step]:
        stage = self.kernel.anchor
        tiled, inner = self.tiled(stage)
        return [
            *self.merges,
            Scan(stage),
            *(Inline(name) for name in reversed(self.before)),
            *tiled,
            Reorder(stage, (*self.names, *inner)),
            Unroll(stage, inner[-2]),
            Vectorize(stage, inner[-1]),
            *parallel_steps(stage, self.parallel, self.chunks),
            *self._epilogue(),
        ]

    def _epilogue(self) -> list[Step]:
        """The loops of the output, where it is another stage than the scanned one."""
        output, lanes = self.kernel.output, self.facts.lanes
        if output.name == self.kernel.anchor or not output.axes:
            return []
        *rows, last = (axis.name for axis in output.axes)
        loops = [Loop(axis.name, axis.name, axis.extent) for axis in output.axes[:-1]]
        return [
            Tile(output.name, last, lanes),
            Reorder(output.name, (*rows, f"{last}.o", f"{last}.i")),
            Vectorize(output.name, f"{last}.i"),
            *parallel_steps(output.name, parallel_loops(self.values, loops), self.chunks),
        ]


# --- scatters -----------------------------------------------------------------------------------


def scatter_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel is a scatter."""
    scatter = scatter_of(kernel)
    if scatter is None:
        return []
    axes, lanes = _axes_of(scatter), vector_lanes(kernel, target)
    long = [row for row in axes.rows if axes.extents[row] > 1]
    unrolls = axes.unrolls(lanes)
    choices: list[tuple[Choice, ChoiceValue]] = [(Choice("unroll", unrolls), unrolls[:3][-1])]
    if axes.across:
        tiles, extent = axes.tiles(SCATTER_TILES, lanes), axes.extents[axes.vector]
        shared = threads > 1 and prod(axes.extents[row] for row in axes.rows) < threads
        most = extent // (TILES_PER_THREAD * threads) if shared else 2 * extent
        choices.append(
            (Choice("tile", tiles), max(t for t in tiles if t == 1 or t * lanes <= most))
        )
    copied = replace(scatter.output, body=scatter.seed)  # what costs are estimated from
    linear = replace(kernel, stages=(copied,), anchor=copied.name)
    choices += chunk_choices(linear, threads) if axes.across or long else []
    facts = KernelFacts(linear, lanes, threads, target)

    def plan(values: Values) -> _ScatterCandidates:
        return _ScatterCandidates(facts, axes, long, values, scatter.updates.name)

    return [Sketch.planned("scatter", choices, plan)]


def _axes_of(scatter: ScatterForm) -> _Axes:
    axes = scatter.output.axes
    long = [axis.name for axis in axes if axis.extent > 1] or [axes[-1].name]
    vector = long[-1]
    rows = tuple(axis.name for axis in axes if axis.name not in (vector, scatter.axis))
    return _Axes(vector, scatter.axis, rows, {axis.name: axis.extent for axis in axes})


class _ScatterCandidates(_Walk):
    def __init__(
        self,
        facts: KernelFacts,
        axes: _Axes,
        shareable: Sequence[str],
        values: Values,
        updates: str,
    ) -> None:
        super().__init__(facts, axes, shareable, values)
        self.updates = updates

    def steps(self) -> list[Step]:
        stage = self.facts.kernel.output.name
        tiled, inner = self.tiled(stage)
        first = [loop.name for loop in self.parallel]  # rows of one round come behind
        outer = (*first, *(name for name in self.names if name not in first))
        walked = (self.updates, *inner) if self.axes.across else (*inner, self.updates)
        return [
            Scatter(stage),
            *tiled,
            Reorder(stage, (*outer, *walked)),
            Unroll(stage, inner[-2]),
            Vectorize(stage, inner[-1]),
            *parallel_steps(stage, self.parallel, self.chunks),
        ]
