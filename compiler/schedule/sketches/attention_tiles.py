"""Sketch: attention of narrow operands whose two products are in matrix tiles (AMX).

for stack, group of keys: keys, values as the right factors of tiles        in the workspace
for stack, block of queries: (parallel)
    for tiles of keys, of rows: scores = sums of query * keys                 matrix tiles
    for row: max; exp, rounded to the operands' type
    for row: sum
    for tiles of columns, of rows: weighted = sums of exp * values            matrix tiles
    for row: output = weighted / sum

Rows of the queries are left factors as they lie in memory, and so are those of exp. Keys are padded
to whole steps of the second product: scores of what is padding are -inf, and its values are zeros.
Scale and masks are applied where scores are read: weights are 0 behind the keys that are there, or
that a query sees, and loops over tiles end with these. Both products have the same blocks of tiles,
so that each tile has one shape in the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tunefarm.compiler.expr.nodes import index
from tunefarm.compiler.kernels.attention import (
    BLOCK,
    GROUP,
    KEY,
    KEYS,
    LANE,
    MASKED,
    PLACE,
    ROWS,
    STEP,
    VALUES,
    Attention,
    attention_of,
    fits_tiles,
)
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.loops.verify_tiles import TERM_BYTES
from tunefarm.compiler.machine.amx_set_up import TilePalette
from tunefarm.compiler.schedule.nest_shape import Counts, Loop, Nest, NestShape, Numbers
from tunefarm.compiler.schedule.sketches.attention import AttentionContext, AttentionSteps
from tunefarm.compiler.schedule.sketches.even_shares import even_part, waiting
from tunefarm.compiler.schedule.sketches.matrix_tile_loops import NEAR_SHARE, SUM_CYCLES
from tunefarm.compiler.schedule.sketches.matrix_tiles import BLOCKS
from tunefarm.compiler.schedule.sketches.parallel_choices import CHUNKS, pieces_and_grains
from tunefarm.compiler.schedule.sketches.row_shape import KernelFacts
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.kernel_forms import BlockAttention
from tunefarm.compiler.schedule.steps.loop_kinds import Unroll, Vectorize
from tunefarm.compiler.schedule.steps.matrix_tiles import MatrixTiles
from tunefarm.compiler.schedule.steps.new_stages import Hoist
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES, ComputeAt, Inline
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Partition, Reorder, Tile
from tunefarm.compiler.schedule.vectors import vector_lanes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.frozen import frozen

QUERIES = (16, 32, 48, 64, 96, 128, 192, 256)
SOFTMAX_CYCLES = 20.0  # of a vector: largest score, exp, rounding, sum (Emerald Rapids)


@frozen
class TileSteps:
    """Tiles of both products: `depth` steps of `terms` each, `lanes` numbers of a row of sums.

    `keys` are those of a block, of which there is one: whole tiles of either product.
    """

    terms: int
    depth: int
    lanes: int
    rows: int
    keys: int

    @property
    def summed(self) -> int:
        """Terms that a product of two tiles sums up."""
        return self.depth * self.terms


def attention_tile_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel is an attention whose products matrix tiles can hold."""
    palette, parts = target.matrix_tiles, attention_of(kernel)
    if palette is None or parts is None:
        return []
    sizes = _sizes(parts, target, palette)
    if sizes is None:
        return []
    facts = KernelFacts(kernel, vector_lanes(kernel, target), threads, target)
    sketch = _sketch(AttentionContext(facts, parts, online=False), sizes)
    return [] if sketch is None else [sketch]


