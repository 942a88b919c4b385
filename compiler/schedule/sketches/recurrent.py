"""Sketch: a recurrence whose states stay in the caches from step to step.

for direction, block of the batch: (parallel)
    for step:
        previous = the states after the step before
        for tile of units: (or this one) for tile of rows:
            product = sum over k of previous[k] * weights[k]         register tile of all gates
            cell, hidden; result = what is shown, and the states

Weights that are more than the second-level cache holds are read from their end in every second
step, since what was read last is still there. Of so many rows that the registers do not hold the
sums of all gates, a tile sums up some of the gates at a time: then all rows share what is read.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import Binary, Cast, Load, index
from tunefarm.compiler.kernels.accumulate import narrow_factors
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.recurrence import recurrence_of
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.schedule.nest_shape import REST, TILE_CYCLES, Loop, Nest, NestShape
from tunefarm.compiler.schedule.sketches.even_shares import even_part, waiting
from tunefarm.compiler.schedule.sketches.parallel_choices import (
    MEETINGS,
    chunk_choices,
    parallel_steps,
    pieces_and_grains,
)
from tunefarm.compiler.schedule.sketches.row_shape import KernelFacts
from tunefarm.compiler.schedule.sketches.tile_dots import dot_terms
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.loop_kinds import Alternate, DotProduct, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite
from tunefarm.compiler.schedule.steps.packing import PackLayout
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES, ComputeAt
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Reorder, Tile
from tunefarm.compiler.schedule.vectors import UNROLLS, loads_a_cycle, vector_lanes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

# What a recurrent layer's schedules are made from: its parts, their domains, and a default.


Pair: TypeAlias = tuple[int, int]
"""Rows and vectors of a register tile, the vectors of each gate."""
VECTORS = (1, 2, 3, 4, 6, 8)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
BATCH_POSITION = 3  # of the output's axes
SHARED_WORK = 2**20  # multiply-adds of a thread below which a second one costs more than it saves
# Cycles, as they were measured:
CLEARLY_FASTER = 0.8  # of the estimate of another tile; 0.85 and 0.92 were up to 1.27 of the time
SIGNED_SHARE = 1.25  # cycles of a product of signed bytes that no instruction sums: 5 of 4 a cycle
L1_SHARE = 0.75  # of the first-level cache, that weights stay in
L2_SHARE = 0.75  # likewise of the second: read from beyond, they wait for few rows
HELD_SHARE = 0.9  # of the second: up to it the order of tiles does not matter (a Skylake-SP, 1 MiB)
FEW_REGISTERS = 16  # more were not measured with groups of gates (a Zen 3, whose own are 16)


@frozen
class Phase:
    """A product of states, and what is made of its tiles: the stages `inside`, then `consumer`."""

    product: Stage
    inside: tuple[Stage, ...]
    consumer: Stage

    @property
    def gates(self) -> int:
        """How many gates a unit has."""
        return math.prod(axis.extent for axis in self.product.axes[3:-1])

    @property
    def terms(self) -> int:
        """Products that one step of the sum adds: more than one in dot products of integers."""
        return dot_terms(self.product)


@frozen
class Recurrent:
    """What all candidates have in common; axes are direction, step, batch and unit."""

    facts: KernelFacts
    copies: tuple[Stage, ...]
    phases: tuple[Phase, ...]
    together: bool
    """A step's rows depend on one another, so that they are walked together."""

    @property
    def output(self) -> Stage:
        """The stage that is written."""
        return self.facts.kernel.output

    @property
    def axes(self) -> tuple[str, str, str, str]:
        """The names of the axes direction, step, batch, unit."""
        direction, step, batch, unit = (axis.name for axis in self.output.axes[1:])
        return direction, step, batch, unit

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents behind the steps."""
        return self.output.shape[1:]

    @property
    def gates(self) -> int:
        """The most gates of a product."""
        return max(phase.gates for phase in self.phases)

    def at_once(self, tile: Pair) -> int:
        """How many gates of a unit a tile's registers hold sums of; 0 where none fits."""
        registers = self.facts.target.vector_registers
        rows, vectors = tile
        for gates in range(self.gates, 0, -1):
            columns = vectors * gates
            fits = rows * columns + min(rows, columns) + 1 <= registers
            if fits and all(phase.gates % min(gates, phase.gates) == 0 for phase in self.phases):
                return gates
        return 0

    @property
    def groups_gates(self) -> bool:
        """Tiles may sum up some of the gates at a time: those of floats that have an axis."""
        axes = {len(phase.product.axes) - 4 for phase in self.phases}
        return self.phases[-1].terms == 1 and self.gates > 1 and axes <= {0, 1}

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
        copies = [stage for stage in self.copies if stage.axes[-1] == self.output.axes[-1]]
        states = sum(math.prod(stage.shape[:-4]) for stage in copies) * self.extents[-1]
        return (states + gates) * self.output.dtype.bytes

    @property
    def weight_bytes(self) -> int:
        """Of the weights of a direction."""
        gates = sum(phase.gates for phase in self.phases)
        return gates * self.extents[-1] ** 2 * self.weight_dtype.bytes

    @property
    def is_far(self) -> bool:
        """The second-level cache does not hold the weights from one step to the next."""
        return self.weight_bytes > HELD_SHARE * self.facts.target.l2_bytes

    @property
    def stride(self) -> float:
        """Bytes of weights that a turn of a sum's loop may read: few from the second-level cache,
        so that they are read ahead."""
        target = self.facts.target
        far = L1_SHARE * target.l1_bytes < self.weight_bytes <= target.l2_bytes
        return (far and target.machine.l2.stride) or math.inf

    @property
    def turns_bits(self) -> bool:
        """Products are of signed bytes, which this target turns by their sign to multiply them."""
        factors = narrow_factors(self.phases[-1].product.body)
        if factors is None or {factor.dtype for factor in factors} != {DType.I8}:
            return False
        known = self.facts.target.dot_products(DType.I8, DType.I8, DType.I32)
        return all(instruction.matrix for instruction in known)

    @property
    def widens(self) -> bool:
        """Weights are stored in a narrower type than they are multiplied in."""
        phase = self.phases[-1]
        factors = narrow_factors(phase.product.body) if phase.terms > 1 else None
        multiplied = phase.product.body.dtype if factors is None else factors[0].dtype
        return self.weight_dtype.bytes < multiplied.bytes

    @property
    def weight_dtype(self) -> DType:
        """The element type of the weights as they are stored."""
        load = weights_of(self.phases[-1].product)
        return self.output.dtype if load is None else load.dtype


