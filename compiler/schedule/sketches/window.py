"""Sketch: small windows over plain data, many windows side by side in a vector.

for rest.. (parallel): for row: for column.o:
    registers = identity                            [column.i.o][vector]
    for window.. (unrolled): registers = combine(registers, elements `stride` apart)
    for column.i.o (unrolled): output = epilogue(registers)

Serves pooling in NCHW layout, whatever its stride.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.schedule.nest_shape import Loop, NestShape
from tunefarm.compiler.schedule.sketches.merged_axes import merge_all
from tunefarm.compiler.schedule.sketches.parallel_choices import (
    chunk_choices,
    parallel_loops,
    parallel_steps,
    pieces_and_grains,
)
from tunefarm.compiler.schedule.sketches.roles import epilogue_is_plain
from tunefarm.compiler.schedule.sketches.row_shape import KernelFacts, row_shape
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.kernel_forms import MergeAxes
from tunefarm.compiler.schedule.steps.loop_kinds import Prefetch, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite
from tunefarm.compiler.schedule.steps.placement import ComputeAt, Inline
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Partition, Reorder, Tile
from tunefarm.compiler.schedule.vectors import lanes_along, vector_lanes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

MAX_WINDOW = 49  # elements of a window that is written out
# Elements ahead. Rows above each other are several short streams, which hardware follows late: at
# 256 x 256 a distance of 4 KiB makes pooling of 16 MiB more than twice as fast.
PREFETCH_DISTANCES = (0, 512, 1024, 2048)
LEAST_LANES = 3  # of a vector: rows may be shorter than a register
MAX_STRIDE = 8  # windows further apart leave most of each vector unused


@frozen
class _Window:
    """The axes of the anchor: those outside, the row and the column that the window moves along."""

    outer: tuple[str, ...]
    row: str
    column: str
    reduce: tuple[str, ...]
    prologue: tuple[str, ...]


def window_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel reduces small windows that lie side by side along its last axis."""
    merged, merges = merge_all(kernel)
    extent = merged.output.axes[-1].extent if merged.output.axes else 0
    lanes = lanes_along(extent, vector_lanes(merged, target), target)
    window = _window(merged, lanes)
    if window is None:
        return []
    vectors = tuple(count for count in (1, 2, 4) if count * lanes <= extent)
    choices: list[tuple[Choice, ChoiceValue]] = [(Choice("vectors", vectors), vectors[0])]
    if window.prologue:
        choices.append((Choice("padding", ("inline", "copy")), "inline"))
        choices.append((Choice("edges", ("apart", "together")), "apart"))
    source = _source(merged, window)
    if source is not None and source.type.bytes > target.l2_bytes:
        choices.append((Choice("prefetch", PREFETCH_DISTANCES), PREFETCH_DISTANCES[-2]))
    choices += chunk_choices(merged, threads)
    facts = KernelFacts(merged, lanes, threads, target)
    name = "" if source is None else source.name

    def plan(values: Values) -> _Candidates:
        return _Candidates(facts, window, merges, name, values)

    return [Sketch.planned("window", choices, plan)]


def _source(kernel: FusedKernel, window: _Window) -> Buffer | None:
    """The input that the windows move over, if it is one."""
    stages = (kernel.stage(kernel.anchor), *(kernel.stage(name) for name in window.prologue))
    read = {load.buffer for stage in stages for load in loads(stage.body)}
    sources = [buffer for buffer in kernel.inputs if buffer.name in read]
    return sources[0] if len(sources) == 1 else None


def _window(kernel: FusedKernel, lanes: int) -> _Window | None:
    anchor = kernel.stage(kernel.anchor)
    if not anchor.reduce_axes or not anchor.axes or not epilogue_is_plain(kernel):
        return None
    size = prod(axis.extent for axis in anchor.reduce_axes)
    if size > MAX_WINDOW or lanes < LEAST_LANES or anchor.dtype is DType.BOOL:
        return None
    column = anchor.axes[-1].name
    if not _side_by_side(anchor, column):
        return None
    own = (anchor.name, kernel.output.name)
    prologue = tuple(stage.name for stage in kernel.stages if stage.name not in own)
    if any(kernel.stage(name).reduce_axes for name in prologue):
        return None
    names = [axis.name for axis in anchor.axes[:-1]]
    row = names[-1] if names else ""
    reduce = tuple(axis.name for axis in anchor.reduce_axes)
    return _Window(tuple(names[:-1]), row, column, reduce, prologue)


