"""Sketch: a recurrence whose states stay in the caches from step to step.

for direction, block of the batch: (parallel)
    for step:
        previous = the states after the step before
        for tile of units, tile of rows:
            product = sum over k of previous[k] * weights[k]         register tile of all gates
            cell, hidden; result = what is shown, and the states
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from compiler.errors import ScheduleError
from compiler.expr.nodes import Binary, Load, index
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.recurrence import recurrence_of
from compiler.kernels.stage import Stage
from compiler.schedule.nest_shape import Loop, Nest, NestShape
from compiler.schedule.sketches.row_shape import KernelFacts
from compiler.schedule.sketches.shared_loops import (
    chunk_choices,
    parallel_steps,
    pieces_and_grains,
)
from compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from compiler.schedule.steps.compute_at import ComputeAt
from compiler.schedule.steps.pack_layout import PackLayout
from compiler.schedule.steps.reorder import Reorder
from compiler.schedule.steps.step import Step
from compiler.schedule.steps.tile import Tile
from compiler.schedule.steps.unroll import Unroll
from compiler.schedule.steps.vectorize import Vectorize
from compiler.schedule.vectors import vector_lanes
from compiler.target import Target

UNROLLS = (1, 2, 4, 8)
VECTORS = (1, 2, 3, 4, 6, 8)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
STACK_BYTES = 256 * 1024  # what a thread keeps of a step's states and gates, at most
TILE_CYCLES = 24  # to begin and store a tile
LATENCY = 4  # cycles until a multiply-add can be added to
SHARED_WORK = 2**20  # multiply-adds of a thread below which a second one costs more than it saves


@dataclass(frozen=True, slots=True)
class _Phase:
    """A product of states, and what is made of its tiles: the stages `inside`, then `consumer`."""

    product: Stage
    inside: tuple[Stage, ...]
    consumer: Stage

    @property
    def gates(self) -> int:
        return math.prod(axis.extent for axis in self.product.axes[3:-1])


@dataclass(frozen=True, slots=True)
class _Recurrent:
    """What all candidates have in common; axes are direction, step, batch and unit."""

    facts: KernelFacts
    copies: tuple[Stage, ...]
    phases: tuple[_Phase, ...]

    @property
    def output(self) -> Stage:
        return self.facts.kernel.output

    @property
    def axes(self) -> tuple[str, str, str, str]:
        """The names of the axes direction, step, batch, unit."""
        direction, step, batch, unit = (axis.name for axis in self.output.axes[1:])
        return direction, step, batch, unit

    @property
    def extents(self) -> tuple[int, ...]:
        return self.output.shape[1:]

    @property
    def gates(self) -> int:
        """The most gates of a product."""
        return max(phase.gates for phase in self.phases)

    @property
    def whole(self) -> bool:
        """Vectors divide the units."""
        return self.extents[-1] % self.facts.lanes == 0

    @property
    def most(self) -> int:
        """Vectors of units."""
        return -(-self.extents[-1] // self.facts.lanes)

    @property
    def row_bytes(self) -> int:
        """What is kept of a step for a row of the batch."""
        gates = sum(math.prod(phase.consumer.shape[3:]) for phase in self.phases[:-1])
        states = sum(stage.shape[0] for stage in self.copies) * self.extents[-1]
        return (states + gates) * self.output.dtype.bytes

    @property
    def weight_bytes(self) -> int:
        """Of the weights of a direction."""
        gates = sum(phase.gates for phase in self.phases)
        return gates * self.extents[-1] ** 2 * self.output.dtype.bytes


def recurrent_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel's output is read back; `ScheduleError` for another recurrence."""
    if recurrence_of(kernel) is None:
        return []
    context = _recurrent(KernelFacts(kernel, vector_lanes(kernel, target), threads, target))
    tiles, blocks = _tiles(context), _blocks(context)
    block = _preferred_block(context, blocks)
    choices: list[tuple[Choice, ChoiceValue]] = [
        (Choice("batch", blocks), block),
        (Choice("product", tiles), min(tiles, key=lambda tile: _cycles(context, block, tile))),
        (Choice("unroll", UNROLLS), 4),
    ]
    directions, _, batch, _ = context.extents
    if directions * batch > 1:
        choices += chunk_choices(kernel, threads)
    return [Sketch.planned("recurrent", choices, lambda values: _Plan(context, values))]


def _recurrent(facts: KernelFacts) -> _Recurrent:
    """The kernel as a recurrent layer, as the operator's expression gives it."""
    kernel = facts.kernel
    recurrence = recurrence_of(kernel)
    places = [n for n, stage in enumerate(kernel.stages) if stage.reduce_axes]
    axes, stages = kernel.output.axes, kernel.stages
    if (
        recurrence is None
        or len(recurrence.stages) < len(stages)
        or not places
        or len(axes) != 5
        or axes[2].name != recurrence.axis
    ):
        raise ScheduleError(f"{kernel.name} is no recurrent layer")
    phases = []
    for first, last in zip(places, [*places[1:], len(stages)], strict=True):
        product, *inside = stages[first:last]
        if not inside or not _is_product(product, kernel):
            raise ScheduleError(f"{product.name} is no product that a later stage reads")
        phases.append(_Phase(product, tuple(inside[:-1]), inside[-1]))
    return _Recurrent(facts, stages[: places[0]], tuple(phases))