def weights_of(product: Stage) -> Load | None:
    """The factor that has a vector of units, None where there is none."""
    body, unit = product.body, index(product.axes[-1].name)
    factors = (body.left, body.right) if isinstance(body, Binary) else ()
    for factor in factors:
        while isinstance(factor, Cast):
            factor = factor.operand
        if isinstance(factor, Load) and factor.indices[-1] == unit:
            return factor
    return None


def recurrent_layer(facts: KernelFacts) -> Recurrent:
    """The kernel as a recurrent layer, as the operator's expression gives it."""
    kernel = facts.kernel
    recurrence = recurrence_of(kernel)
    axes, stages = kernel.output.axes, kernel.stages
    places = [n for n, stage in enumerate(stages) if stage.combiner == "sum"]
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
        phases.append(Phase(product, tuple(inside[:-1]), inside[-1]))
    together = axes[3].name not in recurrence.apart
    return Recurrent(facts, stages[: places[0]], tuple(phases), together)


def _is_product(stage: Stage, kernel: FusedKernel) -> bool:
    """A sum over one axis, of [direction, step, batch, gates.., unit]."""
    axes = stage.axes
    outer, unit = kernel.output.axes[1:4], kernel.output.axes[4]
    fits = len(axes) >= 4 and axes[:3] == outer and axes[-1] == unit
    return fits and stage.combiner == "sum" and len(stage.reduce_axes) == 1


def recurrent_tiles(context: Recurrent) -> tuple[Pair, ...]:
    """(rows, vectors) pairs of a register tile; of a step, the fewer operands stay in registers."""
    fewest = 1 if context.groups_gates else context.gates
    tiles = [
        (rows, vectors)
        for vectors in VECTORS
        for rows in range(1, context.extents[2] + 1)
        if vectors <= context.most and context.at_once((rows, vectors)) >= fewest
    ]
    return tuple(tile for tile in tiles if not _waits_for_loads(context, tile)) or ((1, 1),)


