"""What a recurrent layer's schedules are made from: its parts, their domains, and a default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import Binary, Cast, Load, index
from tunefarm.compiler.kernels.accumulate import narrow_factors
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.recurrence import recurrence_of
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.schedule.nest_shape import REST, TILE_CYCLES
from tunefarm.compiler.schedule.sketches.even_shares import even_part, waiting
from tunefarm.compiler.schedule.sketches.parallel_choices import MEETINGS
from tunefarm.compiler.schedule.sketches.row_shape import KernelFacts
from tunefarm.compiler.schedule.sketches.tile_dots import dot_terms
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES
from tunefarm.compiler.schedule.vectors import loads_a_cycle
from tunefarm.compiler.types.dtypes import DType

Pair: TypeAlias = tuple[int, int]
"""Rows and vectors of a register tile, the vectors of each gate."""
VECTORS = (1, 2, 3, 4, 6, 8)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
BATCH_POSITION = 3  # of the output's axes
SHARED_WORK = 2**20  # multiply-adds of a thread below which a second one costs more than it saves
# Cycles, as they were measured:
SIGNED_SHARE = 1.25  # cycles of a product of signed bytes that no instruction sums: 5 of 4 a cycle
L1_SHARE = 0.75  # of the first-level cache, that weights stay in


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
    def turns_bits(self) -> bool:
        """Products are of signed bytes, which this target turns by their sign to multiply them."""
        factors = narrow_factors(self.phases[-1].product.body)
        if factors is None or {factor.dtype for factor in factors} != {DType.I8}:
            return False
        known = self.facts.target.dot_products(DType.I8, DType.I8, DType.I32)
        return all(instruction.matrix for instruction in known)

    @property
    def weight_dtype(self) -> DType:
        """The element type of the weights as they are stored."""
        load = weights_of(self.phases[-1].product)
        return self.output.dtype if load is None else load.dtype


def weights_of(product: Stage) -> Load | None:
    """The factor that has a vector of units, None where there is none."""
    body, unit = product.body, index(product.axes[-1].name)
    factors = (body.left, body.right) if isinstance(body, Binary) else ()
    for part in factors:
        factor = part.operand if isinstance(part, Cast) else part
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


def recurrent_tiles(context: Recurrent) -> tuple[tuple[int, int], ...]:
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
    enough = 2 if context.weight_bytes <= facts.target.l2_bytes else 4
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

    Small ones leave room for the gates' functions next to them, and for what is read ahead.
    """
    return min(tiles, key=lambda tile: (_cycles(context, block, tile), tile[0] * tile[1]))


def _cycles(context: Recurrent, block: int, tile: Pair) -> float:
    """Of a step's products of a block: the multiply-adds, or the weights that are read."""
    rows, vectors = tile
    facts, units = context.facts, context.extents[-1]
    machine = facts.target.machine
    vector, terms = facts.lanes * context.weight_dtype.bytes, context.phases[-1].terms
    turns_bits = context.turns_bits

    def product(height: int, width: int) -> float:
        if not height or not width:
            return 0.0
        columns = width * context.gates
        again = context.weight_bytes if block <= rows else units * columns * vector
        if again <= L1_SHARE * facts.target.l1_bytes:
            read = columns / loads_a_cycle(facts.target)
        else:
            read = columns * vector * terms / machine.l2.read
        words = height * (columns + 1)  # with one that a row's own bytes are prepared like
        busy = words * SIGNED_SHARE if turns_bits else height * columns / machine.vectors.fma
        return units / terms * max(busy, read, machine.vectors.fma_latency) + TILE_CYCLES

    whole, rest = divmod(context.most, vectors)
    if context.whole and rest:
        whole, rest = whole + 1, 0
    total = 0.0
    for number, width in ((whole, vectors), (1, rest)):
        tall = block // rows * product(rows, width) + REST * product(block % rows, width)
        total += number * tall
    return total
