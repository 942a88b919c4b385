"""Sketch: a recurrence whose states stay in the caches from step to step.

for direction, block of the batch: (parallel)
    for step:
        previous = the states after the step before
        for tile of units: (or this one) for tile of rows:
            product = sum over k of previous[k] * weights[k]         register tile of all gates
            cell, hidden; result = what is shown, and the states
"""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.recurrence import recurrence_of
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.schedule.nest_shape import Loop, Nest, NestShape
from tunefarm.compiler.schedule.sketches.parallel_choices import (
    chunk_choices,
    parallel_steps,
    pieces_and_grains,
)
from tunefarm.compiler.schedule.sketches.recurrent_domains import (
    Phase,
    Recurrent,
    preferred_block,
    preferred_share,
    preferred_tile,
    recurrent_layer,
    recurrent_tiles,
    row_blocks,
    weights_of,
)
from tunefarm.compiler.schedule.sketches.row_shape import KernelFacts
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.loop_kinds import DotProduct, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite
from tunefarm.compiler.schedule.steps.packing import PackLayout
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES, ComputeAt
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Reorder, Tile
from tunefarm.compiler.schedule.vectors import UNROLLS, vector_lanes
from tunefarm.compiler.target import Target

SHARED = ("rows", "units", "both")


def recurrent_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel's output is read back; `ScheduleError` for another recurrence."""
    if recurrence_of(kernel) is None:
        return []
    context = recurrent_layer(KernelFacts(kernel, vector_lanes(kernel, target), threads, target))
    tiles, blocks = recurrent_tiles(context), row_blocks(context)
    block = preferred_block(context, blocks, tiles)
    tile = preferred_tile(context, block, tiles)
    choices: list[tuple[Choice, ChoiceValue]] = [
        (Choice("batch", blocks), block),
        (Choice("product", tiles), tile),
        (Choice("unroll", UNROLLS), 2 if context.phases[-1].terms > 1 else 4),
    ]
    chunks = chunk_choices(kernel, threads)
    if chunks:
        choices += [(Choice("shared", SHARED), preferred_share(context, block, tile)), *chunks]
    return [Sketch.planned("recurrent", choices, lambda values: _Candidates(context, values))]


# --- plan ---------------------------------------------------------------------------------------