def _side_by_side(anchor: Stage, column: str) -> bool:
    """One tensor is read, in windows along its last dimension that are a little apart."""
    reduce = {axis.name for axis in anchor.reduce_axes}
    if len({load.buffer for load in loads(anchor.body)}) != 1:
        return False  # a product reuses one operand for many windows: see the tiled reduction
    for load in loads(anchor.body):
        if not axes_of(load.indices[-1]) & reduce:
            return False
        holding = [i for i, item in enumerate(load.indices) if column in axes_of(item)]
        if not holding:
            continue
        stride = affine(load.indices[-1], {}).coefficient(column)
        if holding != [len(load.indices) - 1] or not 1 <= stride <= MAX_STRIDE:
            return False
    return True


class _Candidates:
    """What is decided for n candidates."""

    def __init__(
        self,
        facts: KernelFacts,
        window: _Window,
        merges: tuple[MergeAxes, ...],
        source: str,
        values: Values,
    ) -> None:
        self.facts, self.window, self.values = facts, window, values
        self.merges, self.source = merges, source
        self.vectors = values.integers("vectors")
        self.inline = values.are("padding", "inline")
        self.apart = self.inline & values.are("edges", "apart")
        extents, column = facts.extents, window.column
        width = self.vectors * facts.lanes
        rows = [window.row] if window.row else []
        self.moving = [
            *(Loop(axis, axis, extents[axis], apart=self.apart) for axis in rows),
            Loop(f"{column}.o", column, extents[column], width, whole=True, apart=self.apart),
        ]
        outer = [Loop(axis, axis, extents[axis]) for axis in window.outer]
        self.loops = [*outer, *self.moving]
        self.parallel = parallel_loops(values, outer or self.moving)

    def steps(self) -> list[Step]:
        kernel, window, lanes = self.facts.kernel, self.window, self.facts.lanes
        output, anchor, column = kernel.output.name, kernel.anchor, window.column
        steps: list[Step] = [*self.merges]
        if self.inline.item():
            steps += [Inline(stage) for stage in reversed(window.prologue)]
        if output == anchor:
            anchor = f"{output}.sum"
            steps.append(CacheWrite(output, anchor))
        inner = (f"{column}.i.o", f"{column}.i.i")
        steps += [
            Tile(output, column, self.vectors.item() * lanes, "shift"),
            Tile(output, f"{column}.i", lanes),
            Reorder(output, (*(loop.name for loop in self.loops), *inner)),
            Unroll(output, inner[0]),
            Vectorize(output, inner[1]),
        ]
        if self.apart.item():
            steps += [Partition(output, loop.name) for loop in self.moving]
        steps += parallel_steps(output, self.parallel, self.values.integers("chunks").item())
        tiles = (f"{column}.o", f"{column}.i")
        rest = (*window.outer, *(loop.axis for loop in self.moving[:-1]))
        steps += [
            ComputeAt(anchor, output, f"{column}.o", "register"),
            Tile(anchor, column, lanes),
            Reorder(anchor, (*rest, *window.reduce, *tiles)),
            *(Unroll(anchor, axis) for axis in (*window.reduce, tiles[0])),
            Vectorize(anchor, tiles[1]),
        ]
        distance = self.values.integers("prefetch").item()
        return [*steps, Prefetch(self.source, distance)] if distance else steps

    def shape(self) -> NestShape:
        anchor = self.facts.kernel.stage(self.facts.kernel.anchor)
        kept = prod(axis.extent for axis in anchor.reduce_axes)
        which = np.zeros(self.values.count, np.int64)
        shared = pieces_and_grains(self.values, [self.parallel], which, self.facts.threads)
        return row_shape(
            self.facts, self.values, [self.loops], which, self.vectors, shared, kept=kept
        )
