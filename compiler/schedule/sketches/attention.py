"""Sketches: attention whose scores stay in the caches, for one block of queries at a time.

for stack, group of keys: (parallel) keys.rows turned in registers: keys       in the workspace
for stack, block of queries: (parallel)
    for tile of keys, tile of rows: masked = scale and masks of scores         register tile
    for row: max; exp; sum
    for tile of columns, tile of rows: output = weighted / sum                 register tile

`online`, what blocks of keys come to is put together when all of them are done:

for stack, block of queries: (parallel)
    for block of keys:
        for tile of keys, tile of rows: masked                                 register tile
        for row: block.max; exp; block.sum
        for tile of columns, tile of rows: block.weighted                      register tile
    max; factor; sum
    for row, tile of columns: output = sum of factor * block.weighted / sum
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.expr.nodes import Load
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.kernels.attention import (
    BLOCK,
    FACTOR,
    GROUP,
    KEY,
    KEYS,
    LANE,
    MASKED,
    PART,
    PRODUCT,
    SHIFT,
    TOP,
    VALUES,
    Attention,
    attention_of,
    block_attention,
)
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.nest_shape import REST, TILE_CYCLES, Counts, Loop, Nest, NestShape
from tunefarm.compiler.schedule.sketches.even_shares import even_part
from tunefarm.compiler.schedule.sketches.parallel_choices import (
    CHUNKS,
    parallel_steps,
    pieces_and_grains,
)
from tunefarm.compiler.schedule.sketches.row_parts import (
    RowParts,
    RowReduction,
    split_reduction,
    split_widths,
)
from tunefarm.compiler.schedule.sketches.row_shape import KernelFacts
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.kernel_forms import BlockAttention
from tunefarm.compiler.schedule.steps.loop_kinds import Prefetch, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import CacheRead, CacheWrite, Hoist
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES, ComputeAlong, ComputeAt
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Reorder, Tile
from tunefarm.compiler.schedule.vectors import UNROLLS, loads_a_cycle, vector_lanes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.numerics import Algorithm

# Domains of attention's schedules: blocks of queries and keys, register tiles, and a default.


Pair: TypeAlias = tuple[int, int]
"""Rows and vectors of a register tile."""
QUERIES = (1, 2, 4, 6, 8, 12, 16, 18, 24, 30, 32, 36, 42, 48, 64, 96, 128)
KEYS_AT_ONCE = (64, 128, 256, 512)
MANY_BLOCKS = 4  # of queries, per thread
CACHE_SHARE = 4  # parts of the second-level cache, of which scores and weights fill one
PREFETCH_DISTANCES = (0, 1024, 4096)  # elements, of keys and values that are read once
FEW_KEYS = 128  # that a step reads before prefetches would have brought them


@frozen
class AttentionContext:
    """What all candidates have in common."""

    facts: KernelFacts
    parts: Attention
    online: bool

    @property
    def kernel(self) -> FusedKernel:
        """The kernel."""
        return self.facts.kernel

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.facts.lanes

    @property
    def output(self) -> str:
        """The name of the stage that is written."""
        return self.kernel.output.name

    @property
    def batch(self) -> tuple[str, ...]:
        """Names of the axes of batch and heads."""
        return tuple(axis.name for axis in self.parts.batch)

    @property
    def reads_cache(self) -> bool:
        """Whether so many keys are there as a run says, as in a cache that comes from memory.

        Others were computed just before.
        """
        parts = self.parts
        return parts.keys.extent > FEW_KEYS and (parts.exists is not None or bool(parts.seen))

    @property
    def rows(self) -> str:
        """The name of the axis of queries."""
        return self.parts.queries.name


def shares_keys(parts: Attention) -> bool:
    """Several stacks of queries have the same keys."""
    own = {name for item in parts.key.indices for name in axes_of(item)}
    return any(axis.name not in own and axis.extent > 1 for axis in parts.batch)


def streams(context: AttentionContext) -> list[str]:
    """The inputs that hold keys and values."""
    inputs = {item.name for item in context.kernel.inputs}
    read = dict.fromkeys((context.parts.key.buffer, context.parts.value.buffer))
    return [name for name in read if name in inputs]


def row_bytes(context: AttentionContext, keys: int) -> int:
    """What a query keeps on the stack: scores and weights of a block, what all blocks come to."""
    parts = context.parts
    blocks = -(-parts.keys.extent // keys) if context.online else 0
    return (2 * keys + blocks * parts.columns.extent) * parts.scores.dtype.bytes


def query_blocks(context: AttentionContext, blocks: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of queries that share the queries evenly and fit the stack with all these blocks."""
    extent = context.parts.queries.extent
    even = {even_part(extent, size) for size in QUERIES}
    row = max(row_bytes(context, keys) for keys in blocks)
    return tuple(sorted(size for size in even if size * row <= STACK_BYTES))


