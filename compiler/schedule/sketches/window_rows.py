"""Sketch: windows that overlap, reduced across their rows first and then along them.

for rest.. (parallel): for row.o:
    rows = windows of one column, for all columns that some rows of windows read, on the stack
    for row.i: for column.o:
        registers = identity
        for the window's columns (unrolled): registers = combine(registers, rows)
        output = epilogue(registers)

Serves pooling with overlapping windows, in plain layout (columns fill vectors) and on blocked data
(channels do).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from tunefarm.compiler.expr.affine import affine, affine_range, decide
from tunefarm.compiler.expr.nodes import Expr, Load, Select, index
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.expr.walk import axes_of, loads, substitute
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.schedule.nest_shape import Counts, Loop, Nest, NestShape
from tunefarm.compiler.schedule.sketches.merged_axes import merge_all
from tunefarm.compiler.schedule.sketches.parallel_choices import (
    chunk_choices,
    parallel_loops,
    parallel_steps,
    pieces_and_grains,
)
from tunefarm.compiler.schedule.sketches.roles import epilogue_is_plain
from tunefarm.compiler.schedule.sketches.row_arrangement import STACK_ELEMENTS
from tunefarm.compiler.schedule.sketches.row_shape import KernelFacts
from tunefarm.compiler.schedule.sketches.window import LEAST_LANES, MAX_STRIDE
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.kernel_forms import MergeAxes
from tunefarm.compiler.schedule.steps.loop_kinds import Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite, SeparateWindow
from tunefarm.compiler.schedule.steps.placement import ComputeAt, Inline
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Partition, Reorder, Tile
from tunefarm.compiler.schedule.vectors import lanes_along, vector_lanes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType

MAX_TAPS = 64  # across or along, that are written out
MAX_SHUFFLED_ELEMENTS = (
    4  # elements: windows further apart are picked from as many vectors as they are apart
)
VECTORS = (1, 2, 4)
ROWS = (1, 2, 4, 8)
LEAST_VECTORS = 12  # written between a vector and a load of it in part, which waits for it else
SAVES = 0.85  # of the loads of whole windows, at most so many are worth the rows' detour


@dataclass(frozen=True)
class _Windows:
    """The parts of a pool, its axes already merged; `vector` is the column or a block's lane."""

    kernel: FusedKernel
    merges: tuple[MergeAxes, ...]
    target: Target
    lanes: int
    column: str
    vector: str

    @cached_property
    def anchor(self) -> Stage:
        return self.kernel.stage(self.kernel.anchor)

    @cached_property
    def load(self) -> Load:
        return loads(self.anchor.body)[0]

    @cached_property
    def moving(self) -> Expr:
        """Where along the columns an element is read."""
        return next(item for item in self.load.indices if self.column in axes_of(item))

    @cached_property
    def along(self) -> tuple[str, ...]:
        names = axes_of(self.moving)
        return tuple(axis.name for axis in self.anchor.reduce_axes if axis.name in names)

    @cached_property
    def across(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.anchor.reduce_axes if a.name not in self.along)

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        axes = (*self.anchor.axes, *self.anchor.reduce_axes)
        return {axis.name: (0, axis.extent - 1) for axis in axes}

    @cached_property
    def width(self) -> int:
        """Columns that a row of windows reads."""
        return affine_range(affine(self.moving, self.ranges), self.ranges)[1] + 1

    @cached_property
    def row_lanes(self) -> int:
        """Points of a vector of the rows, which are longer than those of the result."""
        if self.vector != self.column:
            return self.lanes
        return lanes_along(self.width, vector_lanes(self.kernel, self.target), self.target)

    @cached_property
    def outer(self) -> tuple[str, ...]:
        """The axes outside of the column, the row last."""
        return tuple(a.name for a in self.anchor.axes if a.name not in (self.column, self.vector))

    @property
    def prologue(self) -> tuple[str, ...]:
        own = (self.anchor.name, self.kernel.output.name)
        return tuple(stage.name for stage in self.kernel.stages if stage.name not in own)

    def guards(self, axis: str) -> Iterator[Expr]:
        """The conditions of padding that depend on an axis of the anchor."""
        for name in self.prologue:
            stage = self.kernel.stage(name)
            if isinstance(stage.body, Select) and self.load.buffer == name:
                axes = (item.name for item in stage.axes)
                values = dict(zip(axes, self.load.indices, strict=True))
                conditions = (substitute(c, values) for c in conjuncts(stage.body.condition))
                yield from (c for c in conditions if axis in axes_of(c))

    @cached_property
    def row_cuts(self) -> tuple[int, ...]:
        """The rows between which no window reaches over the border."""
        row = self.outer[-1]
        extent = self.ranges[row][1] + 1
        guards = list(self.guards(row))

        def inside(position: int) -> bool:
            ranges = {**self.ranges, row: (position, position)}
            return all(decide(guard, ranges) is True for guard in guards)

        first = next((i for i in range(extent) if inside(i)), extent)
        last = next((i for i in range(extent, first, -1) if inside(i - 1)), first)
        return (first, last) if guards else ()


