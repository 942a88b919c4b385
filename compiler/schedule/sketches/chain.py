"""Sketch: a chain of convolutions, products and pools, for one block of rows at a time.

for rows.o of the last part: (parallel)
    expanded[rows + halo] = register tiles, as of a kernel of its own          on the stack
    filtered[rows] = register tiles of expanded                                on the stack
    for block, row, column: projected = register tile of filtered

Where a part filters each block of channels by itself, what it reads can be computed for some blocks
at a time. Rows that two blocks of rows need are computed for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.kernels.chain import chain_parts
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.roles import with_roles
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.schedule.nest_shape import Counts, NestShape, Numbers
from tunefarm.compiler.schedule.schedule import Schedule
from tunefarm.compiler.schedule.sketches.chain_context import (
    MOST_BLOCKS,
    ChainContext,
    ChainPart,
    chain_context,
)
from tunefarm.compiler.schedule.sketches.even_shares import waiting
from tunefarm.compiler.schedule.sketches.parallel_choices import CHUNKS
from tunefarm.compiler.schedule.sketches.roles import roles_of
from tunefarm.compiler.schedule.sketches.tile_context import LoopOrder, TileContext
from tunefarm.compiler.schedule.sketches.tile_domains import (
    best_tile,
    reduce_orders,
    tiles_of,
    unrolls,
)
from tunefarm.compiler.schedule.sketches.tile_forms import TileForm
from tunefarm.compiler.schedule.sketches.tile_shape import tile_shape
from tunefarm.compiler.schedule.sketches.tiled_reduction import (
    TilePlan,
    tiled_reduction_sketches,
    tiled_sketch,
)
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES, ComputeAt
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.vectors import vector_lanes
from tunefarm.compiler.target import Target

BLOCKS = (0, 1, 2, 3, 4, MOST_BLOCKS)  # of channels that are filtered at a time; 0: all of them
GOOD_BYTES = 128 * 1024  # of what the parts give each other: several rows, much less than the cache
TIME_SHARE_PER_DOUBLING = 0.002  # of the time, by which blocks of half or twice the size are worse
FILLED = 0.6  # of the registers for sums that a tile has, at least
BY_BLOCK = ("block", "row", "column")
ORDERS = (BY_BLOCK, ("row", "block", "column"), ("row", "column", "block"))


def chain_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel is a chain whose parts all have register tiles."""
    chain = chain_context(kernel, target, threads)
    if chain is None:
        return []
    choices = _choices(chain)
    sketch = Sketch.planned("chain", choices, lambda values: _Candidates(chain, values))
    return [replace(_cheapest(sketch, chain), leads=True)]


def _cheapest(sketch: Sketch, chain: ChainContext) -> Sketch:
    """The sketch with the rows and tiles as defaults that take the fewest cycles, by count."""
    later = (number for number, part in enumerate(chain.parts) if number and part.filters)
    varied = {"rows", *(name for n in later for name in (f"tile{n - 1}", f"blocks{n}"))}
    tried = [
        c.values if c.name in varied else (d,)
        for c, d in zip(sketch.choices, sketch.default, strict=True)
    ]
    shape, numbers = sketch.shape_of(tried)
    kept = np.array([chain.bytes(n, MOST_BLOCKS) for n in _numbers(tried[0])])[numbers[0]]
    best = int(np.argmin(shape.cycles * waiting(shape.pieces, chain.threads) * _apart(kept)))
    chosen = (values[picked] for values, picked in zip(tried, numbers[:, best], strict=True))
    return replace(sketch, default=tuple(chosen))


def _apart(size: Counts) -> Numbers:
    """Of blocks that take equal time those are best that neither fill the cache nor are small."""
    return np.asarray(
        1.0 + TIME_SHARE_PER_DOUBLING * np.abs(np.log2(size / GOOD_BYTES)), np.float64
    )


# --- choices ------------------------------------------------------------------------------------


def _choices(chain: ChainContext) -> list[tuple[Choice, ChoiceValue]]:
    rows = chain.block_rows
    choices: list[tuple[Choice, ChoiceValue]] = [(Choice("rows", rows), rows[0])]
    for number, part in enumerate(chain.parts):
        choices += _of_part(part, number)
        if number and part.filters:
            blocks = tuple(n for n in BLOCKS if n <= part.context.vectors)
            choices.append((Choice(f"blocks{number}", blocks), 1))
    if chain.threads > 1:
        choices.append((Choice("chunks", CHUNKS), 4))
    return choices


def _of_part(part: ChainPart, number: int) -> list[tuple[Choice, ChoiceValue]]:
    context = part.context
    tiles, orders = _tiles(part), reduce_orders(context)[:2]
    steps = unrolls(context, orders)
    choices: list[tuple[Choice, ChoiceValue]] = [
        (Choice(f"tile{number}", tiles), best_tile(context, tiles)),
        (Choice(f"unroll{number}", steps), steps[-1]),
    ]
    if len(orders) > 1:
        choices.append((Choice(f"reduce{number}", orders), orders[0]))
    if not part.filters and context.roles.row:
        orders_of_loops = tuple(" ".join(order) for order in ORDERS)
        choices.append((Choice(f"loops{number}", orders_of_loops), orders_of_loops[0]))
    return choices


