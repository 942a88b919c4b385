"""Sketch: small windows over plain data, many windows side by side in a vector.

for rest.. (parallel): for row: for column.o:
    registers = identity                            [column.i.o][vector]
    for window.. (unrolled): registers = combine(registers, elements `stride` apart)
    for column.i.o (unrolled): output = epilogue(registers)

Serves pooling in NCHW layout, whatever its stride.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from compiler.expr.affine import affine
from compiler.expr.walk import axes_of, loads
from compiler.kernels.kernel import Buffer, FusedKernel
from compiler.kernels.stage import Stage
from compiler.schedule.schedule import Schedule
from compiler.schedule.sketches.merged_axes import merge_all
from compiler.schedule.sketches.roles import epilogue_is_plain
from compiler.schedule.sketches.row_shape import row_shape
from compiler.schedule.sketches.row_wise import (
    PARALLEL_ELEMENTS,
    parallel_steps,
    work,
)
from compiler.schedule.space import Choice, ChoiceValue, Sketch
from compiler.schedule.steps.cache_write import CacheWrite
from compiler.schedule.steps.compute_at import ComputeAt
from compiler.schedule.steps.inline import Inline
from compiler.schedule.steps.partition import Partition
from compiler.schedule.steps.prefetch import Prefetch
from compiler.schedule.steps.reorder import Reorder
from compiler.schedule.steps.step import Step
from compiler.schedule.steps.tile import Tile
from compiler.schedule.steps.unroll import Unroll
from compiler.schedule.steps.vectorize import Vectorize
from compiler.schedule.vectors import vector_lanes
from compiler.target import Target
from compiler.types.dtypes import DType

MAX_WINDOW = 49  # elements of a window that is written out
# Elements ahead. Rows above each other are several short streams, which hardware follows late: at
# 256 x 256 a distance of 4 KiB makes pooling of 16 MiB more than twice as fast.
PREFETCH_DISTANCES = (0, 512, 1024, 2048)
MAX_STRIDE = 4  # windows further apart leave most of each vector unused


@dataclass(frozen=True, slots=True)
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
    lanes = vector_lanes(merged, target)
    window = _window(merged, lanes)
    if window is None:
        return []
    extent = merged.output.axes[-1].extent
    vectors = tuple(count for count in (1, 2, 4) if count * lanes <= extent)
    choices = [Choice("vectors", vectors)]
    default: list[ChoiceValue] = [vectors[0]]
    if window.prologue:
        choices += [Choice("padding", ("inline", "copy")), Choice("edges", ("apart", "together"))]
        default += ["inline", "apart"]
    source = _source(merged, window)
    if source is not None and source.type.bytes > target.l2_bytes:
        choices.append(Choice("prefetch", PREFETCH_DISTANCES))
        default.append(PREFETCH_DISTANCES[-2])
    if threads > 1 and work(merged) >= PARALLEL_ELEMENTS:
        choices.append(Choice("chunks", (1, 2, 4, 8)))
        default.append(2)

    def build(assignment: Mapping[str, ChoiceValue]) -> Schedule:
        steps = _steps(merged, window, lanes, assignment)
        if source is not None and (distance := int(str(assignment.get("prefetch", 0)))):
            steps.append(Prefetch(source.name, distance))
        return Schedule((*merges, *steps))

    points = prod(axis.extent for axis in merged.stage(merged.anchor).reduce_axes)
    shape = row_shape(merged, lanes, threads, choices, window.column, "vectors", points)
    return [Sketch("window", tuple(choices), build, tuple(default), shape)]


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
    size = 1
    for axis in anchor.reduce_axes:
        size *= axis.extent
    if size > MAX_WINDOW or anchor.axes[-1].extent < lanes or anchor.dtype is DType.BOOL:
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


def _steps(
    kernel: FusedKernel, window: _Window, lanes: int, choice: Mapping[str, ChoiceValue]
) -> list[Step]:
    output, anchor = kernel.output.name, kernel.anchor
    column = window.column
    steps: list[Step] = []
    inline = choice.get("padding") == "inline"
    if inline:
        steps += [Inline(stage) for stage in reversed(window.prologue)]
    if output == anchor:
        anchor = f"{output}.sum"
        steps.append(CacheWrite(output, anchor))
    rows = [window.row] if window.row else []
    loops = [*window.outer, *rows, f"{column}.o"]
    inner = (f"{column}.i.o", f"{column}.i.i")
    steps += [
        Tile(output, column, int(str(choice["vectors"])) * lanes, "shift"),
        Tile(output, f"{column}.i", lanes),
        Reorder(output, (*loops, *inner)),
        Unroll(output, inner[0]),
        Vectorize(output, inner[1]),
    ]
    if inline and choice["edges"] == "apart":
        steps += [Partition(output, axis) for axis in loops[len(window.outer) :]]
    if "chunks" in choice:
        steps += parallel_steps(output, list(window.outer) or loops, int(str(choice["chunks"])))[0]
    steps.append(ComputeAt(anchor, output, f"{column}.o", "register"))
    tiles = (f"{column}.o", f"{column}.i")
    return [
        *steps,
        Tile(anchor, column, lanes),
        Reorder(anchor, (*window.outer, *rows, *window.reduce, *tiles)),
        *(Unroll(anchor, axis) for axis in (*window.reduce, tiles[0])),
        Vectorize(anchor, tiles[1]),
    ]
