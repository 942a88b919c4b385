"""Sketch: one row after another, for everything that is no register tile.

Pointwise and injective kernels are one vectorised loop; kernels with reductions over whole rows
(softmax, layer normalisation, sums) compute each reduction for a row where the row is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from math import prod

from compiler.expr.nodes import Expr, index
from compiler.expr.walk import loads
from compiler.kernels.inline import inline
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.stage import Stage
from compiler.schedule.schedule import Schedule
from compiler.schedule.sketches.borders import borders, tile_cuts
from compiler.schedule.sketches.merged_axes import merge_all, merge_reductions
from compiler.schedule.sketches.roles import epilogue_is_plain
from compiler.schedule.sketches.row_parts import (
    RowParts,
    RowReduction,
    row_constants,
    split_reduction,
    split_widths,
)
from compiler.schedule.sketches.row_plan import (
    RowPlan,
    contiguous_reduce_axis,
    recompute_long_rows,
    row_plan,
)
from compiler.schedule.sketches.row_shape import row_shape
from compiler.schedule.space import Choice, ChoiceValue, Sketch
from compiler.schedule.steps.cache_write import CacheWrite
from compiler.schedule.steps.compute_at import ComputeAt
from compiler.schedule.steps.fuse import Fuse
from compiler.schedule.steps.inline import Inline
from compiler.schedule.steps.parallelize import Parallelize
from compiler.schedule.steps.partition import Partition
from compiler.schedule.steps.prefetch import Prefetch
from compiler.schedule.steps.reorder import Reorder
from compiler.schedule.steps.step import Step
from compiler.schedule.steps.tile import Tile
from compiler.schedule.steps.unroll import Unroll
from compiler.schedule.steps.vectorize import Vectorize
from compiler.schedule.vectors import vector_lanes
from compiler.target import Target

ACCUMULATORS = (1, 2, 3, 4, 6, 8)
UNROLLS = (1, 2, 4, 8)
PARALLEL_ROUNDS = 8  # of a parallel loop, that are enough to share
PARALLEL_ELEMENTS = 16 * 1024  # below this many elements a second thread costs more than it saves


def row_wise_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch for this kernel; always one."""
    merged, output_merges = merge_all(kernel)
    merged, reduce_merges = merge_reductions(merged)
    merged, recomputed = recompute_long_rows(merged)
    first = (*output_merges, *reduce_merges, *recomputed)
    plan = row_plan(merged)
    unrolls = UNROLLS if plan.vector else UNROLLS[:1]
    choices = [Choice("unroll", unrolls)]
    default: list[ChoiceValue] = [unrolls[min(1, len(unrolls) - 1)]]
    if plan.vector and _computed_per_row(merged, plan):
        choices.append(Choice("unroll_parts", unrolls))
        default.append(1)  # polynomials side by side need more registers than there are
    for reduction in plan.split:
        accumulators, preferred = _accumulators(merged, reduction, target)
        choices.append(Choice(_accumulator_choice(plan, reduction[0]), accumulators))
        default.append(preferred)
    streams = _streams(merged, plan, target) if plan.split else {}
    if streams:
        choices.append(Choice("rows_ahead", (0, 1, 2)))
        default.append(1)
    if plan.inlinable:
        choices.append(Choice("padding", ("inline", "copy")))
        default.append("inline")
    if threads > 1 and work(merged) >= PARALLEL_ELEMENTS:
        choices.append(Choice("chunks", (1, 2, 4, 8)))
        default.append(2)

    def build(assignment: Mapping[str, ChoiceValue]) -> Schedule:
        ahead = int(str(assignment.get("rows_ahead", 0)))
        prefetches = [Prefetch(name, ahead * row) for name, row in streams.items() if ahead]
        return Schedule((*first, *_steps(merged, plan, target, assignment), *prefetches))

    shape = row_shape(merged, vector_lanes(merged, target), threads, choices, plan.vector, "unroll")
    return [Sketch("row_wise", tuple(choices), build, tuple(default), shape)]