def _tiles(part: ChainPart) -> tuple[ChoiceValue, ...]:
    """Those that nearly fill the registers, or hold a row: each part has a choice of its own."""
    tiles = [tile for tile in tiles_of(part.context) if isinstance(tile, tuple)]
    least = FILLED * max(int(columns) * int(vectors) for columns, vectors in tiles)
    least = least / 2 if part.filters else least  # these wait for loads as much as for sums
    return tuple(t for t in tiles if int(t[0]) * int(t[1]) >= least)


# --- what is decided ----------------------------------------------------------------------------


class _Candidates:
    """The parts' loops for n candidates, and where parts are computed."""

    def __init__(self, chain: ChainContext, values: Values) -> None:
        self.chain, self.values = chain, values
        *early, last = range(len(chain.parts))
        self.blocks = [self._blocks(number) for number in (*early, last)]
        self.parts = [TilePlan(chain.parts[n].context, self._early(n)) for n in early]
        self.last = self._last(last)
        self.parts.append(self.last)
        for number, plan in enumerate(self.parts):
            self._limit(plan, self.blocks[number])
            if number < last:
                self._limit(plan, self.blocks[number + 1])

    def _blocks(self, number: int) -> Counts:
        """Blocks of channels that a part filters at a time, 0 where it takes all at once."""
        large = [self.chain.bytes(n) > STACK_BYTES for n in self._row_numbers()]
        blocks = self.values.integers(f"blocks{number}")
        if f"blocks{number}" not in self.values.domains:
            return blocks
        needed = np.array(large)[self.values.positions["rows"]] & (blocks == 0)
        return np.where(needed, 1, blocks)

    def _limit(self, plan: TilePlan, blocks: Counts) -> None:
        """Tiles of vectors have no more of them than there are at a time."""
        plan.vectors = np.where(blocks > 0, np.minimum(plan.vectors, blocks), plan.vectors)

    def _orders(self, number: int) -> tuple[list[LoopOrder], Counts]:
        """The orders of a part's loops, by what is filtered at a time, and which one is whose."""
        part, values, blocks = self.chain.parts[number], self.values, self.blocks[number]
        spelled: tuple[ChoiceValue, ...] = (" ".join(BY_BLOCK),)
        which = np.zeros(values.count, np.int64)
        if (name := f"loops{number}") in values.domains:
            spelled, which = values.domains[name], values.positions[name]
        elif not part.context.roles.row:
            spelled = ("block column",)
        sizes = sorted({*blocks.tolist()})
        names = [tuple(str(order).split()) for order in spelled]
        orders = [LoopOrder(order, blocks=size) for order in names for size in sizes]
        return orders, which * len(sizes) + np.searchsorted(sizes, blocks)

    def _early(self, number: int) -> Values:
        orders, which = self._orders(number)
        return self._values(number, orders, which)

    def _last(self, number: int) -> TilePlan:
        """The last part, in blocks of rows: its orders of loops are those with each number."""
        part, values = self.chain.parts[number], self.values
        orders, which = self._orders(number)
        name = "rows" if part.context.roles.row else "columns"
        tiled = [
            replace(
                order,
                rows=count if name == "rows" else 0,
                columns=count if name == "columns" else 0,
            )
            for count in self._row_numbers()
            for order in orders
        ]
        which = values.positions["rows"] * len(orders) + which
        plan = TilePlan(part.context, self._values(number, tiled, which))
        within = [loop for loop in plan.outer if loop.axis not in part.batch]
        plan.outer = [loop for loop in plan.outer if loop.axis in part.batch]
        plan.tiles = [
            replace(tiles, loops=[*tiles.loops[:1], *within, *tiles.loops[1:]], parallel=[])
            for tiles in plan.tiles
        ]
        if "chunks" in values.domains:
            shared = [1 + bool(order.blocks) for order in tiled]
            plan.tiles = [
                replace(tiles, parallel=[*plan.outer, *tiles.loops[:count]])
                for tiles, count in zip(plan.tiles, shared, strict=True)
            ]
        return plan

    def _values(self, number: int, orders: Sequence[LoopOrder], which: Counts) -> Values:
        """The choices of a part under the names that they have in a kernel of its own."""
        values = self.values
        domains: dict[str, tuple[ChoiceValue, ...]] = {"loops": tuple(map(str, orders))}
        positions = {"loops": which}
        named = {own: f"{own}{number}" for own in ("tile", "reduce", "unroll")}
        if number == len(self.chain.parts) - 1:
            named["chunks"] = "chunks"
        for own, name in named.items():
            if name in values.domains:
                domains[own], positions[own] = values.domains[name], values.positions[name]
        if "reduce" not in domains:
            domains["reduce"] = reduce_orders(self.chain.parts[number].context)[:1]
            positions["reduce"] = positions["loops"] * 0
        if self.chain.parts[number].context.prologue:
            domains["padding"], positions["padding"] = ("inline",), positions["loops"] * 0
        return Values(domains, positions, values.count)

    def steps(self) -> list[Step]:
        *early, last = self.parts
        steps = last.steps()
        output = last.context.kernel.output.name
        (tiles,) = last.tiles
        outer = tiles.loops[0].name if len(tiles.parallel) < 2 else "parallel"
        for number in reversed(range(len(early))):
            plan, reader = self.parts[number], self.parts[number + 1]
            result = plan.context.kernel.output.name
            steps += plan.steps()
            if not self.blocks[number + 1].item():
                steps.append(ComputeAt(result, output, outer))
            elif reader is not last:
                block = reader.tiles[0].loops[0].name
                steps.append(ComputeAt(result, reader.context.kernel.output.name, block))
            else:
                where = outer if len(tiles.parallel) > 1 else tiles.loops[1].name
                steps.append(ComputeAt(result, output, where))
        return steps

    def shape(self) -> NestShape:
        """That of the last part, with what the others execute and write."""
        shape, parts = tile_shape(self.last), self.chain.parts
        cycles = shape.cycles * parts[-1].share_of_count
        flops, temporary = shape.flops, shape.temporary
        table = np.array([self._repeated(n) for n in self._row_numbers()])
        repeated = table[self.values.positions["rows"]]
        for number, plan in enumerate(self.parts[:-1]):
            own, part = tile_shape(plan), parts[number]
            times = repeated[:, number] * self._repeated_blocks(number)
            size = float(part.result_bytes * part.extent * part.stack)
            cycles = cycles + own.cycles * part.share_of_count * times
            cycles = cycles + size * times / self._bytes_a_cycle(number)
            flops = flops + own.flops * times
            temporary = temporary + own.temporary + 2.0 * size * times
        blocks = np.array([-(-self.chain.parts[-1].extent // n) for n in self._row_numbers()])
        streamed = blocks[self.values.positions["rows"]] * self.chain.streamed_bytes
        return replace(
            shape,
            cycles=cycles + streamed / self.chain.parts[0].context.target.machine.l3.read,
            flops=flops,
            temporary=temporary,
        )

    def _row_numbers(self) -> list[int]:
        return _numbers(self.values.domains["rows"])

    def _repeated(self, rows: int) -> list[float]:
        """How often each row of each early part is computed, in the mean."""
        *early, last = self.chain.parts
        blocks = -(-last.extent // rows)
        counts = self.chain.rows(rows)
        return [blocks * count / part.extent for part, count in zip(early, counts, strict=False)]

    def _repeated_blocks(self, number: int) -> Numbers:
        """How often each block of channels is: last tiles are shifted, the reader's and its own."""
        vectors = float(self.chain.parts[number + 1].context.vectors)
        blocks, own = self.blocks[number + 1], self.parts[number].vectors
        within = np.maximum(blocks, 1)
        repeated = np.ceil(vectors / within) * np.ceil(within / own) * own / vectors
        return np.where(blocks > 0, repeated, 1.0)

    def _bytes_a_cycle(self, number: int) -> Numbers:
        """How fast what a part gives is written and read again, from which cache that is."""
        target, part = self.last.context.target, self.chain.parts[number]
        table = np.array([self.chain.rows(n)[number] for n in self._row_numbers()], np.float64)
        size = part.result_bytes * table[self.values.positions["rows"]]
        blocks = self.blocks[number + 1]
        share = np.minimum(blocks / self.chain.parts[number + 1].context.vectors, 1.0)
        size = np.where(blocks > 0, size * share, size)
        near, far = (cache.round_trip for cache in (target.machine.l2, target.machine.l3))
        return np.where(size <= target.l2_bytes // 2, near, far)


def _numbers(values: Sequence[ChoiceValue]) -> list[int]:
    return [value for value in values if isinstance(value, int)]


def chain_apart_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel is a chain; it leaves nothing open."""
    steps: list[Step] = []
    for part in chain_parts(kernel):
        steps += _steps_of(kernel, part, steps, target)
    if not steps:
        return []
    return [Sketch("chain_apart", (), lambda _: Schedule(tuple(steps)), ())]


def _steps_of(
    kernel: FusedKernel, part: FusedKernel, before: list[Step], target: Target
) -> list[Step]:
    """The first default of a part whose steps do not need the whole kernel to be the part."""
    for sketch in (*tiled_reduction_sketches(part, target, 1), *_as_it_is(part, target)):
        defaults = zip((choice.name for choice in sketch.choices), sketch.default, strict=True)
        steps = list(sketch.build(dict(defaults)).steps)
        try:
            scheduled = ScheduledKernel.of(kernel)
            for step in (*before, *steps):
                scheduled = step.apply(scheduled)
        except ScheduleError:
            continue
        return steps
    return []


def _as_it_is(part: FusedKernel, target: Target) -> list[Sketch]:
    """The sketch of the part's own axes, of which none is merged or split."""
    known = with_roles(part, vector_lanes(part, target))
    roles = roles_of(known)
    if roles is None:
        return []
    context = TileContext(TileForm("tiled", known, (), roles), target, 1)
    return [tiled_sketch(context)] if tiles_of(context) else []
