"""Domains of attention's schedules: blocks of queries and keys, register tiles, and a default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.kernels.attention import Attention
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.schedule.nest_shape import REST, TILE_CYCLES
from tunefarm.compiler.schedule.sketches.even_shares import even_part
from tunefarm.compiler.schedule.sketches.row_shape import KernelFacts
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES
from tunefarm.compiler.schedule.vectors import loads_a_cycle
from tunefarm.compiler.target import Target

Pair: TypeAlias = tuple[int, int]
"""Rows and vectors of a register tile."""
QUERIES = (1, 2, 4, 6, 8, 12, 16, 18, 24, 30, 32, 36, 42, 48, 64, 96, 128)
KEYS_AT_ONCE = (64, 128, 256, 512)
MANY_BLOCKS = 4  # of queries, per thread
CACHE_SHARE = 4  # parts of the second-level cache, of which scores and weights fill one


@dataclass(frozen=True, slots=True)
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
    def rows(self) -> str:
        """The name of the axis of queries."""
        return self.parts.queries.name


def shares_keys(parts: Attention) -> bool:
    """Several stacks of queries have the same keys."""
    own = {name for item in parts.key.indices for name in axes_of(item)}
    return any(axis.name not in own and axis.extent > 1 for axis in parts.batch)


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


def key_blocks(context: AttentionContext) -> tuple[int, ...]:
    """Numbers of keys, whole vectors, in blocks that share all keys as evenly as they can."""
    extent, lanes = context.parts.keys.extent, context.lanes
    even = (even_part(extent, size) for size in KEYS_AT_ONCE if size < extent)
    return tuple(sorted({min(-(-size // lanes) * lanes, extent) for size in even}))


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
        stacks = math.prod(axis.extent for axis in parts.batch)
        enough = MANY_BLOCKS * context.facts.threads
        many = [s for s in fitting if stacks * -(-parts.queries.extent // s) >= enough]
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