def _waits_for_loads(context: Recurrent, tile: Pair) -> bool:
    """A tile of some of the gates has more operands to load than products to add up."""
    target, gates = context.facts.target, context.at_once(tile)
    rows, columns = tile[0], tile[1] * gates
    loads = (rows + columns) / loads_a_cycle(target)
    return gates < context.gates and loads > rows * columns / target.machine.vectors.fma


def _step_bytes(context: Recurrent, tile: Pair) -> int:
    """Of the weights that a tile reads for one step of its sums."""
    lanes, terms = context.facts.lanes, context.phases[-1].terms
    gates = context.at_once(tile) or context.gates
    return tile[1] * gates * lanes * context.weight_dtype.bytes * terms


def preferred_unroll(context: Recurrent, tile: Pair) -> int:
    """Steps of a sum in a turn of its loop."""
    few = (unroll for unroll in (4, 2) if unroll * _step_bytes(context, tile) <= context.stride)
    return min(next(few, 1), 2 if context.phases[-1].terms > 1 else 4)


def row_blocks(context: Recurrent) -> tuple[int, ...]:
    """Numbers of rows that share the batch evenly, and whose states fit the stack."""
    batch = context.extents[2]
    if context.together:
        return (batch,)
    even = {even_part(batch, size) for size in (*BATCHES, batch)}
    fitting = {size for size in even if size * context.row_bytes <= STACK_BYTES}
    return tuple(sorted(fitting or {1}))


