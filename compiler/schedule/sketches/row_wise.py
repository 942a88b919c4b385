"""Sketch: one row after another, for everything that is no register tile.

Pointwise and injective kernels are one vectorised loop; kernels with reductions over whole rows
(softmax, layer normalisation, sums) compute each reduction for a row where the row is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from math import gcd, prod

import numpy as np

from tunefarm.compiler.expr.nodes import Binary, Expr, Load, Select, index
from tunefarm.compiler.expr.parts import conjuncts, is_expensive
from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage, inline
from tunefarm.compiler.schedule.nest_shape import Counts, Loop, NestShape
from tunefarm.compiler.schedule.sketches.borders import borders, period, tile_cuts
from tunefarm.compiler.schedule.sketches.even_shares import evenly_shared
from tunefarm.compiler.schedule.sketches.merged_axes import (
    LONG_ROW,
    flatten_short_rows,
    merge_all,
    merge_reductions,
)
from tunefarm.compiler.schedule.sketches.parallel_choices import (
    chunk_choices,
    parallel_loops,
    parallel_steps,
    pieces_and_grains,
)
from tunefarm.compiler.schedule.sketches.roles import epilogue_is_plain
from tunefarm.compiler.schedule.sketches.row_arrangement import (
    SHORT_ROW,
    STACK_ELEMENTS,
    Arrangement,
    arrangement_of,
    contiguous_reduce_axis,
    recompute_long_rows,
    shapes_of,
    short_row,
)
from tunefarm.compiler.schedule.sketches.row_parts import (
    RowParts,
    RowReduction,
    row_constants,
    split_reduction,
    split_widths,
)
from tunefarm.compiler.schedule.sketches.row_shape import KernelFacts, row_shape
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.loop_kinds import Prefetch, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite
from tunefarm.compiler.schedule.steps.packing import PackStage
from tunefarm.compiler.schedule.steps.placement import ComputeAt, Inline, StoreInOutput
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Partition, Reorder, Tile
from tunefarm.compiler.schedule.vectors import UNROLLS, vector_lanes
from tunefarm.compiler.target import Target

# Domains of the row-wise sketch: vectors at once, accumulators, rows ahead, with defaults.


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


ROWS_IN_CACHE = 5
"""Rows for which a second-level cache has room where a row is asked for while the one before it is
walked several times (measured on Zen 3; with less the next row takes the place of this one)."""


def _next_row_fits(kernel: FusedKernel, streams: Mapping[str, int], target: Target) -> bool:
    rows = {buffer.name: buffer.dtype.bytes for buffer in kernel.inputs}
    longest = max(length * rows[name] for name, length in streams.items())
    return ROWS_IN_CACHE * longest <= target.l2_bytes


def accumulator_domain(
    kernel: FusedKernel, reduction: tuple[str, str], target: Target
) -> tuple[tuple[int, ...], int]:
    """How many vectors a reduction may be summed up in, and how many is the rule.

    One waits for itself at each step; where the row is short, combining several costs as much.
    Rows side by side have one each.
    """
    name, reduced = reduction
    stage, lanes = kernel.stage(name), vector_lanes(kernel, target)
    if (rows := rows_side_by_side(stage, reduced, lanes)) is not None:
        fitting = tuple(count for count in ACCUMULATORS if rows.extent % count == 0)
        return fitting, max(count for count in fitting if count in (1, 2, 4))
    extent = next(a.extent for a in stage.reduce_axes if a.name == reduced)
    fitting = tuple(a for a in ACCUMULATORS if a == 1 or a * lanes <= extent)
    return fitting, max(a for a in fitting if a == 1 or (a in (2, 4) and 2 * a * lanes <= extent))


def rows_side_by_side(stage: Stage, axis: str, lanes: int) -> Axis | None:
    """The axis of rows of which several are reduced at once, where sizes of the run end some axis.

    By themselves rows that end there are short, and their last step is in vain for the most part;
    those of one vector that no axis is merged with, as sizes are in between, would wait for it.
    """
    ended: set[str] = set()
    body = stage.body
    while isinstance(body, Select):
        for item in conjuncts(body.condition):
            if isinstance(item, Binary) and isinstance(item.right, Load):
                ended |= axes_of(item.left)
        body = body.then
    extents = {item.name: item.extent for item in stage.reduce_axes}
    if not ended or (axis not in ended and extents[axis] >= 2 * lanes):
        return None
    others = (item for item in stage.reduce_axes if item.name not in {*ended, axis})
    return max(others, key=lambda item: gcd(item.extent, 4), default=None)


def computed_per_row(kernel: FusedKernel, arrangement: Arrangement) -> bool:
    """Some stage without a reduction is computed for a row, before the row is written."""
    return any(
        not kernel.stage(name).reduce_axes
        and arrangement.vector in [axis.name for axis in kernel.stage(name).axes]
        for name in arrangement.attached
    )


PARALLEL_ROUNDS = 8  # of a parallel loop, that are enough to share


def row_wise_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch for this kernel; always one."""
    row = LONG_ROW * vector_lanes(kernel, target) if threads > 1 else None
    merged, output_merges = merge_all(kernel, row)
    merged, reduce_merges = merge_reductions(merged)
    lanes = vector_lanes(merged, target)
    merged, flattened = flatten_short_rows(merged, lanes, threads)
    merged, recomputed = recompute_long_rows(merged, lanes)
    rows = arrangement_of(merged, lanes)
    unrolls, preferred = unroll_domain(merged, rows, lanes)
    if rows.across:
        unrolls, preferred = vectors_across(merged, rows, target)
    choices: list[tuple[Choice, ChoiceValue]] = [(Choice("unroll", unrolls), preferred)]
    if rows.vector and (rows.across or computed_per_row(merged, rows)):
        # Polynomials side by side need more registers than there are: by rule one.
        choices.append((Choice("unroll_parts", UNROLLS), 1))
    for number, reduction in enumerate(rows.split):
        accumulators, preferred = accumulator_domain(merged, reduction, target)
        choices.append((Choice(_accumulator_choice(number), accumulators), preferred))
    streams = streamed_rows(merged, rows, target) if rows.split else {}
    if streams:
        choices.append(
            (Choice("rows_ahead", (0, 1, 2)), int(_next_row_fits(merged, streams, target)))
        )
    if rows.inlinable:
        choices.append((Choice("padding", ("inline", "copy")), "inline"))
    choices += chunk_choices(merged, threads)
    facts = KernelFacts(merged, lanes, threads, target)
    first = (*output_merges, *reduce_merges, *flattened, *recomputed)

    def plan(values: Values) -> _Candidates:
        return _Candidates(facts, rows, first, streams, values)

    sketch = Sketch.planned("row_wise", choices, plan)
    return [evenly_shared(sketch, threads, {"unroll": unrolls[::-1]})]