def _streams(kernel: FusedKernel, plan: RowPlan, target: Target) -> dict[str, int]:
    """Inputs that come from memory row by row, and the elements of a row.

    Hardware stops to look ahead while a row is walked for the second time.
    """
    rows = prod(axis.extent for axis in kernel.output.axes if axis.name in plan.rows)
    return {
        buffer.name: prod(buffer.shape) // rows
        for buffer in kernel.inputs
        if buffer.type.bytes > target.l2_bytes and prod(buffer.shape) % rows == 0
    }


def reduces_rows(kernel: FusedKernel) -> bool:
    """The anchor reduces whole rows of one tensor, whose elements lie side by side."""
    merged, _ = merge_reductions(kernel)
    anchor = merged.stage(merged.anchor)
    read = loads(anchor.body)
    if len({load.buffer for load in read}) != 1 or not epilogue_is_plain(merged):
        return False
    axis = contiguous_reduce_axis(anchor, merged)
    return axis != "" and all(load.indices[-1] == index(axis) for load in read if load.indices)


def _computed_per_row(kernel: FusedKernel, plan: RowPlan) -> bool:
    """Some stage without a reduction is computed for a row, before the row is written."""
    return any(
        not kernel.stage(name).reduce_axes
        and plan.vector in [axis.name for axis in kernel.stage(name).axes]
        for name in plan.attached
    )


def _accumulator_choice(plan: RowPlan, stage: str) -> str:
    """The name of the choice for this reduction: "accumulators" for the first, then numbered."""
    number = [name for name, _ in plan.split].index(stage) + 1
    return "accumulators" if number == 1 else f"accumulators_{number}"