def preferred_block(context: Recurrent, blocks: tuple[int, ...], tiles: tuple[Pair, ...]) -> int:
    """All rows together; a part for each thread where each has enough to do with the weights.

    A dynamic batch may have one row: then threads share its units, if a row is worth that.
    """
    (directions, steps, batch, units), facts = context.extents, context.facts
    parts = -(-facts.threads // directions)
    share = -(-batch // parts)
    gates = sum(phase.gates for phase in context.phases)
    enough = 2 * min(4, math.ceil(context.weight_bytes / (L2_SHARE * facts.target.l2_bytes)))
    if share < enough or share * steps * gates * units**2 < SHARED_WORK:
        share = batch
    elif directions == 1 and facts.kernel.limited_at(BATCH_POSITION):
        row = _cycles(context, 1, preferred_tile(context, 1, tiles))
        meeting = facts.target.machine.threads.hand_over
        share = batch if row >= MEETINGS * meeting else share
    return max((size for size in blocks if size <= share), default=blocks[0])


def preferred_share(context: Recurrent, block: int, tile: Pair) -> str:
    """Rows, each block by one thread; units of one block after the other; or units of all blocks
    in each step: the fastest by estimate.

    Threads that share units meet after each product of a step.
    """
    directions, _, batch, units = context.extents
    threads, blocks = context.facts.threads, directions * -(-batch // block)
    cycles = _cycles(context, block, tile)
    tiles = -(-units // (tile[1] * context.facts.lanes))

    def shared(pieces: int) -> float:
        """Of the time of one thread."""
        return float(waiting(pieces, threads)) / threads

    meeting = context.facts.target.machine.threads.hand_over * math.log2(max(2, threads))
    times = {
        "units": blocks * (cycles * shared(tiles) + meeting),
        "rows": blocks * cycles * shared(blocks),
        "both": blocks * cycles * shared(blocks * tiles) + meeting,
    }
    if not context.whole:
        del times["both"]
    return min(times, key=times.__getitem__)


def preferred_tile(context: Recurrent, block: int, tiles: tuple[Pair, ...]) -> Pair:
    """The tile whose products of a block need the fewest cycles; of equals, the smaller one.

    Small ones leave room for the gates' functions next to them, and for what is read ahead. Where
    weights are widened, any number of rows of a dynamic batch counts as much: one row in tiles of
    many waits for its few sums, many rows in tiles of one widen the weights as often. Otherwise the
    largest batch counts, unless another tile is clearly faster on average. Some of the gates at a
    time are summed up where weights come from beyond the second-level cache.
    """
    is_dynamic = context.facts.kernel.limited_at(BATCH_POSITION)
    widened = context.widens and is_dynamic
    tiles = tuple(tile for tile in tiles if _step_bytes(context, tile) <= context.stride) or tiles
    whole = [tile for tile in tiles if context.at_once(tile) in (0, context.gates)]
    grouped = [tile for tile in tiles if tile not in whole]

    def cycles(tile: Pair, every: bool = widened, far: bool = False) -> float:
        counts = range(1 if every else block, block + 1)
        return sum(_cycles(context, count, tile, widened, far) / count for count in counts)

    best = min(whole, key=lambda tile: (cycles(tile), tile[0] * tile[1]))
    if is_dynamic:
        even = min(whole, key=lambda tile: cycles(tile, True))
        best = even if cycles(even, True) < CLEARLY_FASTER * cycles(best, True) else best
    if not grouped or not context.is_far or context.facts.target.vector_registers > FEW_REGISTERS:
        return best
    return min([best, *grouped], key=lambda tile: cycles(tile, is_dynamic, True))


def _cycles(
    context: Recurrent, block: int, tile: Pair, widened: bool = False, far: bool = False
) -> float:
    """Of a step's products of a block: the multiply-adds, or the weights that are read, and
    `widened`. They come from the last cache where that is `far`."""
    rows, vectors = tile
    facts, units = context.facts, context.extents[-1]
    machine = facts.target.machine
    vector, terms = facts.lanes * context.weight_dtype.bytes, context.phases[-1].terms
    turns_bits, gates = context.turns_bits, context.at_once(tile) or context.gates

    def product(height: int, width: int, again: bool) -> float:
        if not height or not width:
            return 0.0
        columns = width * gates
        of_tile = units * width * context.gates * vector
        if (of_tile if again else context.weight_bytes) <= L1_SHARE * facts.target.l1_bytes:
            read = columns / loads_a_cycle(facts.target)
        else:
            cache = machine.l3 if far and not again else machine.l2
            read = columns * vector * terms / cache.read
        if widened:
            read = max(read, columns / machine.vectors.convert)
        words = height * (columns + 1)  # with one that a row's own bytes are prepared like
        busy = words * SIGNED_SHARE if turns_bits else height * columns / machine.vectors.fma
        a_group = units / terms * max(busy, read, machine.vectors.fma_latency) + TILE_CYCLES
        return a_group * (context.gates / gates)

    whole, rest = divmod(context.most, vectors)
    if context.whole and rest:
        whole, rest = whole + 1, 0
    tall, left = divmod(block, rows)
    total = 0.0
    for number, width in ((whole, vectors), (1, rest)):
        first = product(rows, width, False) if tall else 0.0
        others = (tall - 1) * product(rows, width, True) if tall else 0.0
        total += number * (first + others + REST * product(left, width, tall > 0))
    return total


SHARED = ("rows", "units", "both")
ORDERS = ("forward", "alternating")
"""Of the tiles of a step: the same in all steps, or from the end in every second one."""
SLOW_L3 = 1 / 3
"""Of the second-level cache's rate: below it the last cache is worth another order (14 of 47 bytes
a cycle on a Skylake-SP); no faster one was measured."""


def preferred_order(context: Recurrent) -> str:
    """From the end in every second step where the second-level cache does not hold the weights.

    Read in the same order, each part of them has left the cache before it is read again, and comes
    from the last one, which has to be slow for the order to matter.
    """
    target = context.facts.target
    slow = target.machine.l3.read < SLOW_L3 * target.machine.l2.read
    return "alternating" if context.is_far and slow else "forward"


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
        (Choice("unroll", UNROLLS), preferred_unroll(context, tile)),
        (Choice("order", ORDERS), preferred_order(context)),
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
        tiles = zip(self.rows.tolist(), self.vectors.tolist(), strict=True)
        self.gates = np.array([context.at_once(tile) or context.gates for tile in tiles])
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
        if self.values.are("order", "alternating").all() and not (units or both):
            steps.append(Alternate(output, tiles, step))
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

    def _at_once(self, phase: Phase) -> int:
        """How many of a phase's gates are summed up at a time."""
        return min(int(self.gates.item()), phase.gates)

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
            gates = self._at_once(phase)
            if gates < phase.gates:  # a group's side by side
                splits, order = ((2, gates), *splits), (0, 4, 2, 1, 3, 5)
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
        few = self.rows.item() < self._at_once(phase) * self.vectors.item()
        point = [*columns, batch] if few else [batch, *columns]
        inner, dot, size = f"{reduced}.i", [], self.unroll.item() * phase.terms
        steps: list[Step] = []
        if (gates := self._at_once(phase)) < phase.gates:
            steps += self._groups(phase, loop, gates)
            name = f"{name}.sum"
        else:
            steps.append(ComputeAt(name, phase.consumer.name, loop, "register"))
        steps.append(Tile(name, reduced, size))
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

    def _groups(self, phase: Phase, loop: str, gates: int) -> list[Step]:
        """The sums of a tile on the stack, so many gates at a time in registers."""
        direction, step, batch, unit = self.context.axes
        name = phase.product.name
        (gate,) = (axis.name for axis in phase.product.axes[3:-1])
        inner = (f"{gate}.i", f"{unit}.o", batch)
        return [
            ComputeAt(name, phase.consumer.name, loop, "stack"),
            CacheWrite(name, f"{name}.sum"),
            Tile(name, gate, gates),
            Tile(name, unit, self.context.facts.lanes),
            Reorder(name, (direction, step, f"{gate}.o", *inner, f"{unit}.i")),
            *(Unroll(name, axis) for axis in inner),
            Vectorize(name, f"{unit}.i"),
            ComputeAt(f"{name}.sum", name, f"{gate}.o", "register"),
        ]

    def shape(self) -> NestShape:
        context, values, facts = self.context, self.values, self.context.facts
        direction, step, batch, unit = context.axes
        directions, steps, many, units = context.extents
        product, lanes, count = context.phases[-1].product, facts.lanes, values.count
        (reduced,) = (axis.name for axis in product.reduce_axes)
        gates, terms = context.phases[-1].gates, context.phases[-1].terms
        sums = -(-units // terms)
        rows, unroll = np.minimum(self.rows, self.block), np.minimum(self.unroll, sums)
        vectors = np.minimum(self.vectors, context.most)
        columns = np.where(units < lanes, units, vectors * lanes)
        nest = Nest(list(facts.extents), count)
        at_once = np.minimum(self.gates, gates)
        for axis in product.axes[3:-1]:
            nest.inside[nest.numbers[axis.name]] = at_once if context.groups_gates else axis.extent
        straight = (unroll > 1) & (unroll + 1 == sums)  # no loop: what is left over is one more
        steps_inside = np.where(straight, sums, unroll)
        for name, size in ((batch, rows), (unit, columns), (reduced, steps_inside)):
            nest.inside[nest.numbers[name]] = size
        outer = [
            Loop(direction, direction, directions),
            Loop(f"{batch}.o", batch, many, self.block, True),
        ]
        tiles = Loop(self._vectors()[0], unit, units, columns, context.whole)
        nest.loop(Loop(f"{reduced}.o", reduced, sums, unroll))
        for axis in product.axes[3:-1] if context.groups_gates else ():
            nest.loop(Loop(f"{axis.name}.o", axis.name, gates, at_once))
        nest.loop(Loop(f"{batch}.i.o", batch, self.block, rows))
        nest.loop(tiles)
        walked = Loop(step, step, steps)
        within, around = [walked, *reversed(outer)], [*reversed(outer), walked]
        for loops in zip(within, around, strict=True):  # threads that share both meet at each step
            nest.loop(*loops, which=self.in_both.astype(np.int64))
        points = directions * steps * np.ceil(many / self.block) * self.block
        computed = np.where(context.whole, np.ceil(context.most / vectors) * vectors, context.most)
        held = (rows * vectors * at_once).astype(np.float64)
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
            registers=held + np.minimum(rows, vectors * at_once) + 1,
            loads=(rows + vectors * at_once).astype(np.float64),
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