def reduced_row_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The same, if the anchor reduces whole rows of one tensor, whose elements lie side by side."""
    return row_wise_sketches(kernel, target, threads) if _reduces_rows(kernel) else []


def _reduces_rows(kernel: FusedKernel) -> bool:
    """The anchor reduces whole rows of tensors, whose elements lie side by side.

    Of one, or of several none of which has an element that belongs to two results.
    """
    merged, _ = merge_reductions(kernel)
    anchor = merged.stage(merged.anchor)
    read = loads(anchor.body)
    axis = contiguous_reduce_axis(anchor, merged)
    if not axis or not epilogue_is_plain(merged):
        return False
    # What is the same for a whole row, such as its mean, may be read as well.
    names = {item.name for item in anchor.reduce_axes}
    reduced = [load for load in read if any(axes_of(item) & names for item in load.indices)]
    rows = {item.name for item in anchor.axes if item.extent > 1}
    shared = any(rows - set().union(*map(axes_of, load.indices)) for load in reduced)
    if shared and len({load.buffer for load in reduced}) > 1:
        return False
    rest = {load.buffer for load in read} - {load.buffer for load in reduced}
    shapes = shapes_of(merged)
    return rest <= {buffer.name for buffer in merged.inputs} and all(
        _last_index(load, shapes[load.buffer]) == index(axis) for load in reduced
    )


def _last_index(load: Load, shape: tuple[int, ...]) -> Expr:
    """The index of the last dimension that has more than one position."""
    positions = zip(reversed(load.indices), reversed(shape), strict=True)
    return next((item for item, extent in positions if extent > 1), load.indices[-1])


def _accumulator_choice(number: int) -> str:
    """The name of the choice for this reduction: "accumulators" for the first, then numbered."""
    return f"accumulators_{number + 1}" if number else "accumulators"


@dataclass(frozen=True, slots=True)
class _Output:
    """The loops that write the output, with prologue inlined or copied."""

    body: Expr
    loops: list[Loop]  # outermost first; the last one is over tiles of vectors, if there are any
    attached: list[Loop]  # those of them that stages computed per row are inside of
    parallel: list[Loop]
    cuts: Mapping[str, tuple[Counts | int, ...]]  # by loop

    @property
    def where(self) -> str:
        """The loop in which what belongs to a row is computed; "" if there is none."""
        if len(self.parallel) > 1 and self.parallel == self.attached:
            return "parallel"
        return self.attached[-1].name if self.attached else ""


class _Candidates:
    """What is decided for n candidates."""

    def __init__(
        self,
        facts: KernelFacts,
        arrangement: Arrangement,
        first: tuple[Step, ...],
        streams: Mapping[str, int],
        values: Values,
    ) -> None:
        self.facts, self.arrangement, self.first = facts, arrangement, first
        self.streams, self.values = streams, values
        unroll, lanes = values.integers("unroll"), facts.lanes
        self.along = facts.extents[arrangement.vector] if arrangement.vector else 1
        self.vectors = np.where(unroll * lanes < self.along + lanes, unroll, 1)
        # What is computed for a row lies on the stack in whole vectors.
        inner = bool(arrangement.attached) and arrangement.vector in arrangement.free
        self.masked = inner and facts.masks(facts.kernel.output)
        paddings = values.domains.get("padding", ("",))
        self.variants = [self._output(padding == "inline") for padding in paddings]
        self.variant = values.positions.get("padding", np.zeros(values.count, np.int64))

    def _output(self, inline_prologue: bool) -> _Output:
        """The loops of the candidates with this padding: where they are cut follows from it."""
        kernel, rows, extents = self.facts.kernel, self.arrangement, self.facts.extents
        body = kernel.output.body
        for name in reversed(rows.inlinable if inline_prologue else ()):
            body = inline(body, kernel.stage(name))
        positions = {
            axis.name: borders(body, axis, axis.name == rows.vector) for axis in kernel.output.axes
        }
        cuts: dict[str, tuple[Counts | int, ...]] = {
            axis: at for axis, at in positions.items() if at and axis != rows.vector
        }
        tiles = []
        if rows.vector:
            width = self.vectors * self.facts.lanes
            tiles = [Loop(f"{rows.vector}.o", rows.vector, self.along, width)]
            if at := positions[rows.vector]:
                cuts[tiles[0].name] = tile_cuts(at, width)
        outer = [Loop(axis, axis, extents[axis]) for axis in rows.rows if axis != rows.vector]
        free = [Loop(axis, axis, extents[axis]) for axis in rows.free if axis != rows.vector]
        attached = outer if rows.free and not rows.across else [*outer, *tiles]
        parallel: list[Loop] = []
        few = prod(extents[loop.axis] for loop in outer) < self.facts.threads
        few = few and set(cuts) <= {tile.name for tile in tiles}
        tiles_first = few and attached == [*outer, *tiles] and "chunks" in self.values.domains
        if tiles_first:
            attached, parallel = [*tiles, *outer], tiles
        elif attached and "chunks" in self.values.domains:
            uncut = self._uncut(attached, cuts)
            parallel = parallel_loops(self.values, uncut or attached)
            if not uncut:
                cuts = {tile.name: cuts[tile.name] for tile in tiles if tile.name in cuts}
        inside = rows.across or tiles_first
        order = (*attached, *free) if inside else (*outer, *free, *tiles)
        loops = [replace(loop, cuts=cuts.get(loop.name, ())) for loop in order]
        return _Output(body, loops, attached, parallel, cuts)

    def _uncut(self, loops: list[Loop], cuts: Mapping[str, object]) -> list[Loop]:
        """The outer loops up to the first that is cut, if they are enough for all threads."""
        outer = list(takewhile(lambda loop: loop.name not in cuts, loops))
        rounds = prod(self.facts.extents[loop.axis] for loop in outer if loop.name == loop.axis)
        return outer if outer == loops or rounds >= PARALLEL_ROUNDS else []

    def steps(self) -> list[Step]:
        kernel, rows, values = self.facts.kernel, self.arrangement, self.values
        output, choice, (written,) = kernel.output.name, values.integers, self.variants
        constants: list[str] = []
        steps: list[Step] = []
        if rows.attached or rows.cache:
            inner = dict.fromkeys((*rows.attached, output), rows.vector) | dict(rows.split)
            constants, steps = row_constants(kernel, inner, rows.rows or self._only_row())
        if values.are("padding", "inline").item():
            steps += [Inline(stage) for stage in reversed(rows.inlinable)]
        if rows.cache:
            steps.append(CacheWrite(output, f"{output}.sum"))
        parts = self._parts()
        steps += self._columns(parts)
        steps += [*parts.made, *self._output_steps(written)]
        for loop, at in written.cuts.items():
            cuts = {np.asarray(cut).item() for cut in at} - {0}
            steps.append(Partition(output, loop, 0, 0, tuple(sorted(cuts))))
        steps += parallel_steps(output, written.parallel, choice("chunks").item())
        if where := written.where:
            names = [*parts.names, *constants]
            steps += [ComputeAt(part, output, where, "stack") for part in reversed(names)]
        else:
            steps += self._accumulated(parts)
        steps += [StoreInOutput(stage) for stage in rows.in_output]
        ahead = choice("rows_ahead").item()
        prefetches = [Prefetch(name, ahead * row) for name, row in self.streams.items() if ahead]
        return [*self.first, *steps, *parts.loops, *prefetches]

    def _only_row(self) -> tuple[str, ...]:
        """The axes of one element, where each stage is computed as a whole."""
        axes = self.facts.kernel.output.axes
        return tuple(axis.name for axis in axes if axis.extent == 1)

    def _accumulated(self, parts: RowParts) -> list[Step]:
        """Of reductions that are computed as a whole, the accumulators of each row in registers."""
        steps: list[Step] = []
        for stage, _ in self.arrangement.split:
            rows = [axis.name for axis in self.facts.kernel.stage(stage).axes]
            partial = [name for name in parts.names if name.startswith(f"{stage}.")]
            if rows:
                steps += [ComputeAt(name, stage, rows[-1], "stack") for name in reversed(partial)]
        return steps

    def _columns(self, parts: RowParts) -> list[Step]:
        """Where vectors run across rows, what is kept of these lies in vectors.

        So does what is written of rows that lie one behind the other, before it is turned.
        """
        steps: list[Step] = []
        if not self.arrangement.across:
            return steps
        output = self.facts.kernel.output
        kept = [(name, self.facts.kernel.stage(name)) for name in self.arrangement.attached]
        if self._turned():
            turned = f"{output.name}.turned"
            steps.append(CacheWrite(output.name, turned))
            kept.append((turned, output))
            parts.names.append(turned)
            parts.loops += self._part_loops(turned, output)
        for name, stage in kept:
            axes = [axis.name for axis in stage.axes]
            if self.arrangement.vector in axes[:-1]:
                last = axes.index(self.arrangement.vector)
                order = (*(i for i in range(len(axes)) if i != last), last)
                steps.append(PackStage(name, (), order))
        return steps

    def _turned(self) -> str:
        """The axis of rows that are written as vectors, and computed side by side; else ""."""
        axes = self.facts.kernel.output.axes
        long = [axis.name for axis in axes if axis.extent > 1]
        rows = self.arrangement
        return long[-1] if rows.across and rows.vector in long[:-1] else ""

    def _output_steps(self, written: _Output) -> list[Step]:
        """The steps that make the output's loops."""
        output, lanes, axis = (
            self.facts.kernel.output.name,
            self.facts.lanes,
            self.arrangement.vector,
        )
        if not axis:
            return []
        inner = (f"{axis}.i.o", f"{axis}.i.i")
        if row := self._turned():
            outer = [loop.name for loop in written.loops if loop.name != row]
            return [
                Tile(output, axis, self.vectors.item() * lanes),
                Tile(output, f"{axis}.i", lanes),
                Reorder(output, (*outer, *inner, row)),
                *(Unroll(output, loop) for loop in inner),
                Vectorize(output, row),
            ]
        return [
            Tile(output, axis, self.vectors.item() * lanes),
            Tile(output, f"{axis}.i", lanes, "pad" if self.masked else "peel"),
            Reorder(output, (*(loop.name for loop in written.loops), *inner)),
            Unroll(output, inner[0]),
            Vectorize(output, inner[1]),
        ]

    def _parts(self) -> RowParts:
        """The parts computed per row, the steps that split reductions, the parts' own loops."""
        kernel, rows, lanes = self.facts.kernel, self.arrangement, self.facts.lanes
        output, choice = kernel.output, self.values.integers
        axis_of = dict(rows.split)
        held = {
            name: choice(_accumulator_choice(number)).item()
            for number, (name, _) in enumerate(rows.split)
        }
        parts = RowParts()
        stages = [(name, kernel.stage(name)) for name in rows.attached]
        if rows.cache:
            stages.append((f"{output.name}.sum", output))
        for name, stage in stages:
            axis = axis_of.get(stage.name, "")
            extent = next((a.extent for a in stage.reduce_axes if a.name == axis), 0)
            names = tuple(a.name for a in stage.axes)
            masked = self.facts.masks(stage)
            least = SHORT_ROW if masked else lanes
            if axis and extent >= least and (rows.free or not rows.vector):
                others = tuple(a.name for a in stage.reduce_axes if a.name != axis)
                count, side = held[stage.name], rows_side_by_side(stage, axis, lanes)
                several = None if side is None or count == 1 else (side.name, count)
                reduction = RowReduction(name, axis, extent, names, others, several)
                widths = split_widths(lanes, 1 if side else count)
                split_reduction(parts, reduction, lanes, widths, masked)
                continue
            parts.names.append(name)
            if rows.vector in names:
                parts.loops += self._part_loops(name, stage)
        return parts

    def _part_loops(self, name: str, stage: Stage) -> list[Step]:
        """A part's own loops: vectors along its rows, or one accumulator for each of them."""
        vector, lanes = self.arrangement.vector, self.facts.lanes
        unroll = self.values.integers("unroll_parts", 1).item()
        reduce = [axis.name for axis in stage.reduce_axes]
        if self.arrangement.across and reduce:
            unroll = self.vectors.item()
            if is_expensive(stage.body):
                unroll = min(unroll, 2)  # registers are scarce in polynomials
        elif reduce:
            unroll = 1
        width = next(axis.extent for axis in stage.axes if axis.name == vector)
        factor = lanes * unroll if width >= lanes * unroll else lanes
        outer = [axis.name for axis in stage.axes if axis.name != vector]
        tile = f"{vector}.i"
        masked = not self.arrangement.across and width % factor > 0 and self.facts.masks(stage)
        steps: list[Step] = [
            Tile(name, vector, factor),
            Tile(name, tile, lanes, "pad" if masked else "peel"),
            Reorder(name, (*outer, f"{vector}.o", *reduce, f"{tile}.o", f"{tile}.i")),
            Unroll(name, f"{tile}.o"),
            Vectorize(name, f"{tile}.i"),
        ]
        if masked and width > factor:
            steps.append(Partition(name, f"{vector}.o", 0, 0, (width // factor,)))
        if self.arrangement.across:
            axes = [axis for axis in stage.reduce_axes if 1 < axis.extent < short_row(lanes)]
            steps += [Unroll(name, axis.name) for axis in axes]
        return steps

    def shape(self) -> NestShape:
        values = self.values
        parallel = [written.parallel for written in self.variants]
        shared = pieces_and_grains(values, parallel, self.variant, self.facts.threads)
        names = [_accumulator_choice(number) for number in range(len(self.arrangement.split))]
        held = [values.integers(name) for name in names]
        loops = [written.loops for written in self.variants]
        accumulators = np.minimum.reduce(held) if held else None
        return row_shape(
            self.facts,
            values,
            loops,
            self.variant,
            self.vectors,
            shared,
            accumulators,
            partial=np.add.reduce(held) if held else None,
        )