def _is_product(stage: Stage, kernel: FusedKernel) -> bool:
    """A sum over one axis, of [direction, step, batch, gates.., unit]."""
    axes = stage.axes
    outer, unit = kernel.output.axes[1:4], kernel.output.axes[4]
    fits = len(axes) >= 4 and axes[:3] == outer and axes[-1] == unit
    return fits and stage.combiner == "sum" and len(stage.reduce_axes) == 1


# --- domains ------------------------------------------------------------------------------------


def _tiles(context: _Recurrent) -> tuple[tuple[int, int], ...]:
    """(rows, vectors) pairs of a register tile; of a step, the fewer operands stay in registers."""
    registers = context.facts.target.vector_registers
    tiles = []
    for vectors in VECTORS:
        if vectors > context.most:
            continue
        columns = vectors * context.gates
        for rows in range(1, context.extents[2] + 1):
            if rows * columns + min(rows, columns) + 1 > registers:
                break
            tiles.append((rows, vectors))
    return tuple(tiles) or ((1, 1),)


def _blocks(context: _Recurrent) -> tuple[int, ...]:
    """Numbers of rows that share the batch evenly, and whose states fit the stack."""
    batch = context.extents[2]
    even = {-(-batch // -(-batch // size)) for size in (*BATCHES, batch)}
    fitting = {size for size in even if size * context.row_bytes <= STACK_BYTES}
    return tuple(sorted(fitting or {1}))


def _preferred_block(context: _Recurrent, blocks: tuple[int, ...]) -> int:
    """All rows together; a part for each thread where each has enough to do with the weights."""
    (directions, steps, batch, units), facts = context.extents, context.facts
    parts = -(-facts.threads // directions)
    share = -(-batch // parts)
    gates = sum(phase.gates for phase in context.phases)
    enough = 2 if context.weight_bytes <= facts.target.l2_bytes else 4
    if share < enough or share * steps * gates * units**2 < SHARED_WORK:
        share = batch
    return max((size for size in blocks if size <= share), default=blocks[0])


def _cycles(context: _Recurrent, block: int, tile: tuple[int, int]) -> float:
    """Of a step's products of a block: two multiply-adds and one vector of weights a cycle."""
    rows, vectors = tile

    def product(height: int, width: int) -> float:
        columns = width * context.gates
        step = max(height * columns / 2, columns, LATENCY)
        return context.extents[-1] * step + TILE_CYCLES if height and width else 0.0

    whole, rest = divmod(context.most, vectors)
    if context.whole and rest:
        whole, rest = whole + 1, 0
    total = 0.0
    for number, width in ((whole, vectors), (1, rest)):
        tall = block // rows * product(rows, width) + product(block % rows, width)
        total += number * tall
    return total


# --- plan ---------------------------------------------------------------------------------------


class _Plan:
    """What is decided for n candidates; the shape is that of the last product."""

    def __init__(self, context: _Recurrent, values: Values) -> None:
        self.context, self.values = context, values
        self.block, self.unroll = values.integers("batch"), values.integers("unroll")
        self.rows, self.vectors = values.pairs("product")

    def steps(self) -> list[Step]:
        context = self.context
        output = context.output.name
        direction, step, batch, _ = context.axes
        outer = (direction, f"{batch}.o")
        *before, last = context.phases
        steps = [*self._packed(), Tile(output, batch, self.block.item(), "shift")]
        steps += self._tiles(last.consumer, (*outer, step), f"{batch}.i")
        if "chunks" in self.values.domains:
            loops = [Loop(name, name, 1) for name in outer]
            chunks = self.values.integers("chunks").item()
            steps += parallel_steps(output, loops, chunks)
        for stage in context.copies:
            steps += [ComputeAt(stage.name, output, step), *self._copied(stage)]
        for phase in before:
            name = phase.consumer.name
            steps += [
                ComputeAt(name, output, step),
                *self._tiles(phase.consumer, (direction, step), batch),
            ]
        for phase in context.phases:
            loop = f"{batch}.i.o" if phase is last else f"{batch}.o"
            steps += self._phase(phase, loop)
        return steps

    def _packed(self) -> list[Step]:
        """Weights [direction, k, gates.., unit] in the order in which tiles read them."""
        context = self.context
        width = self.vectors.item() * context.facts.lanes
        width = width if context.extents[-1] % width == 0 else context.facts.lanes
        steps: list[Step] = []
        for phase in context.phases:
            load = _weights(phase.product)
            if load is None or not _is_constant(context.facts.kernel, load.buffer):
                continue
            last = len(load.indices) - 1
            order = (0, last, *range(1, last), last + 1)
            steps.append(PackLayout(load.buffer, ((last, width),), order))
        return steps

    def _tiles(self, stage: Stage, outer: tuple[str, ...], batch: str) -> list[Step]:
        """Tiles of units, each for tiles of the loop `batch`, all else unrolled."""
        _, _, _, unit = self.context.axes
        lanes, vectors = self.context.facts.lanes, self.vectors.item()
        name = stage.name
        if self.context.whole:
            axes = [f"{unit}.o.o", f"{unit}.o.i", f"{unit}.i"]
            tiles = [Tile(name, unit, lanes), Tile(name, f"{unit}.o", vectors, "shift")]
        else:
            axes = [f"{unit}.o", f"{unit}.i.o", f"{unit}.i.i"]
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

    def _copied(self, stage: Stage) -> list[Step]:
        """The states before, row after row."""
        direction, step, batch, unit = self.context.axes
        others = [axis.name for axis in stage.axes if axis.name not in self.context.axes]
        inside = (f"{unit}.o", f"{unit}.i")
        return [
            Tile(stage.name, unit, self.context.facts.lanes, "mask"),
            Reorder(stage.name, (*others, direction, step, batch, *inside)),
            *(Unroll(stage.name, axis) for axis in others),
            Vectorize(stage.name, inside[1]),
        ]

    def _phase(self, phase: _Phase, loop: str) -> list[Step]:
        """A register tile of the product, and what is made of it there."""
        direction, step, batch, unit = self.context.axes
        lanes, name = self.context.facts.lanes, phase.product.name
        (reduced,) = (axis.name for axis in phase.product.reduce_axes)
        columns = [*(axis.name for axis in phase.product.axes[3:-1]), f"{unit}.o"]
        few = self.rows.item() < phase.gates * self.vectors.item()
        point = [*columns, batch] if few else [batch, *columns]
        steps: list[Step] = [
            ComputeAt(name, phase.consumer.name, loop, "register"),
            Tile(name, reduced, self.unroll.item()),
            Tile(name, unit, lanes),
            Reorder(name, (direction, step, f"{reduced}.o", f"{reduced}.i", *point, f"{unit}.i")),
            Unroll(name, f"{reduced}.i", False),
            *(Unroll(name, axis) for axis in point),
            Vectorize(name, f"{unit}.i"),
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
        rows, unroll = np.minimum(self.rows, self.block), np.minimum(self.unroll, units)
        vectors = np.minimum(self.vectors, context.most)
        columns = np.where(units < lanes, units, vectors * lanes)
        nest = Nest(list(facts.extents), count)
        for axis in product.axes[3:-1]:
            nest.inside[nest.numbers[axis.name]] = axis.extent
        straight = (unroll > 1) & (unroll + 1 == units)  # no loop: what is left over is one more
        terms = np.where(straight, units, unroll)
        for name, size in ((batch, rows), (unit, columns), (reduced, terms)):
            nest.inside[nest.numbers[name]] = size
        outer = [
            Loop(direction, direction, directions),
            Loop(f"{batch}.o", batch, many, self.block, True),
        ]
        for loop in (
            Loop(f"{reduced}.o", reduced, units, unroll),
            Loop(f"{batch}.i.o", batch, self.block, rows),
            Loop(f"{unit}.o", unit, units, columns, context.whole),
            Loop(step, step, steps),
            *reversed(outer),
        ):
            nest.loop(loop)
        points = directions * steps * np.ceil(many / self.block) * self.block
        even = context.whole
        computed = np.where(even, np.ceil(context.most / vectors) * vectors, context.most)
        held = (rows * vectors * gates).astype(np.float64)
        pieces, grains = pieces_and_grains(
            values, [outer], np.zeros(count, np.int64), facts.threads
        )
        return NestShape(
            operands=facts.operands,
            nest=nest,
            operations=(points * computed * gates * units).astype(np.float64),
            body=held * terms,
            accumulators=held,
            registers=held + np.minimum(rows, vectors * gates) + 1,
            loads=(rows + vectors * gates).astype(np.float64),
            step=held,
            cycles=np.full(count, facts.work / lanes / 2),
            flops=np.full(count, 2.0 * facts.work),
            full=np.floor(self.block / rows) * rows / self.block,
            lanes=np.full(count, units / (context.most * lanes)),
            aliased=np.ones(count),
            temporary=(2.0 * context.row_bytes * self.block).astype(np.float64),
            pieces=pieces,
            grains=grains,
        )


def _weights(product: Stage) -> Load | None:
    """The factor that has a vector of units, None where there is none."""
    body, unit = product.body, index(product.axes[-1].name)
    factors = (body.left, body.right) if isinstance(body, Binary) else ()
    for factor in factors:
        if isinstance(factor, Load) and factor.indices[-1] == unit:
            return factor
    return None


def _is_constant(kernel: FusedKernel, name: str) -> bool:
    return any(buffer.name == name and buffer.constant for buffer in kernel.inputs)