def _sizes(parts: Attention, target: Target, palette: TilePalette) -> TileSteps | None:
    """The tiles for these products; None where they cannot hold them."""
    dtype = parts.value.dtype
    if {parts.query.dtype, parts.key.dtype} != {dtype}:
        return None
    extents = (parts.queries, parts.keys, parts.features, parts.columns)
    if not target.multiplies_tiles(dtype) or not fits_tiles(*(axis.extent for axis in extents)):
        return None
    if parts.summed:
        return None
    lanes, terms = palette.row_bytes // parts.scores.dtype.bytes, TERM_BYTES // dtype.bytes
    steps = parts.features.extent // terms
    depth = max(n for n in range(1, palette.rows + 1) if steps % n == 0)
    whole = math.lcm(depth * terms, lanes)
    keys = -(-parts.keys.extent // whole) * whole
    return TileSteps(terms, depth, lanes, palette.rows, keys)


def _sketch(context: AttentionContext, sizes: TileSteps) -> Sketch | None:
    """The sketch, whose default needs the fewest cycles; None where no query fits the stack."""
    parts, threads = context.parts, context.facts.threads
    columns = parts.columns.extent // sizes.lanes
    tiles = tuple(
        (high, wide)
        for high, wide in BLOCKS
        if wide <= min(columns, sizes.keys // sizes.lanes) and high <= parts.queries.extent
    )
    extent, row = parts.queries.extent, _row_bytes(parts, sizes)
    even = {even_part(extent, size) for size in QUERIES}
    queries = tuple(sorted(size for size in even if size * row <= STACK_BYTES))
    if not queries:
        return None
    choices: list[tuple[Choice, ChoiceValue]] = [
        (Choice("queries", queries), queries[0]),
        (Choice("tile", tiles), tiles[0]),
        (Choice("exps", (1, 2, 4)), 4),
    ]
    if threads > 1:
        choices.append((Choice("chunks", CHUNKS), 2))
    sketch = Sketch.planned(
        "attention_tiles", choices, lambda values: _Candidates(context, sizes, values)
    )
    tried = [
        choice.values if choice.name in ("queries", "tile") else (value,)
        for choice, value in zip(sketch.choices, sketch.default, strict=True)
    ]
    shape, numbers = sketch.shape_of(tried)
    best = int(np.argmin(shape.cycles * waiting(shape.pieces, threads)))
    default = tuple(values[at] for values, at in zip(tried, numbers[:, best], strict=True))
    return replace(sketch, default=default, leads=True)


def _row_bytes(parts: Attention, sizes: TileSteps) -> int:
    """What a query keeps on the stack: scores and weights, and what they come to."""
    wide, narrow = parts.scores.dtype.bytes, parts.value.dtype.bytes
    return sizes.keys * (wide + narrow) + parts.columns.extent * wide


class _Candidates(AttentionSteps):
    """What is decided for n candidates; the shape is that of the sums over values."""

    def __init__(self, context: AttentionContext, sizes: TileSteps, values: Values) -> None:
        super().__init__(context, values, np.full(values.count, sizes.keys))
        self.sizes = sizes
        self.high, self.wide = values.pairs("tile")
        self.rows, self.queries = self._rows(values.integers("queries"))

    def _rows(self, wanted: Counts) -> tuple[Counts, Counts]:
        """Rows of a tile, and queries of a block: whole blocks of tiles, at most all queries."""
        extent = self.context.parts.queries.extent
        stacks = -(-wanted // (self.sizes.rows * self.high))
        rows = -(-wanted // (stacks * self.high))
        rows = np.where(rows * stacks * self.high > extent, extent // (stacks * self.high), rows)
        return rows, rows * stacks * self.high

    # --- the schedule ---------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """The schedule of the only candidate."""
        context, parts, sizes = self.context, self.context.parts, self.sizes
        rows, columns, output = context.rows, parts.columns.name, context.output
        outer = (*context.batch, f"{rows}.o")
        shared = outer if self.values.integers("chunks").item() else ()
        where = "parallel" if len(shared) > 1 else outer[-1]
        quotient, exponential = f"{output}.constant", parts.exponential.name
        yield BlockAttention(sizes.keys, sizes.lanes, terms=sizes.terms)
        yield from self._packed()
        yield Hoist(output, columns, quotient)
        yield Inline(MASKED)
        yield Tile(output, rows, self.queries.item(), "shift")
        yield Tile(output, columns, sizes.lanes)
        yield Reorder(output, (*outer, f"{rows}.i", f"{columns}.o", f"{columns}.i"))
        yield Unroll(output, f"{columns}.o")
        yield Vectorize(output, f"{columns}.i")
        yield from self._parallel(output, shared)
        yield ComputeAt(quotient, output, where)
        yield from self._along_rows(quotient, ())
        yield ComputeAt(parts.weighted.name, output, where)
        yield from self._in_tiles(parts.weighted.name, columns, KEY, (), (BLOCK,))
        yield from self._row_reduction(parts.total.name, (BLOCK,), output, where)
        yield ComputeAt(exponential, output, where)
        yield from self._exponential((rows, BLOCK))
        # Which lanes are padding is decided in the vectors behind all others alone.
        whole = parts.keys.extent // (sizes.lanes * self.values.integers("exps").item())
        yield Partition(exponential, f"{KEY}.o", 0, 0, (whole,))
        reader = (output, where) if parts.sunk else (exponential, rows)
        yield from self._row_reduction(parts.largest.name, (BLOCK,), *reader)
        yield ComputeAt(parts.scores.name, output, where)
        yield from self._in_tiles(parts.scores.name, KEY, parts.features.name, (BLOCK,), ())

    def _packed(self) -> Iterator[Step]:
        """Keys and values, a row of a tile at a time, of neighbouring elements in turn."""
        parts, sizes = self.context.parts, self.sizes
        shared = bool(self.values.integers("chunks").item())
        yield from self._rows_of_keys()
        for stage, load, axis in ((KEYS, parts.key, GROUP), (VALUES, parts.value, BLOCK)):
            yield Tile(stage, PLACE, sizes.lanes * sizes.terms)
            yield Vectorize(stage, f"{PLACE}.i")
            outer = (*self._stack_of(load), axis)
            yield from self._parallel(stage, outer if shared else ())
        extent = parts.keys.extent
        yield Partition(VALUES, STEP, 0, 0, (extent // sizes.terms, -(-extent // sizes.terms)))

    def _rows_of_keys(self) -> Iterator[Step]:
        """Blocks that are transposed in registers, where features are contiguous."""
        features, depth = self.context.parts.features.name, self.sizes.depth
        if self.context.parts.key.indices[-1] != index(features):
            yield Inline(ROWS)
            return
        yield Tile(KEYS, STEP, depth)
        yield Unroll(KEYS, f"{STEP}.i")
        yield ComputeAt(ROWS, KEYS, f"{STEP}.o")
        yield Unroll(ROWS, LANE)
        yield Vectorize(ROWS, features)

    def _in_tiles(
        self,
        stage: str,
        vector: str,
        summed: str,
        outside: tuple[str, ...],
        reduced: tuple[str, ...],
    ) -> Iterator[Step]:
        """The sums of a product in blocks of tiles: rows of one factor, a `vector` of the other."""
        rows, sizes = self.context.rows, self.sizes
        high, wide = self.high.item(), self.wide.item()
        yield Tile(stage, rows, self.rows.item())
        yield Tile(stage, f"{rows}.o", high)
        yield Tile(stage, vector, sizes.lanes)
        yield Tile(stage, f"{vector}.o", wide, "shift")
        yield Tile(stage, summed, sizes.summed)
        yield Tile(stage, f"{summed}.i", sizes.terms)
        tiles = (f"{rows}.o.i", f"{vector}.o.i")
        within = (f"{rows}.i", f"{summed}.i.o", f"{vector}.i", f"{summed}.i.i")
        blocks = (f"{vector}.o.o", f"{rows}.o.o")
        order = (*self.context.batch, *outside, *blocks, *reduced, f"{summed}.o", *tiles, *within)
        yield Reorder(stage, order)
        for axis in tiles:
            yield Unroll(stage, axis)
        yield MatrixTiles(stage, *within)

    # --- what it costs --------------------------------------------------------------------------

    def _blocks(self) -> Numbers:
        """Blocks of queries, of all stacks."""
        parts = self.context.parts
        stack = math.prod(axis.extent for axis in parts.batch)
        return np.asarray(stack * np.ceil(parts.queries.extent / self.queries), np.float64)

    def _turns(self, extent: int) -> Numbers:
        """Blocks of tiles in a block of queries, for so many lanes."""
        vectors = -(-extent // self.sizes.lanes)
        return np.asarray(
            np.ceil(vectors / self.wide) * (self.queries // (self.rows * self.high)), np.float64
        )

    def _product_cycles(self) -> Numbers:
        """Of both products: tiles' own, their loads, and what the second cache delivers of keys and
        values, which it holds; sums that are stored."""
        parts, sizes, target = self.context.parts, self.sizes, self.context.facts.target
        high, wide = self.high.astype(np.float64), self.wide.astype(np.float64)
        tiles, total = target.machine.tiles, np.zeros(self.values.count)
        own = np.maximum(high * wide * tiles.product, tiles.latency)
        loads = tiles.load * (high * self.rows + wide * sizes.depth)
        stacks = self.queries / (self.rows * high)
        line = sizes.lanes * TERM_BYTES * sizes.depth * wide / stacks / target.machine.l2.read
        each = np.maximum(np.maximum(own, loads), line)
        for extent, summed in (
            (sizes.keys, parts.features.extent),
            (parts.columns.extent, sizes.keys),
        ):
            turns = self._turns(extent)
            total += turns * -(-summed // sizes.summed) * each
            total += turns * high * wide * self.rows * SUM_CYCLES
        return self._blocks() * total

    def _cycles(self) -> Numbers:
        """Of both products and of the softmax of the rows between them, shape [n]."""
        parts, sizes, target = self.context.parts, self.sizes, self.context.facts.target
        vectors = self.queries * (sizes.keys / sizes.lanes)
        scores = self.queries * sizes.keys * parts.scores.dtype.bytes
        far = np.where(scores > NEAR_SHARE * target.l1_bytes, 2.0 * scores, 0.0)
        softmax = vectors * SOFTMAX_CYCLES + far / target.machine.l2.read
        return np.asarray(self._product_cycles() + self._blocks() * softmax)

    def shape(self) -> NestShape:
        """The loops of the sums over values; a vector operation here is a product of two tiles."""
        context, parts, sizes = self.context, self.context.parts, self.sizes
        facts, count, values = context.facts, self.values.count, self.values
        palette = facts.target.matrix_tiles
        assert palette is not None
        columns = parts.columns.extent
        nest = Nest(list(facts.extents), count)
        inside = self.rows * self.high
        nest.inside[nest.numbers[context.rows]] = inside
        nest.inside[nest.numbers[parts.columns.name]] = self.wide * sizes.lanes
        nest.inside[nest.numbers[parts.keys.name]] = sizes.summed
        queries = Loop(f"{context.rows}.o", context.rows, parts.queries.extent, self.queries, True)
        outer = [*(Loop(axis.name, axis.name, axis.extent) for axis in parts.batch), queries]
        nest.loop(Loop("n.o", parts.keys.name, sizes.keys, sizes.summed))
        nest.loop(Loop("m.i.o", context.rows, self.queries, inside))
        nest.loop(Loop("d.o", parts.columns.name, columns, self.wide * sizes.lanes, whole=True))
        for loop in reversed(outer):
            nest.loop(loop)
        products = (self.high * self.wide).astype(np.float64)
        steps = sizes.keys // sizes.summed
        pieces, grains = pieces_and_grains(
            values, [outer], np.zeros(count, np.int64), facts.threads
        )
        tiles = products + self.high + self.wide
        scores = (sizes.keys * self.queries * parts.scores.dtype.bytes).astype(np.float64)
        return NestShape(
            operands=facts.operands,
            nest=nest,
            operations=self._blocks() * self._turns(columns) * products * steps,
            body=products,
            accumulators=products,
            registers=tiles / palette.tiles * facts.target.vector_registers,
            loads=(self.high + self.wide).astype(np.float64),
            step=products,
            cycles=self._cycles(),
            flops=np.full(count, 2.0 * facts.work),
            full=np.ones(count),
            lanes=np.full(count, parts.keys.extent / sizes.keys),
            aliased=np.ones(count),
            temporary=2.0 * scores,
            pieces=pieces,
            grains=grains,
        )