def window_rows_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel reduces windows of several rows that overlap."""
    if not isinstance(kernel.stage(kernel.anchor).body, Load):
        return []  # before axes are merged: most kernels are no pools
    merged, merges = merge_all(kernel)
    windows = _windows(merged, merges, target)
    if windows is None:
        return []
    points = windows.ranges[windows.column][1] + 1
    width = windows.lanes if windows.vector == windows.column else 1
    vectors = tuple(count for count in VECTORS if count * width <= points)
    computed = [-(-points // (count * width)) * count for count in vectors]  # shifted tiles too
    best = max(count for count, all in zip(vectors, computed, strict=True) if all == min(computed))
    choices: list[tuple[Choice, ChoiceValue]] = [(Choice("vectors", vectors), min(best, 2))]
    extent = windows.ranges[windows.outer[-1]][1] + 1
    rows = tuple(count for count in ROWS if count <= extent)
    row_width = windows.row_lanes if windows.vector == windows.column else 1
    vectors_of_row = -(-windows.width // row_width)
    few = (count for count in rows if count * vectors_of_row >= LEAST_VECTORS)
    choices.append((Choice("rows", rows), next(few, rows[-1])))
    choices += chunk_choices(merged, threads)
    facts = KernelFacts(merged, windows.lanes, threads, target)
    sketch = Sketch.planned("window_rows", choices, lambda v: _Candidates(facts, windows, v))
    return [sketch]


def _windows(kernel: FusedKernel, merges: tuple[MergeAxes, ...], target: Target) -> _Windows | None:
    lanes = vector_lanes(kernel, target)
    anchor = kernel.stage(kernel.anchor)
    if len(anchor.reduce_axes) < 2 or len(anchor.axes) < 2 or not epilogue_is_plain(kernel):
        return None
    if anchor.dtype is DType.BOOL or anchor.accumulator is not None:
        return None
    if not isinstance(anchor.body, Load):
        return None
    *_, before, last = anchor.axes
    blocked = last.extent == lanes and anchor.body.indices[-1] == index(last.name)
    column = before if blocked else last
    if not blocked:
        lanes = lanes_along(last.extent, lanes, target)
    windows = _Windows(kernel, merges, target, lanes, column.name, last.name)
    if lanes < LEAST_LANES or len(windows.outer) < 1 or not _moves(windows):
        return None
    if any(kernel.stage(name).reduce_axes for name in windows.prologue):
        return None
    return windows if _pays(windows) else None


def _moves(windows: _Windows) -> bool:
    """Along the columns by one index of its own, a few elements at a time."""
    holding = [item for item in windows.load.indices if windows.column in axes_of(item)]
    if len(holding) != 1 or not windows.along or not windows.across:
        return False
    stride = affine(holding[0], {}).coefficient(windows.column)
    own = {windows.column, *windows.along}
    return 1 <= stride <= MAX_STRIDE and axes_of(holding[0]) == own


def _pays(windows: _Windows) -> bool:
    """Rows on the stack save loads: each column of a window is reduced for all its neighbours."""
    extents = {axis.name: axis.extent for axis in windows.anchor.reduce_axes}
    across = prod(extents[name] for name in windows.across)
    along = prod(extents[name] for name in windows.along)
    columns = windows.ranges[windows.column][1] + 1
    kept, rows, picked = windows.width, windows.width / columns, 1
    if windows.vector == windows.column:
        stride = affine(windows.moving, {}).coefficient(windows.column)
        rows = -(-windows.width // windows.row_lanes) / -(-columns // windows.lanes)
        rows = max(rows, float(stride))
        picked = stride if stride > MAX_SHUFFLED_ELEMENTS else 1
    else:
        kept *= windows.lanes
    if max(across, along) > MAX_TAPS or kept > STACK_ELEMENTS:
        return False
    return (across + 1) * rows + along * picked <= SAVES * across * along * picked


class _Candidates:
    """What is decided for n candidates."""

    def __init__(self, facts: KernelFacts, windows: _Windows, values: Values) -> None:
        self.facts, self.windows, self.values = facts, windows, values
        self.vectors = values.integers("vectors")
        extents, column = facts.extents, windows.column
        self.by_column = windows.vector == column
        *outer, row = windows.outer
        width = self.vectors * (facts.lanes if self.by_column else 1)
        whole = [Loop(axis, axis, extents[axis]) for axis in outer]
        self.rows = values.integers("rows")
        cuts = tuple(-(-cut // self.rows) for cut in windows.row_cuts[:1])
        cuts += tuple(cut // self.rows for cut in windows.row_cuts[1:])
        tiles = Loop(f"{row}.o", row, extents[row], self.rows, whole=True, cuts=cuts)
        self.parallel = parallel_loops(values, whole or [tiles])
        if self.parallel and self.parallel[0] is tiles:
            tiles = replace(tiles, cuts=())
            self.parallel = [tiles]
        self.row = tiles
        self.loops = [
            *whole,
            tiles,
            Loop(f"{row}.i", row, self.rows),
            Loop(f"{column}.o", column, extents[column], width, whole=True),
        ]

    def steps(self) -> list[Step]:
        windows, kernel = self.windows, self.facts.kernel
        output, anchor, column = kernel.output.name, kernel.anchor, windows.column
        row, rows, held = self.row, f"{anchor}.rows", f"{anchor}.rows.held"
        steps: list[Step] = [*windows.merges, SeparateWindow(anchor, column, rows)]
        steps += [Inline(stage) for stage in reversed(windows.prologue)]
        if output == anchor:
            anchor = f"{output}.sum"
            steps.append(CacheWrite(output, anchor))
        steps.append(CacheWrite(rows, held))
        vectors, row_vectors = self.vectors.item(), self._row_vectors().item()
        inner, made = self._tiled(output, column, vectors, windows.lanes)
        steps += [
            Tile(output, row.axis, self.rows.item(), "shift"),
            *made,
            Reorder(output, (*(loop.name for loop in self.loops), *inner)),
            *(Unroll(output, axis) for axis in inner[:-1]),
            Vectorize(output, inner[-1]),
        ]
        if row.cuts:
            cuts = tuple(sorted({np.asarray(cut).item() for cut in row.cuts}))
            steps.append(Partition(output, row.name, 0, 0, cuts))
        steps += parallel_steps(output, self.parallel, self.values.integers("chunks").item())
        steps += [ComputeAt(anchor, output, f"{column}.o", "register")]
        steps += self._reduced(anchor, column, windows.along, windows.lanes)
        along, made = self._tiled(rows, f"{column}_i", row_vectors, windows.row_lanes)
        first = (*windows.outer, f"{column}_i.o")
        steps += [
            *made,
            Reorder(rows, (*first, *along)),
            *(Unroll(rows, axis) for axis in along[:-1]),
            Vectorize(rows, along[-1]),
        ]
        if any(windows.guards(column)):
            steps.append(Partition(rows, f"{column}_i.o"))
        steps += [ComputeAt(held, rows, f"{column}_i.o", "register")]
        steps += self._reduced(held, f"{column}_i", windows.across, windows.row_lanes)
        return [*steps, ComputeAt(rows, output, row.name)]

    def _row_vectors(self) -> Counts:
        """Vectors of a tile of the rows on the stack."""
        width = self.windows.row_lanes if self.by_column else 1
        return np.minimum(self.vectors, -(-self.windows.width // width))

    def _tiled(
        self, stage: str, axis: str, vectors: int, lanes: int
    ) -> tuple[tuple[str, ...], list[Step]]:
        """The loops inside of a tile of columns, and the steps that make it."""
        if not self.by_column:
            return (f"{axis}.i", self.windows.vector), [Tile(stage, axis, vectors, "shift")]
        tiles = [Tile(stage, axis, vectors * lanes, "shift"), Tile(stage, f"{axis}.i", lanes)]
        return (f"{axis}.i.o", f"{axis}.i.i"), [*tiles]

    def _reduced(self, stage: str, axis: str, reduce: tuple[str, ...], lanes: int) -> list[Step]:
        """The loops of a reduction that lives in registers: all written out."""
        made: list[Step] = []
        tiles = (axis, self.windows.vector)
        if self.by_column:
            tiles = (f"{axis}.o", f"{axis}.i")
            made = [Tile(stage, axis, lanes)]
        return [
            *made,
            Reorder(stage, (*self.windows.outer, *reduce, *tiles)),
            *(Unroll(stage, name) for name in (*reduce, tiles[0])),
            Vectorize(stage, tiles[1]),
        ]

    def shape(self) -> NestShape:
        facts, windows, count = self.facts, self.windows, self.values.count
        extents = {axis: high + 1 for axis, (_, high) in windows.ranges.items()}
        kept = prod(extents[name] for name in windows.along)
        width = self.vectors * (facts.lanes if self.by_column else 1)
        nest = Nest(list(facts.extents), count)
        nest.inside[nest.numbers[windows.vector]] = facts.lanes
        nest.inside[nest.numbers[windows.column]] = width
        for name in windows.along:
            nest.inside[nest.numbers[name]] = extents[name]
        for loop in reversed(self.loops):
            nest.loop(loop)
        columns, rows = extents[windows.column], extents[windows.outer[-1]]
        held = self.vectors.astype(np.float64)
        tiles = np.ceil(columns / width) * held
        lines = np.ceil(rows / self.rows) * self.rows.astype(np.float64)
        lines = lines * prod(extents[name] for name in windows.outer[:-1])
        operations = lines * tiles * kept
        body = held * kept
        across = prod(extents[name] for name in windows.across)
        row_vectors = self._row_vectors().astype(np.float64)
        row_width = row_vectors * (windows.row_lanes if self.by_column else 1)
        written = np.ceil(windows.width / row_width) * row_vectors
        executed = operations + lines * written * across
        which = np.zeros(count, np.int64)
        pieces, grains = pieces_and_grains(self.values, [self.parallel], which, facts.threads)
        return NestShape(
            operands=facts.operands,
            nest=nest,
            operations=operations,
            body=body,
            accumulators=held,
            registers=held + 1,
            loads=body,
            step=body,
            cycles=executed / facts.target.machine.vectors.fma,
            flops=executed * facts.lanes,
            full=np.floor(columns / width) * width / columns,
            lanes=np.ones(count),
            aliased=np.ones(count),
            temporary=lines * written * (2.0 * facts.lanes * windows.load.dtype.bytes),
            pieces=pieces,
            grains=grains,
        )
