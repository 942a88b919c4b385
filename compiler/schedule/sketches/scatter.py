"""Sketch: data is copied, then updated at the positions that are read, once along the updates.

across the scattered axis (parallel where rows are few: tiles)
  for rows (parallel): for tiles of columns: for the axis: for vectors: y = data
                                             for updates: place: for vectors: y[place] += value
along it
  for rows (parallel): for vectors: y = data
                       for updates: y[place] += value
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.scatter import Scatter as ScatterForm
from tunefarm.compiler.kernels.scatter import scatter_of
from tunefarm.compiler.schedule.nest_shape import Loop, NestShape
from tunefarm.compiler.schedule.sketches.parallel_choices import (
    chunk_choices,
    parallel_loops,
    parallel_steps,
    pieces_and_grains,
)
from tunefarm.compiler.schedule.sketches.row_shape import KernelFacts, row_shape
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.loop_kinds import Unroll, Vectorize
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Reorder, Tile
from tunefarm.compiler.schedule.steps.walks import Scatter
from tunefarm.compiler.schedule.vectors import UNROLLS, vector_lanes
from tunefarm.compiler.target import Target

TILES = tuple(1 << power for power in range(13))  # vectors of columns that are updated together
TILES_PER_THREAD = 2


@dataclass(frozen=True, slots=True)
class _Axes:
    """The axis that vectors run along, the scattered one, that of the updates, and the others."""

    vector: str
    scattered: str
    updates: str
    rows: tuple[str, ...]

    @property
    def across(self) -> bool:
        """Vectors run across the scattered axis."""
        return self.vector != self.scattered


def scatter_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel is a scatter."""
    scatter = scatter_of(kernel)
    if scatter is None:
        return []
    axes = _axes_of(scatter)
    extents = {axis.name: axis.extent for axis in scatter.output.axes}
    lanes, extent = vector_lanes(kernel, target), extents[axes.vector]
    unrolls = tuple(u for u in UNROLLS if u == 1 or u * lanes <= extent)
    choices: list[tuple[Choice, ChoiceValue]] = [(Choice("unroll", unrolls), unrolls[:3][-1])]
    if axes.across:
        tiles = tuple(t for t in TILES if t == 1 or t * lanes < 2 * extent)
        shared = threads > 1 and prod(extents[row] for row in axes.rows) < threads
        most = extent // (TILES_PER_THREAD * threads) if shared else 2 * extent
        choices.append(
            (Choice("tile", tiles), max(t for t in tiles if t == 1 or t * lanes <= most))
        )
    linear = _linear(kernel, scatter)
    choices += chunk_choices(linear, threads) if _shareable(axes, extents) else []
    facts = KernelFacts(linear, lanes, threads, target)

    def plan(values: Values) -> _Candidates:
        return _Candidates(facts, axes, values)

    return [Sketch.planned("scatter", choices, plan)]


def _axes_of(scatter: ScatterForm) -> _Axes:
    axes = scatter.output.axes
    long = [axis.name for axis in axes if axis.extent > 1] or [axes[-1].name]
    vector = long[-1]
    rows = tuple(axis.name for axis in axes if axis.name not in (vector, scatter.axis))
    return _Axes(vector, scatter.axis, scatter.updates.name, rows)


def _shareable(axes: _Axes, extents: dict[str, int]) -> bool:
    """There is a loop whose rounds write to different places."""
    return axes.across or any(extents[row] > 1 for row in axes.rows)


def _linear(kernel: FusedKernel, scatter: ScatterForm) -> FusedKernel:
    """A kernel that copies the data: what costs are estimated from."""
    copied = replace(scatter.output, body=scatter.seed)
    return replace(kernel, stages=(copied,), anchor=copied.name)


class _Candidates:
    """What is decided for n candidates."""

    def __init__(self, facts: KernelFacts, axes: _Axes, values: Values) -> None:
        self.facts, self.axes, self.values = facts, axes, values
        lanes, vector, extents = facts.lanes, axes.vector, facts.extents
        self.unroll = values.integers("unroll")
        self.tile = np.maximum(values.integers("tile", 1), self.unroll)
        rows = [Loop(name, name, extents[name]) for name in axes.rows]
        width = (self.tile if axes.across else self.unroll) * lanes
        tiles = Loop(f"{vector}.o", vector, extents[vector], width)
        walk = Loop(axes.scattered, axes.scattered, extents[axes.scattered])
        self.loops = [*rows, tiles, walk] if axes.across else [*rows, tiles]
        long = [row for row in rows if extents[row.axis] > 1]
        self.parallel = parallel_loops(values, long or ([tiles] if axes.across else []))

    def steps(self) -> list[Step]:
        stage, lanes, vector = self.facts.kernel.output.name, self.facts.lanes, self.axes.vector
        unroll, inside = self.unroll.item(), f"{vector}.i"
        first = [loop.name for loop in self.parallel]  # rows of one round come behind
        outer = (*first, *(loop.name for loop in self.loops if loop.name not in first))
        steps: list[Step] = [Scatter(stage)]
        if self.axes.across:
            steps.append(Tile(stage, vector, self.tile.item() * lanes))
            steps.append(Tile(stage, inside, unroll * lanes))
            steps.append(Tile(stage, f"{inside}.i", lanes))
            inner: tuple[str, ...] = (f"{inside}.o", f"{inside}.i.o", f"{inside}.i.i")
            order: tuple[str, ...] = (*outer, self.axes.updates, *inner)
        else:
            steps.append(Tile(stage, vector, unroll * lanes))
            steps.append(Tile(stage, inside, lanes))
            inner = (f"{inside}.o", f"{inside}.i")
            order = (*outer, *inner, self.axes.updates)
        steps += [Reorder(stage, order), Unroll(stage, inner[-2]), Vectorize(stage, inner[-1])]
        chunks = self.values.integers("chunks").item()
        return [*steps, *parallel_steps(stage, self.parallel, chunks)]

    def shape(self) -> NestShape:
        values = self.values
        which = np.zeros(values.count, np.int64)
        shared = pieces_and_grains(values, [self.parallel], which, self.facts.threads)
        vectors = self.tile if self.axes.across else self.unroll
        return row_shape(self.facts, values, [self.loops], which, vectors, shared)