def key_blocks(context: AttentionContext) -> tuple[tuple[int, ...], int]:
    """Numbers of keys, whole vectors, in blocks that share all keys as evenly as they can, and the
    one by rule.

    Values of a dynamic number of keys are copied where blocks need padding: a block like the one
    by rule that needs none takes its place.
    """
    extent, lanes = context.parts.keys.extent, context.lanes
    even = (even_part(extent, size) for size in KEYS_AT_ONCE if size < extent)
    blocks = sorted({min(-(-size // lanes) * lanes, extent) for size in even})
    rule = blocks[len(blocks) // 2]
    if context.parts.exists is not None:
        alike = range(lanes, min(extent, rule * 3 // 2 + 1), lanes)
        whole = [size for size in alike if extent % size == 0 and 2 * rule <= 3 * size]
        rule = min(whole, key=lambda size: abs(size - rule), default=rule)
    return tuple(sorted({*blocks, rule})), rule


def register_tiles(context: AttentionContext, target: Target, extent: int) -> tuple[Pair, ...]:
    """(rows, vectors) pairs of a register tile along an axis of this extent."""
    budget = target.vector_registers - 1
    most = -(-extent // context.lanes)
    pairs = []
    for vectors in (1, 2, 3, 4, 6):
        if vectors <= most:
            rows = min((budget - vectors) // vectors, context.parts.queries.extent)
            pairs += [(count, vectors) for count in range(max(1, rows // 2), rows + 1)]
    return tuple(pairs)


def default_tiles(
    context: AttentionContext,
    target: Target,
    queries: tuple[int, ...],
    keys: int,
    scores: tuple[Pair, ...],
    values: tuple[Pair, ...],
) -> tuple[int, Pair, Pair]:
    """The block of queries and both tiles that need the fewest cycles, of equals the most alike.

    Scores and weights of a block stay in a part of the second-level cache.
    """
    parts, lanes = context.parts, context.lanes
    row = row_bytes(context, keys)
    fitting = [size for size in queries if size * row * CACHE_SHARE <= target.l2_bytes]
    if context.facts.threads > 1:
        stacks, threads = math.prod(axis.extent for axis in parts.batch), context.facts.threads
        few = context.reads_cache and parts.queries.extent <= max(rows for rows, _ in values)

        def shared(size: int) -> bool:
            # Each block of queries reads all keys and values, which few of them wait for.
            pieces = stacks * -(-parts.queries.extent // size)
            return pieces >= MANY_BLOCKS * threads or (few and pieces % threads == 0)

        many = [size for size in fitting if shared(size)]
        fitting = many or fitting[:1]
    columns, features = parts.columns.extent, parts.features.extent

    def best(tiles: tuple[Pair, ...], size: int, extent: int, steps: int) -> tuple[float, Pair]:
        # A vector that is masked is loaded again for each row: it stands better on its own.
        whole = [tile for tile in tiles if tile[1] <= max(1, extent // lanes)]
        return min(
            ((_cycles(target, tile, size, extent, lanes, steps), tile) for tile in whole),
            key=lambda item: (item[0], -item[1][0] * item[1][1]),
        )

    def total(size: int) -> float:
        first = best(scores, size, keys, features)[0]
        return -(-parts.queries.extent // size) * (first + best(values, size, columns, keys)[0])

    size = min(fitting or queries[:1], key=lambda size: (total(size), -size))
    return size, best(scores, size, keys, features)[1], best(values, size, columns, keys)[1]


def _cycles(target: Target, tile: Pair, rows: int, extent: int, lanes: int, steps: int) -> float:
    """Of a product of so many rows, an axis of vectors of this extent and steps of reduction.

    A step waits for the one before. What whole tiles leave over are smaller ones in shorter loops,
    but whole vectors are shifted back.
    """
    core, loads = target.machine.vectors, loads_a_cycle(target)

    def step(height: int, width: int) -> float:
        if not height or not width:
            return 0.0
        busy = max(height * width / core.fma, (height + width) / loads, core.fma_latency)
        return steps * busy + TILE_CYCLES

    vectors = -(-extent // lanes)
    height, width = tile[0], min(tile[1], vectors)
    whole, rest = divmod(vectors, width)
    if extent % lanes == 0:
        whole, rest = -(-vectors // width), 0
    total = 0.0
    for number, columns, factor in ((whole, width, 1.0), (1, rest, REST)):
        tiles = rows // height * step(height, columns)
        total += number * factor * (tiles + REST * step(rows % height, columns))
    return total


ACCUMULATORS = 4  # vectors that a row is summed up in


def attention_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketches, if the kernel is an attention: all keys at once, and blocks of them."""
    parts = attention_of(kernel)
    if parts is None:
        return []
    facts = KernelFacts(kernel, vector_lanes(kernel, target), threads, target)
    found = _sketch("attention", AttentionContext(facts, parts, False), target)
    sketches, queries = ([found[0]], found[1]) if found else ([], 0)
    if parts.keys.extent > KEYS_AT_ONCE[0]:
        blocked = _sketch("online_attention", AttentionContext(facts, parts, True), target)
        if blocked is not None:
            # It leads where the cache holds fewer queries with all of their scores.
            leads = blocked[1] > queries
            online = replace(blocked[0], algorithm=Algorithm.ONLINE_SOFTMAX, leads=leads)
            sketches.append(online)
    return sketches


def _sketch(name: str, context: AttentionContext, target: Target) -> tuple[Sketch, int] | None:
    """The sketch, and how many queries make a block by rule; None where no query fits the stack."""
    parts, extent = context.parts, context.parts.keys.extent
    blocks, keys = key_blocks(context) if context.online else ((extent,), extent)
    queries = query_blocks(context, blocks)
    if not queries:
        return None
    scores = register_tiles(context, target, extent)
    values = register_tiles(context, target, parts.columns.extent)
    preferred = default_tiles(context, target, queries, keys, scores, values)
    choices: list[tuple[Choice, ChoiceValue]] = [
        (Choice("queries", queries), preferred[0]),
        (Choice("keys", blocks), keys),
        (Choice("scores", scores), preferred[1]),
        (Choice("values", values), preferred[2]),
        (Choice("unroll", UNROLLS), 4),
        (Choice("exps", (1, 2, 4)), 1),
    ]
    once = preferred[0] >= parts.queries.extent and not shares_keys(parts)
    choices.append((Choice("packing", ("whole", "tile")), "tile" if once else "whole"))
    if once and extent > FEW_KEYS and streams(context):
        # They come from memory, and products of few queries wait for each of them. All keys of a
        # tile are turned before it is computed: what is just ahead of them comes too late.
        ahead = PREFETCH_DISTANCES[-1 if context.reads_cache else 1]
        choices.append((Choice("prefetch", PREFETCH_DISTANCES), ahead))
    if context.facts.threads > 1:
        choices.append((Choice("chunks", CHUNKS), 2))
    sketch = Sketch.planned(name, choices, lambda values: _Candidates(context, values))
    return sketch, preferred[0]


class AttentionSteps:
    """Steps that every schedule of an attention has: softmax row by row, in blocks of `keys`."""

    def __init__(self, context: AttentionContext, values: Values, keys: Counts) -> None:
        self.context, self.values, self.keys = context, values, keys

    def _stack_of(self, load: Load) -> tuple[str, ...]:
        """The axes of batch and heads that an operand has itself."""
        own = {name for item in load.indices for name in axes_of(item)}
        return tuple(axis for axis in self.context.batch if axis in own)

    def _parallel(self, stage: str, loops: Sequence[str]) -> list[Step]:
        chunks = self.values.integers("chunks").item()
        return parallel_steps(stage, [Loop(name, name, 1) for name in loops], chunks)

    def _exponential(self, outer: tuple[str, ...]) -> list[Step]:
        """Row after row, so many vectors at a time."""
        context, stage = self.context, self.context.parts.exponential.name
        inside = (f"{KEY}.o", f"{KEY}.i.o", f"{KEY}.i.i")
        return [
            Tile(stage, KEY, context.lanes * self.values.integers("exps").item()),
            Tile(stage, f"{KEY}.i", context.lanes, "mask"),
            Reorder(stage, (*context.batch, *outer, *inside)),
            Unroll(stage, inside[1]),
            Vectorize(stage, inside[2]),
        ]

    def _row_reduction(
        self, stage: str, others: tuple[str, ...], consumer: str, loop: str
    ) -> list[Step]:
        """Along the keys of a row in vectors, whose lanes are then combined, row after row."""
        context, parts = self.context, RowParts()
        block = () if others else (BLOCK,)
        axes = (*context.batch, *block, context.rows)
        reduction = RowReduction(stage, KEY, self.keys.item(), axes, others)
        widths = split_widths(context.lanes, ACCUMULATORS)
        masked = context.facts.target.masks_vectors
        split_reduction(parts, reduction, context.lanes, widths, masked)
        return [
            *parts.made,
            ComputeAt(stage, consumer, loop),
            *(ComputeAt(name, stage, context.rows) for name in reversed(parts.names[:-1])),
            *parts.loops,
        ]

    def _along_rows(self, stage: str, inner: tuple[str, ...]) -> list[Step]:
        """Vectors of rows, each with the loops `inner`."""
        rows = self.context.rows
        return [
            Tile(stage, rows, self.context.lanes, "mask"),
            Reorder(stage, (*self.context.batch, f"{rows}.o", *inner, f"{rows}.i")),
            Vectorize(stage, f"{rows}.i"),
        ]


class _Candidates(AttentionSteps):
    """What is decided for n candidates; the shape is that of the sums over values."""

    def __init__(self, context: AttentionContext, values: Values) -> None:
        super().__init__(context, values, values.integers("keys"))
        self.queries = values.integers("queries")
        self.tile_rows, self.vectors = values.pairs("values")
        self.unroll = values.integers("unroll")
        self.in_tiles = bool(values.are("packing", "tile").all())

    def steps(self) -> list[Step]:
        context, rows = self.context, self.context.rows
        output, quotient = context.output, f"{context.output}.constant"
        outer = (*context.batch, f"{rows}.o")
        shared = outer if self.values.integers("chunks").item() else ()
        where = "parallel" if len(shared) > 1 else outer[-1]
        ahead = self.values.integers("prefetch").item()
        names = streams(context) if ahead else []
        copied = context.parts.key.buffer if self.in_tiles and context.reads_cache else ""
        return [
            *(Prefetch(name, ahead) for name in names if name != copied),
            BlockAttention(self.keys.item(), context.lanes, context.online),
            *(Prefetch(name, ahead, KEYS) for name in names if name == copied),
            *self._packed_keys(),
            *self._padded_values(),
            Hoist(output, context.parts.columns.name, quotient),
            Tile(output, rows, self.queries.item(), "shift"),
            *self._tile_of_columns(output, outer, () if context.online else (f"{rows}.i",)),
            *self._parallel(output, shared),
            ComputeAt(quotient, output, where),
            *self._along_rows(quotient, ()),
            *(self._online(where) if context.online else self._direct(where)),
        ]

    def _direct(self, where: str) -> list[Step]:
        """All keys at once: the sums over values are tiles of the output."""
        context, parts = self.context, self.context.parts
        rows, output, exponential = context.rows, context.output, parts.exponential.name
        reader = (output, where) if parts.sunk else (exponential, rows)
        return [
            ComputeAt(parts.weighted.name, output, f"{rows}.i.o", "register"),
            *self._product(parts.weighted.name, parts.columns.name, KEY),
            *self._row_reduction(parts.total.name, (BLOCK,), output, where),
            ComputeAt(exponential, output, where),
            *self._exponential((rows, BLOCK)),
            *self._row_reduction(parts.largest.name, (BLOCK,), *reader),
            *self._scores(output, where),
        ]

    def _online(self, where: str) -> list[Step]:
        """Blocks of keys, each with its own sums over values, and what joins them."""
        context, parts = self.context, self.context.parts
        rows, output, columns = context.rows, context.output, parts.columns.name
        exponential, product = parts.exponential.name, f"{PRODUCT}.sum"
        joining = (parts.largest.name, FACTOR, parts.total.name)
        steps: list[Step] = [
            ComputeAt(parts.weighted.name, output, self._columns(output)[0][0], "register"),
            Tile(parts.weighted.name, columns, context.lanes),
            Reorder(
                parts.weighted.name, (*context.batch, BLOCK, rows, f"{columns}.o", f"{columns}.i")
            ),
            Unroll(parts.weighted.name, f"{columns}.o"),
            Vectorize(parts.weighted.name, f"{columns}.i"),
        ]
        for stage in reversed(joining):
            steps += [ComputeAt(stage, output, where), *self._along_rows(stage, (BLOCK,))]
        return [
            *steps,
            CacheWrite(PRODUCT, product),
            *self._tile_of_columns(PRODUCT, (*context.batch, BLOCK), (rows,)),
            ComputeAt(PRODUCT, output, where),
            ComputeAt(product, PRODUCT, f"{rows}.o", "register"),
            *self._product(product, columns, KEY),
            *self._row_reduction(PART, (), PRODUCT, BLOCK),
            ComputeAlong(PART, PRODUCT, BLOCK),
            ComputeAt(exponential, PRODUCT, BLOCK),
            *self._exponential((BLOCK, rows)),
            ComputeAt(SHIFT, exponential, rows),
            *self._row_reduction(TOP, (), PRODUCT, BLOCK),
            ComputeAlong(TOP, PRODUCT, BLOCK),
            *self._scores(PRODUCT, BLOCK),
        ]

    # --- the loops of single stages -------------------------------------------------------------

    def _tile_of_columns(
        self, stage: str, outer: tuple[str, ...], rows: tuple[str, ...]
    ) -> list[Step]:
        """Tiles of columns of the values, each for tiles of the loop `rows`, where there is one."""
        axes, steps = self._columns(stage)
        order = (f"{self.context.rows}.i",) if not rows else ()
        unrolled = axes[1:-1]
        if rows:
            (row,) = rows
            steps.append(Tile(stage, row, self.tile_rows.item()))
            unrolled = [f"{row}.i", *unrolled]
            order = ()
            inner = (axes[0], f"{row}.o", f"{row}.i", *axes[1:])
        else:
            inner = (*order, *axes)
        return [
            *steps,
            Reorder(stage, (*outer, *inner)),
            *(Unroll(stage, axis) for axis in unrolled),
            Vectorize(stage, axes[-1]),
        ]

    def _columns(self, stage: str) -> tuple[list[str], list[Step]]:
        columns = self.context.parts.columns
        return self._vectors(stage, columns.name, columns.extent, self.vectors.item())

    def _vectors(
        self, stage: str, axis: str, extent: int, vectors: int
    ) -> tuple[list[str], list[Step]]:
        """The loops over an axis in tiles of vectors, and the steps that make them."""
        lanes = self.context.lanes
        if extent % lanes == 0:
            return [f"{axis}.o.o", f"{axis}.o.i", f"{axis}.i"], [
                Tile(stage, axis, lanes),
                Tile(stage, f"{axis}.o", vectors, "shift"),
            ]
        return [f"{axis}.o", f"{axis}.i.o", f"{axis}.i.i"], [
            Tile(stage, axis, lanes * vectors),
            Tile(stage, f"{axis}.i", lanes, "mask"),
        ]

    def _packed_keys(self) -> list[Step]:
        """Keys are turned in square blocks, all of them at first or those of a tile of scores."""
        context, lanes = self.context, self.context.lanes
        kernel = block_attention(context.kernel, self.keys.item(), lanes, context.online)
        features, turned = context.parts.features.name, f"{KEYS}.rows"
        outer = (*(axis.name for axis in kernel.stage(KEYS).axes[:-3]), GROUP)
        shared = outer if self.values.integers("chunks").item() and not self.in_tiles else ()
        return [
            CacheRead(KEYS, context.parts.key.buffer, turned, (*outer, LANE, features)),
            Tile(KEYS, features, lanes, "shift"),
            Reorder(KEYS, (*outer, f"{features}.o", f"{features}.i", LANE)),
            Unroll(KEYS, f"{features}.i"),
            Vectorize(KEYS, LANE),
            *self._parallel(KEYS, shared),
            ComputeAt(turned, KEYS, f"{features}.o"),
            Unroll(turned, LANE),
            Vectorize(turned, features),
        ]

    def _padded_values(self) -> list[Step]:
        """Of a dynamic number of keys: the rows of a block, before they are multiplied."""
        context, columns = self.context, self.context.parts.columns
        if context.parts.exists is None or not context.online:
            return []
        if context.parts.keys.extent % self.keys.item() == 0 or columns.extent % context.lanes:
            return []
        made = block_attention(context.kernel, self.keys.item(), context.lanes, True)
        stack = (axis.name for axis in made.stage(VALUES).axes[:-3])
        return [
            ComputeAt(VALUES, PRODUCT, BLOCK),
            Tile(VALUES, columns.name, context.lanes),
            Reorder(VALUES, (*stack, BLOCK, KEY, f"{columns.name}.o", f"{columns.name}.i")),
            Unroll(VALUES, f"{columns.name}.o"),
            Vectorize(VALUES, f"{columns.name}.i"),
        ]

    def _scores(self, consumer: str, loop: str) -> list[Step]:
        """A register tile of scores, which are masked where they are stored."""
        context, rows = self.context, self.context.rows
        scores = context.parts.scores.name
        tile_rows, vectors = (size.item() for size in self.values.pairs("scores"))
        axes, tiles = self._vectors(MASKED, KEY, self.keys.item(), vectors)
        order = (*context.batch, BLOCK, axes[0], f"{rows}.o", f"{rows}.i", *axes[1:])
        packed = [ComputeAt(KEYS, MASKED, axes[0])] if self.in_tiles else []
        return [
            ComputeAt(MASKED, consumer, loop),
            Tile(MASKED, rows, tile_rows),
            *tiles,
            Reorder(MASKED, order),
            Unroll(MASKED, f"{rows}.i"),
            *(Unroll(MASKED, axis) for axis in axes[1:-1]),
            Vectorize(MASKED, axes[-1]),
            *packed,
            ComputeAt(scores, MASKED, f"{rows}.o", "register"),
            *self._product(scores, KEY, context.parts.features.name),
        ]

    def _product(self, stage: str, vector: str, reduce: str) -> list[Step]:
        """The loops of a register tile: rows x vectors along `vector`, summed along `reduce`."""
        rows, unrolled = self.context.rows, (f"{vector}.o", f"{vector}.i")
        order = (*self.context.batch, BLOCK, f"{reduce}.o", f"{reduce}.i", rows, *unrolled)
        return [
            Tile(stage, reduce, self.unroll.item()),
            Tile(stage, vector, self.context.lanes),
            Reorder(stage, order),
            Unroll(stage, f"{reduce}.i", False),
            Unroll(stage, rows),
            Unroll(stage, f"{vector}.o"),
            Vectorize(stage, f"{vector}.i"),
        ]

    def shape(self) -> NestShape:
        context, parts, values = self.context, self.context.parts, self.values
        facts, lanes, count = context.facts, context.lanes, values.count
        rows = np.minimum(self.tile_rows, self.queries)
        unroll = np.minimum(self.unroll, self.keys)
        extent = parts.columns.extent
        most = math.ceil(extent / lanes)
        vectors = np.minimum(self.vectors, most)
        even = extent % lanes == 0
        columns = np.where(extent < lanes, extent, vectors * lanes)
        nest = Nest(list(facts.extents), count)
        nest.inside[nest.numbers[context.rows]] = rows
        nest.inside[nest.numbers[parts.columns.name]] = columns
        nest.inside[nest.numbers[parts.keys.name]] = unroll
        blocks = -(-parts.keys.extent // self.keys)
        queries = Loop(f"{context.rows}.o", context.rows, parts.queries.extent, self.queries, True)
        outer = [*(Loop(axis.name, axis.name, axis.extent) for axis in parts.batch), queries]
        nest.loop(Loop("n.o", parts.keys.name, self.keys, unroll))
        key_blocks = Loop(BLOCK, parts.keys.name, blocks)
        tiles = Loop("m.i.o", context.rows, self.queries, rows)
        along = Loop("d.o", parts.columns.name, extent, columns, even)
        inside = [tiles, along, key_blocks] if context.online else [key_blocks, tiles, along]
        for loop in (*inside, *reversed(outer)):
            nest.loop(loop)
        stack = math.prod(axis.extent for axis in parts.batch)
        points = stack * np.ceil(parts.queries.extent / self.queries) * self.queries
        computed = np.where(even, np.ceil(most / vectors) * vectors, most)
        operations = (points * computed * blocks * self.keys).astype(np.float64)
        straight = (unroll > 1) & (self.keys == unroll + 1)
        body = (rows * vectors * np.where(straight, self.keys, unroll)).astype(np.float64)
        step = (rows * vectors).astype(np.float64)
        pieces, grains = pieces_and_grains(
            values, [outer], np.zeros(count, np.int64), facts.threads
        )
        scores = (8.0 * self.queries * self.keys).astype(np.float64)
        return NestShape(
            operands=facts.operands,
            nest=nest,
            operations=operations,
            body=body,
            accumulators=step,
            registers=step + vectors + 1,
            loads=(rows + vectors).astype(np.float64),
            step=step,
            cycles=np.full(count, facts.work / lanes / facts.target.machine.vectors.fma),
            flops=np.full(count, 2.0 * facts.work),
            full=np.floor(self.queries / rows) * rows / self.queries,
            lanes=np.full(count, extent / (most * lanes)),
            aliased=np.ones(count),
            temporary=scores,
            ahead=values.integers("prefetch"),
            pieces=pieces,
            grains=grains,
        )