def _accumulators(
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


def work(kernel: FusedKernel) -> int:
    """Points of the largest iteration space."""
    most = 0
    for stage in kernel.stages:
        points = 1
        for axis in (*stage.axes, *stage.reduce_axes):
            points *= axis.extent
        most = max(most, points)
    return most


# Steps -------------------------------------------------------------------------------------------


def _steps(
    kernel: FusedKernel, plan: RowPlan, target: Target, choice: Mapping[str, ChoiceValue]
) -> list[Step]:
    output, lanes = kernel.output.name, vector_lanes(kernel, target)
    constants: list[str] = []
    steps: list[Step] = []
    if plan.attached or plan.cache:
        inner = dict.fromkeys((*plan.attached, output), plan.vector) | dict(plan.split)
        constants, steps = row_constants(kernel, inner, plan.rows)
    if choice.get("padding") == "inline":
        steps += [Inline(stage) for stage in reversed(plan.inlinable)]
    attached = list(plan.attached)
    stages = {stage.name: stage for stage in kernel.stages}
    if plan.cache:
        result = f"{output}.sum"
        steps.append(CacheWrite(output, result))
        attached.append(result)
        stages[result] = stages[output]
    split = {(f"{output}.sum" if name == output else name): axis for name, axis in plan.split}
    unroll = int(str(choice["unroll"]))
    widths = {
        f"{name}.sum" if name == output else name: split_widths(
            lanes, int(str(choice[_accumulator_choice(plan, name)]))
        )
        for name, _ in plan.split
    }
    inside = int(str(choice.get("unroll_parts", 1)))
    parts = _row_parts(attached, stages, split, lanes, widths, inside, plan)
    steps += parts.made
    body = kernel.output.body
    if choice.get("padding") == "inline":
        for name in reversed(plan.inlinable):
            body = inline(body, kernel.stage(name))
    loops, output_steps, cuts = _output_steps(kernel, plan, lanes, unroll, body)
    steps += output_steps
    where = loops[-1] if loops else ""
    parallel: list[Step] = []
    if "chunks" in choice and loops:
        outer = _uncut(kernel, loops, cuts)
        parallel, where = parallel_steps(output, outer or loops, int(str(choice["chunks"])))
        where = loops[-1] if outer and outer != loops else where
        cuts = {loop: at for loop, at in cuts.items() if outer or loop.endswith(".o")}
    steps += [Partition(output, loop, 0, 0, at) for loop, at in cuts.items()]
    steps += parallel
    if where:
        names = [*parts.names, *constants]
        steps += [ComputeAt(part, output, where, "stack") for part in reversed(names)]
    return steps + parts.loops


def _uncut(kernel: FusedKernel, loops: list[str], cuts: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The outer loops up to the first that is cut, if they are enough for all threads."""
    extents = {axis.name: axis.extent for axis in kernel.output.axes}
    outer = list(takewhile(lambda loop: loop not in cuts, loops))
    rounds = prod(extents[loop] for loop in outer if loop in extents)
    return outer if outer == loops or rounds >= PARALLEL_ROUNDS else []


def _output_steps(
    kernel: FusedKernel, plan: RowPlan, lanes: int, unroll: int, body: Expr
) -> tuple[list[str], list[Step], dict[str, tuple[int, ...]]]:
    """The output's loops outside of the vector, the steps that make them, and where to cut them."""
    output = kernel.output.name
    positions = {axis.name: borders(body, axis) for axis in kernel.output.axes}
    cuts = {axis: at for axis, at in positions.items() if at and axis != plan.vector}
    if not plan.vector:
        return list(plan.rows), [], cuts
    extent = next(axis.extent for axis in kernel.output.axes if axis.name == plan.vector)
    axis = plan.vector
    width = lanes * unroll if extent >= lanes * unroll else lanes
    steps: list[Step] = [Tile(output, axis, width), Tile(output, f"{axis}.i", lanes)]
    inner = (f"{axis}.i.o", f"{axis}.i.i")
    if plan.free:
        rest = tuple(name for name in plan.free if name != axis)
        steps.append(Reorder(output, (*plan.rows, *rest, f"{axis}.o", *inner)))
        loops = list(plan.rows)
    else:
        loops = [*(name for name in plan.rows if name != axis), f"{axis}.o"]
        steps.append(Reorder(output, (*loops, *inner)))
    steps += [Unroll(output, inner[0]), Vectorize(output, inner[1])]
    tiles = tile_cuts(positions[axis], width)
    return loops, steps, cuts | ({f"{axis}.o": tiles} if tiles else {})


def _row_parts(
    attached: list[str],
    stages: Mapping[str, Stage],
    split: Mapping[str, str],
    lanes: int,
    widths: Mapping[str, tuple[int, ...]],
    unroll: int,
    plan: RowPlan,
) -> RowParts:
    """The parts computed per row, the steps that split reductions, the parts' own loops."""
    parts = RowParts()
    for name in attached:
        stage = stages[name]
        axis = split.get(name, "")
        extent = next((a.extent for a in stage.reduce_axes if a.name == axis), 0)
        names = [a.name for a in stage.axes]
        if axis and extent >= lanes and (plan.free or not plan.vector):
            others = tuple(a.name for a in stage.reduce_axes if a.name != axis)
            reduction = RowReduction(name, axis, extent, tuple(names), others)
            split_reduction(parts, reduction, lanes, widths[name])
            continue
        parts.names.append(name)
        reduce = [a.name for a in stage.reduce_axes]
        if plan.vector and plan.vector in names:
            outer = [n for n in names if n != plan.vector]
            vector, tile = plan.vector, f"{plan.vector}.i"
            width = next(a.extent for a in stage.axes if a.name == vector)
            factor = lanes * unroll if not reduce and width >= lanes * unroll else lanes
            parts.loops += [
                Tile(name, vector, factor),
                Tile(name, tile, lanes),
                Reorder(name, (*outer, f"{vector}.o", *reduce, f"{tile}.o", f"{tile}.i")),
                Unroll(name, f"{tile}.o"),
                Vectorize(name, f"{tile}.i"),
            ]
    return parts


def parallel_steps(output: str, loops: list[str], chunks: int) -> tuple[list[Step], str]:
    """Run the outer loops in parallel: as one fused loop, except a tiled axis (which may peel)."""
    whole = [axis for axis in loops if not axis.endswith(".o")]
    if not whole:
        return [Parallelize(output, loops[0], chunks)], loops[-1]
    if len(whole) == 1:
        return [Parallelize(output, whole[0], chunks)], loops[-1]
    fused: list[Step] = [
        Fuse(output, tuple(whole), "parallel"),
        Parallelize(output, "parallel", chunks),
    ]
    return fused, "parallel" if whole == loops else loops[-1]