class _Candidates:
    """What is decided for n candidates; the shape is that of the last product."""

    def __init__(self, context: Recurrent, values: Values) -> None:
        self.context, self.values = context, values
        self.block, self.unroll = values.integers("batch"), values.integers("unroll")
        self.rows, self.vectors = values.pairs("product")
        both = values.are("shared", "both")
        self.in_both = both & context.whole  # a tile that is peeled is no part of a fused loop
        self.in_units = values.are("shared", "units") | both & (not context.whole)

    def steps(self) -> list[Step]:
        context = self.context
        output = context.output.name
        direction, step, batch, _ = context.axes
        outer: tuple[str, ...] = (direction,)
        *before, last = context.phases
        steps, rows = self._packed(), batch
        if not context.together:
            outer, rows = (direction, f"{batch}.o"), f"{batch}.i"
            steps.append(Tile(output, batch, self.block.item(), "shift"))
        units, both = bool(self.in_units.all()), bool(self.in_both.all())
        steps += self._tiles(last.consumer, (step, *outer) if both else (*outer, step), rows)
        tiles = self._vectors()[0]
        if "chunks" in self.values.domains:
            shared = (*outer, tiles) if both else (tiles,) if units else outer
            steps += self._shared(output, shared)
        large = context.together and self.block.item() * context.row_bytes > STACK_BYTES
        scope = "workspace" if units or both or large else "stack"
        for stage in context.copies:
            steps += self._copied(stage, scope)
        for phase in before:
            name = phase.consumer.name
            steps += [
                ComputeAt(name, output, step, scope),
                *self._tiles(
                    phase.consumer, (step, direction) if both else (direction, step), batch
                ),
            ]
            if units or both:
                steps += self._shared(name, (direction, tiles) if both else (tiles,))
        for phase in context.phases:
            loop = f"{rows}.o" if phase is last else f"{batch}.o"
            steps += self._phase(phase, loop)
        return steps

    def _shared(self, stage: str, names: tuple[str, ...]) -> list[Step]:
        """Run these loops of a stage in parallel."""
        loops = [Loop(name, name, 1) for name in names]
        return parallel_steps(stage, loops, self.values.integers("chunks").item())

    def _packed(self) -> list[Step]:
        """Weights [direction, k, gates.., unit] in the order in which tiles read them."""
        context = self.context
        width = self.vectors.item() * context.facts.lanes
        width = width if context.extents[-1] % width == 0 else context.facts.lanes
        steps: list[Step] = []
        for phase in context.phases:
            load = weights_of(phase.product)
            if load is None or not _is_constant(context.facts.kernel, load.buffer):
                continue
            last = len(load.indices) - 1
            splits: tuple[tuple[int, int], ...] = ((last, width),)
            order: tuple[int, ...] = (0, last, *range(1, last), last + 1)
            if phase.terms > 1:  # the terms of a dot product lie side by side
                splits = ((1, phase.terms), *splits)
                order = (0, last + 1, 1, *range(3, last + 1), last + 2, 2)
            steps.append(PackLayout(load.buffer, splits, order))
        return steps

    def _tiles(self, stage: Stage, outer: tuple[str, ...], batch: str) -> list[Step]:
        """Tiles of units, each for tiles of the loop `batch`, all else unrolled."""
        _, _, _, unit = self.context.axes
        lanes, vectors = self.context.facts.lanes, self.vectors.item()
        name, axes = stage.name, self._vectors()
        if self.context.whole:
            tiles = [Tile(name, unit, lanes), Tile(name, f"{unit}.o", vectors, "shift")]
        else:
            tiles = [Tile(name, unit, lanes * vectors), Tile(name, f"{unit}.i", lanes, "mask")]
        others = [axis.name for axis in stage.axes if axis.name not in self.context.axes]
        unrolled = [*others, f"{batch}.i", axes[1]]
        return [
            Tile(name, batch, self.rows.item()),
            *tiles,
            Reorder(name, (*outer, axes[0], f"{batch}.o", *unrolled, axes[2])),
            *(Unroll(name, axis) for axis in unrolled),
            Vectorize(name, axes[2]),
        ]

    def _vectors(self) -> list[str]:
        """The loops over units: tiles, their vectors, and the units of a vector."""
        unit = self.context.axes[3]
        if self.context.whole:
            return [f"{unit}.o.o", f"{unit}.o.i", f"{unit}.i"]
        return [f"{unit}.o", f"{unit}.i.o", f"{unit}.i.i"]

    def _copied(self, stage: Stage, scope: str) -> list[Step]:
        """The states before, row after row; ranges of a step, in as many parts as there are."""
        direction, step, batch, unit = self.context.axes
        at_step = ComputeAt(stage.name, self.context.output.name, step, scope)
        if stage.axes[-1].name != unit:
            return self._ranged(stage, at_step)
        others = [axis.name for axis in stage.axes if axis.name not in self.context.axes]
        inside = (f"{unit}.o", f"{unit}.i")
        return [
            at_step,
            Tile(stage.name, unit, self.context.facts.lanes, "mask"),
            Reorder(stage.name, (*others, direction, step, batch, *inside)),
            *(Unroll(stage.name, axis) for axis in others),
            Vectorize(stage.name, inside[1]),
        ]

    def _ranged(self, stage: Stage, at_step: Step) -> list[Step]:
        """A minimum or maximum of a step; of its parts in registers, which are then copied."""
        direction, step, *parts = (axis.name for axis in stage.axes)
        lanes, name = self.context.facts.lanes, stage.name
        if not parts or stage.shape[-1] == 1:
            return [at_step]
        (part,) = parts
        reduced = [axis.name for axis in stage.reduce_axes]
        if stage.shape[-1] % lanes:
            return [
                at_step,
                Tile(name, part, lanes, "mask"),
                Reorder(name, (direction, step, f"{part}.o", *reduced, f"{part}.i")),
                Vectorize(name, f"{part}.i"),
            ]
        kept = f"{name}.kept"
        return [
            CacheWrite(name, kept),
            at_step,
            ComputeAt(kept, name, step, "register"),
            Tile(name, part, lanes),
            Tile(kept, part, lanes),
            Reorder(kept, (direction, step, *reduced, f"{part}.o", f"{part}.i")),
            *(Unroll(item, f"{part}.o") for item in (name, kept)),
            *(Vectorize(item, f"{part}.i") for item in (name, kept)),
        ]

    def _phase(self, phase: Phase, loop: str) -> list[Step]:
        """A register tile of the product, and what is made of it there."""
        direction, step, batch, unit = self.context.axes
        lanes, name = self.context.facts.lanes, phase.product.name
        (reduced,) = (axis.name for axis in phase.product.reduce_axes)
        columns = [*(axis.name for axis in phase.product.axes[3:-1]), f"{unit}.o"]
        few = self.rows.item() < phase.gates * self.vectors.item()
        point = [*columns, batch] if few else [batch, *columns]
        inner, dot, size = f"{reduced}.i", [], self.unroll.item() * phase.terms
        steps: list[Step] = [
            ComputeAt(name, phase.consumer.name, loop, "register"),
            Tile(name, reduced, size),
        ]
        if phase.terms > 1:
            steps.append(Tile(name, inner, phase.terms))
            inner, dot = f"{reduced}.i.o", [f"{reduced}.i.i"]
        steps += [
            Tile(name, unit, lanes),
            Reorder(name, (direction, step, f"{reduced}.o", inner, *point, f"{unit}.i", *dot)),
            Unroll(name, inner, False),
            *(Unroll(name, axis) for axis in point),
            Vectorize(name, f"{unit}.i"),
            *(DotProduct(name, axis) for axis in dot),
        ]
        for stage in phase.inside:
            steps += [
                ComputeAt(stage.name, phase.consumer.name, loop, "register"),
                Tile(stage.name, unit, lanes),
                Unroll(stage.name, batch),
                Unroll(stage.name, f"{unit}.o"),
                Vectorize(stage.name, f"{unit}.i"),
            ]
        return steps

    def shape(self) -> NestShape:
        context, values, facts = self.context, self.values, self.context.facts
        direction, step, batch, unit = context.axes
        directions, steps, many, units = context.extents
        product, lanes, count = context.phases[-1].product, facts.lanes, values.count
        (reduced,) = (axis.name for axis in product.reduce_axes)
        gates = context.phases[-1].gates
        terms = context.phases[-1].terms
        sums = -(-units // terms)
        rows, unroll = np.minimum(self.rows, self.block), np.minimum(self.unroll, sums)
        vectors = np.minimum(self.vectors, context.most)
        columns = np.where(units < lanes, units, vectors * lanes)
        nest = Nest(list(facts.extents), count)
        for axis in product.axes[3:-1]:
            nest.inside[nest.numbers[axis.name]] = axis.extent
        straight = (unroll > 1) & (unroll + 1 == sums)  # no loop: what is left over is one more
        steps_inside = np.where(straight, sums, unroll)
        for name, size in ((batch, rows), (unit, columns), (reduced, steps_inside)):
            nest.inside[nest.numbers[name]] = size
        outer = [
            Loop(direction, direction, directions),
            Loop(f"{batch}.o", batch, many, self.block, True),
        ]
        tiles = Loop(f"{unit}.o", unit, units, columns, context.whole)
        for loop in (
            Loop(f"{reduced}.o", reduced, sums, unroll),
            Loop(f"{batch}.i.o", batch, self.block, rows),
            tiles,
            Loop(step, step, steps),
            *reversed(outer),
        ):
            nest.loop(loop)
        points = directions * steps * np.ceil(many / self.block) * self.block
        even = context.whole
        computed = np.where(even, np.ceil(context.most / vectors) * vectors, context.most)
        held = (rows * vectors * gates).astype(np.float64)
        pieces, grains = pieces_and_grains(
            values,
            [outer, [tiles], [*outer, tiles]],
            self.in_units + 2 * self.in_both,
            facts.threads,
        )
        return NestShape(
            operands=tuple(item.stepped(nest.numbers[reduced], terms) for item in facts.operands),
            nest=nest,
            operations=(points * computed * gates * sums).astype(np.float64),
            body=held * steps_inside,
            accumulators=held,
            registers=held + np.minimum(rows, vectors * gates) + 1,
            loads=(rows + vectors * gates).astype(np.float64),
            step=held,
            cycles=np.full(count, facts.work / lanes / terms / facts.target.machine.vectors.fma),
            flops=np.full(count, 2.0 * facts.work),
            full=np.floor(self.block / rows) * rows / self.block,
            lanes=np.full(count, units / (context.most * lanes)),
            aliased=np.ones(count),
            temporary=(2.0 * context.row_bytes * self.block).astype(np.float64),
            pieces=pieces,
            grains=grains,
        )


def _is_constant(kernel: FusedKernel, name: str) -> bool:
    return any(buffer.name == name and buffer.constant for buffer in kernel.inputs)
