"""Sketch: Winograd's minimal filtering, computed for one block of tiles at a time.

for row block: (parallel)
  for column block:                                     one, unless rows are long or end at run time
    pad it; transform it: data.both[x, y, channels, tiles]               stays in the L2 cache
    for block.o:
        products[x, y] += data.both[x, y] * filter[x, y]                 register tile as in matmul
        for tile: transform back; epilogue; store

With several threads, the other ways to share the work are by channels, where there are few rows:

for block of input channels: (parallel) pad; transform: data.both    in the workspace
for block of output channels: (parallel) products; transform back; epilogue; store

and by blocks of both, where there are few of either: the parallel loops go over row blocks as well.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.winograd import (
    TRANSFORMS,
    BlockedConv,
    apply_winograd,
    blocked_conv,
    ends_within_planes,
)
from tunefarm.compiler.schedule.nest_shape import (
    LOOP_CYCLES,
    Counts,
    Loop,
    Nest,
    NestShape,
    Numbers,
    Operand,
)
from tunefarm.compiler.schedule.sketches.even_shares import (
    default_waiting,
    even_part,
    evenly_shared,
)
from tunefarm.compiler.schedule.sketches.parallel_choices import parallel_steps, pieces_and_grains
from tunefarm.compiler.schedule.sketches.ragged_sums import apart
from tunefarm.compiler.schedule.sketches.roles import epilogue_is_plain
from tunefarm.compiler.schedule.sketches.winograd_cycles import (
    MOST_VECTORS,
    TRANSFORM_OPERATIONS,
    Block,
    cycles,
    default_block,
    dynamic_block,
    narrow_terms,
    row_blocks,
    stalls,
    tiles_of,
)
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.kernel_forms import Winograd
from tunefarm.compiler.schedule.steps.loop_kinds import Parallelize, Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import CacheWrite
from tunefarm.compiler.schedule.steps.packing import PackLayout
from tunefarm.compiler.schedule.steps.placement import ComputeAt, Inline
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Fuse, Reorder, Tile
from tunefarm.compiler.schedule.vectors import loads_a_cycle, vector_lanes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.numerics import Algorithm

AXES = ("window", "tile", "output", "input")
_DATA_ORDER = Reorder("data.both", ("n", "icb", "th", "tw", "x", "y", "ici"))
MARGIN = 1.3  # times faster, by the count, before Winograd is the default
MOST_ROWS = 4  # of tiles in a block that is a part of their rows
MANY_BLOCKS = 3  # per thread: with fewer row blocks one thread may wait for a whole one
SHARES = ("rows", "channels", "both")  # what threads share blocks of


@frozen
class _Context:
    """What all candidates have in common."""

    kernel: FusedKernel  # in Winograd's form
    m: int
    lanes: int
    threads: int
    conv: BlockedConv
    prologue: tuple[str, ...]
    is_wide: bool  # not even one row of tiles fits the stack
    target: Target

    @property
    def output(self) -> str:
        return self.kernel.output.name

    @property
    def element_bytes(self) -> int:
        return self.kernel.stage("products").dtype.bytes

    @property
    def inputs(self) -> int:
        """Input channels."""
        return self.conv.inputs

    @property
    def rows(self) -> int:
        """Rows of tiles."""
        return tiles_of(self.conv, self.m)[0]

    @property
    def width(self) -> int:
        """Tiles in a row."""
        return tiles_of(self.conv, self.m)[1]

    @property
    def tiles(self) -> tuple[str, ...]:
        """The axes of the products' tiles."""
        return tuple(axis.name for axis in self.kernel.stage("products").axes[4:-1])

    @property
    def in_rows(self) -> bool:
        """Whether a register tile stays in a row of tiles."""
        return len(self.tiles) > 1


def winograd_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """One sketch per tile size, the better first, where Winograd's form exists for the kernel.

    They lead where the better size is clearly faster than the direct form, by a rough count. There
    is none for blocks that are no vectors: all that is held of a tile is in vectors of a block.
    """
    conv, lanes = blocked_conv(kernel), vector_lanes(kernel, target)
    if conv is None or lanes % conv.oci.extent or lanes % conv.block:
        return []
    if not epilogue_is_plain(kernel):
        return []
    counted = {m: cycles(conv, m, lanes, target) for m in (1, *TRANSFORMS)}
    direct = counted.pop(1)
    sketches = {m: _sketch(kernel, conv, m, target, threads) for m in TRANSFORMS}
    for m, sketch in sketches.items():
        if sketch is not None:
            counted[m] *= default_waiting(sketch, threads)
            counted[m] += _meetings(sketch) * threads * target.machine.threads.hand_over
    best = sorted(TRANSFORMS, key=counted.__getitem__)
    leads = MARGIN * counted[best[0]] < direct
    if narrow_terms(conv, target) > 1:  # a rival twice as fast leaves no room for stalls
        leads = leads and not stalls(conv, best[0], lanes)
    ordered = [sketches[m] for m in best]
    return [replace(sketch, leads=leads) for sketch in ordered if sketch is not None]


def _meetings(sketch: Sketch) -> int:
    """How often threads meet in the default schedule before they share what direct forms do."""
    choices = dict(zip((choice.name for choice in sketch.choices), sketch.default, strict=True))
    return int(choices.get("share", "rows") != "rows")


def _sketch(
    kernel: FusedKernel, conv: BlockedConv, m: int, target: Target, threads: int
) -> Sketch | None:
    lanes = vector_lanes(kernel, target)
    _, width = tiles_of(conv, m)
    is_wide = not row_blocks(conv, m, lanes, width)
    rewritten = apply_winograd(kernel, m, in_rows=is_wide)
    names = [stage.name for stage in rewritten.stages]
    prologue = tuple(names[: names.index("data.rows")])
    context = _Context(rewritten, m, lanes, threads, conv, prologue, is_wide, target)
    find_block = dynamic_block if ends_within_planes(kernel) else default_block
    block = find_block(conv, m, lanes)
    if block is None:
        return None
    tiles = _tiles(context, target)
    unrolls = tuple(step for step in (2, 4, 8, 16) if step <= lanes)
    choices = [
        *_block_choices(context, block),
        (Choice("tile", tiles), _default_tile(tiles, context, block)),
        (Choice("unroll", unrolls), min(8, lanes)),
    ]
    if threads > 1:
        few = context.rows // block[0] < MANY_BLOCKS * threads
        choices.append((Choice("chunks", (1, 2, 4)), 2))
        choices.append((Choice("share", SHARES), "channels" if few else "rows"))
    sketch = Sketch.planned(f"winograd{m}", choices, lambda values: _Candidates(context, values))
    rows = sketch.choices[0].values
    sketch = evenly_shared(sketch, threads, {"tile": tiles, "share": SHARES, "rows": rows})
    return replace(sketch, algorithm=Algorithm.winograd(m))


def _block_choices(context: _Context, block: Block) -> list[tuple[Choice, ChoiceValue]]:
    """How many rows, and columns where rows are cut, of tiles are transformed at a time."""
    conv, m, lanes = context.conv, context.m, context.lanes
    rows, columns = block
    if not context.in_rows:
        return [(Choice("rows", row_blocks(conv, m, lanes, columns)), rows)]
    most = max(MOST_ROWS, rows)
    high = tuple(count for count in row_blocks(conv, m, lanes, columns) if count <= most)
    wide = [columns]
    while 2 * wide[-1] < context.width and high[-1] in row_blocks(conv, m, lanes, 2 * wide[-1]):
        wide.append(2 * wide[-1])
    return [(Choice("rows", high), rows), (Choice("columns", tuple(wide)), columns)]


def _tiles(context: _Context, target: Target) -> tuple[tuple[int, int], ...]:
    """(tiles, vectors) pairs of the products' register tile."""
    budget = target.vector_registers - 1
    pairs = []
    for vectors in (1, MOST_VECTORS, 3, 2):
        if vectors <= context.conv.ocb.extent:
            most = (budget - vectors) // vectors
            if context.in_rows:
                most = min(most, context.width)
            pairs += [(count, vectors) for count in range(max(1, most // 2), most + 1)]
    return tuple(pairs)


def _default_tile(
    tiles: tuple[tuple[int, int], ...], context: _Context, block: Block
) -> tuple[int, int]:
    """Three vectors where there are as many, and as many tiles as then fit the registers.

    More vectors mean fewer passes over the transformed data; from four on there are too few
    multiply-adds between the loads. Rows of tiles are cut evenly.
    """
    if context.in_rows:
        vectors = max(vectors for _, vectors in tiles)
        most = max(count for count, own in tiles if own == vectors)
        even = even_part(block[1], most)
        return min(
            (tile for tile in tiles if tile[1] == vectors), key=lambda tile: abs(tile[0] - even)
        )
    return max(tiles, key=lambda tile: (tile[1] <= 3, tile[1], tile[0]))


def _transform_steps(context: _Context) -> list[Step]:
    return [
        *(Vectorize(name, context.kernel.stage(name).axes[-1].name) for name in context.prologue),
        Unroll("data.both", "x"),
        Unroll("data.both", "y"),
        Vectorize("data.both", "ici"),
        ComputeAt("data.rows", "data.both", "tw"),
        Reorder("data.rows", ("n", "icb", "th", "tw", "y", "x", "ici")),
        Unroll("data.rows", "x"),
        Unroll("data.rows", "y"),
        Vectorize("data.rows", "ici"),
        Reorder("output.rows", ("n", "ocb", *context.tiles, "y", "p", "oci")),
        Unroll("output.rows", "y"),
        Unroll("output.rows", "p"),
        Vectorize("output.rows", "oci"),
    ]


def _product_steps(unroll: int, columns: int, tiles: tuple[str, ...]) -> list[Step]:
    """The small matrix products: one per position of the transformed tile."""
    *rows, t = tiles
    return [
        Tile("products", t, columns),
        Reorder("products", ("n", "x", "y", *rows, f"{t}.o", f"{t}.i", "ocb", "oci")),
        Unroll("products", f"{t}.i"),
        Unroll("products", "ocb"),
        Vectorize("products", "oci"),
        ComputeAt("products.sum", "products", f"{t}.o", "register"),
        Tile("products.sum", "ici", unroll),
        Reorder("products.sum", ("n", "x", "y", "icb", "ici.o", "ici.i", *rows, t, "ocb", "oci")),
        Unroll("products.sum", "ici.i", False),
        *(Unroll("products.sum", axis) for axis in (*rows, t)),
        Unroll("products.sum", "ocb"),
        Vectorize("products.sum", "oci"),
    ]


class _Candidates:
    """What is decided for n candidates; axes of the shape are those of the products."""

    def __init__(self, context: _Context, values: Values) -> None:
        self.context, self.values = context, values
        self.columns, self.vectors = values.pairs("tile")
        self.rows, self.unroll = values.integers("rows"), values.integers("unroll")
        self.wide = values.integers("columns", context.width)
        by_both = values.are("share", "both")
        self.by_channels = values.are("share", "channels") | by_both
        conv, m = context.conv, context.m
        self.batch = Loop(conv.n.name, "tile", conv.n.extent)
        # Rows of tiles beyond the last whole block of output rows are peeled off.
        whole = np.floor(conv.oh.extent / (m * self.rows))
        self.row_blocks = Loop(f"{conv.oh.name}.o", "tile", context.rows, self.rows, cuts=(whole,))
        self.column_blocks = Loop(f"{conv.ow.name}.o", "tile", context.width, self.wide)
        name = f"{conv.ocb.name}.o"
        self.blocks = Loop(name, "output", conv.ocb.extent, self.vectors, self.by_channels)
        # Row blocks that are all alike are shared over the whole batch, others within an image.
        even = whole * self.rows * m == conv.oh.extent
        images, rows, blocks = [self.batch], [self.row_blocks], [self.batch, self.blocks]
        self.parallel = [images, rows, images + rows, blocks, blocks + rows]
        by_rows = np.where(even, 2, 0) if conv.n.extent > 1 else 1
        self.by_both = by_both & even
        by_blocks = np.where(self.by_both, 4, 3)
        self.shared = np.where(self.by_channels, by_blocks, by_rows)

    def steps(self) -> list[Step]:
        context, output, m = self.context, self.context.output, self.context.m
        conv, form = context.conv, [stage.name for stage in context.kernel.stages][-2]
        by_channels = self.by_channels.item()
        row, column = conv.oh.name, conv.ow.name
        cut = [Tile(output, column, m * self.wide.item())] if self.is_cut else []
        tile = f"{column}.i" if self.is_cut else column
        return [
            Winograd(m, context.is_wide),
            # [x][y][output block][input channel][lanes]
            PackLayout(conv.weight.buffer, ((2, context.lanes),), (0, 1, 2, 4, 3), m),
            *([Inline(form)] if form != "output.rows" else []),
            CacheWrite("products", "products.sum"),
            Tile(output, row, m * self.rows.item()),
            Tile(output, f"{row}.i", m),
            *cut,
            Tile(output, tile, m),
            Tile(output, conv.ocb.name, self.vectors.item(), "shift" if by_channels else "peel"),
            *(self._by_channels() if by_channels else self._by_rows()),
            Unroll(output, f"{row}.i.i"),
            Unroll(output, f"{tile}.i"),
            Vectorize(output, conv.oci.name),
            ComputeAt("output.rows", output, f"{tile}.o"),
            *_transform_steps(context),
            *_product_steps(self.unroll.item(), self.columns.item(), context.tiles),
            *apart(context.kernel.stage("products"), "products.sum"),
        ]

    @property
    def is_cut(self) -> bool:
        """Whether the only candidate cuts rows of tiles into columns."""
        return bool(self.wide.item() < self.context.width)

    def _ordered(self, *loops: Loop) -> Reorder:
        """These loops of the output, round a block of tiles."""
        conv = self.context.conv
        block, row, column = conv.ocb.name, conv.oh.name, conv.ow.name
        outside = [loop.name for loop in loops if self.is_cut or loop is not self.column_blocks]
        column += ".i" if self.is_cut else ""
        inside = (f"{block}.i", f"{row}.i.o", f"{column}.o", f"{row}.i.i", f"{column}.i")
        names = (*outside, *inside, conv.oci.name)
        return Reorder(self.context.output, names)

    def _by_rows(self) -> list[Step]:
        """Each block of tile rows is padded and transformed on its own, and not shared."""
        context, output = self.context, self.context.output
        chunks = self.values.integers("chunks").item()
        images, rows, columns, blocks = self.batch, self.row_blocks, self.column_blocks, self.blocks
        steps: list[Step] = [self._ordered(images, rows, columns, blocks)]
        where = rows.name
        if chunks:
            shared = self.parallel[self.shared.item()]
            if shared == [rows]:
                steps.append(self._ordered(rows, images, columns, blocks))
                where = images.name
            steps += parallel_steps(output, shared, chunks)
            where = "parallel" if len(shared) > 1 else where
        where = columns.name if self.is_cut else where
        return [
            *steps,
            ComputeAt("products", output, blocks.name),
            ComputeAt("data.both", output, where),
            *(ComputeAt(stage, output, where) for stage in reversed(context.prologue)),
            _DATA_ORDER,
        ]

    def _by_channels(self) -> list[Step]:
        """All data is transformed first, by blocks of input channels, or of rows of these; blocks
        of output channels, or of rows of these, share it."""
        context, output, both = self.context, self.context.output, self.by_both.item()
        chunks = self.values.integers("chunks").item()
        where = "parallel" if both else self.row_blocks.name
        where = self.column_blocks.name if self.is_cut else where
        return [
            self._ordered(self.batch, self.blocks, self.row_blocks, self.column_blocks),
            *parallel_steps(output, self.parallel[self.shared.item()], chunks),
            ComputeAt("products", output, where),
            _DATA_ORDER,
            Fuse("data.both", ("n", "icb", *(["th"] if both else [])), "parallel"),
            Parallelize("data.both", "parallel", chunks),
            *(ComputeAt(stage, "data.both", "parallel") for stage in reversed(context.prologue)),
        ]

    def shape(self) -> NestShape:
        context, conv, m = self.context, self.context.conv, self.context.m
        window, lanes = (m + 2) ** 2, context.lanes
        inputs, outputs = context.inputs, conv.ocb.extent
        tiles = conv.n.extent * context.rows * context.width
        block = self.wide * (np.ones_like(self.rows) if context.in_rows else self.rows)
        columns, vectors = np.minimum(self.columns, block) * 1.0, self.vectors * 1.0
        unroll = np.minimum(self.unroll, conv.ici.extent)
        nest = Nest(AXES, self.values.count)
        nest.inside[1], nest.inside[2], nest.inside[3] = columns, vectors, unroll
        nest.loop(Loop("ici.o", "input", inputs, unroll))
        nest.loop(Loop("t.o", "tile", block, self.columns))
        if context.in_rows:
            nest.loop(Loop("th", "tile", self.rows))
        nest.loop(Loop("xy", "window", window))
        channels = self.by_channels.astype(np.int64)
        if context.in_rows:
            nest.loop(self.blocks, self.column_blocks, which=channels)
            nest.loop(self.column_blocks, self.row_blocks, which=channels)
            nest.loop(self.row_blocks, self.blocks, which=channels)
        else:
            nest.loop(self.blocks, self.row_blocks, which=channels)
            nest.loop(self.row_blocks, self.blocks, which=channels)
        nest.loop(self.batch)
        shared, threads = (self.parallel, self.shared), context.threads
        pieces, grains = pieces_and_grains(self.values, *shared, threads)
        computed = np.where(self.by_channels, np.ceil(outputs / vectors) * vectors, outputs)
        operations = window * tiles * inputs * computed
        transforms = float(TRANSFORM_OPERATIONS * tiles * window * (inputs + outputs * lanes))
        transformed = 2.0 * context.element_bytes * tiles * window * (inputs + outputs * lanes)
        machine = context.target.machine
        data = 2.0 * context.element_bytes * tiles * window * inputs
        shared_cycles = np.where(self.by_channels, data / machine.l3.read, 0.0)
        moved = transforms / lanes / machine.vectors.fma + shared_cycles
        whole, blocks = np.floor(block / columns), outputs / vectors
        step = columns * vectors
        return NestShape(
            operands=_operands(context, window, tiles),
            nest=nest,
            operations=operations,
            body=step * unroll,
            accumulators=step,
            registers=step + vectors + 1,
            loads=columns + vectors,
            step=step,
            cycles=self._product_cycles(block, columns) + moved,
            flops=2.0 * lanes * operations + transforms,
            full=whole * columns / block * np.floor(blocks) / blocks,
            lanes=np.full_like(
                step, conv.oh.extent * conv.ow.extent / (context.rows * context.width * m * m)
            ),
            aliased=np.ones_like(step),
            temporary=np.full_like(step, transformed),
            pieces=pieces,
            grains=grains,
        )

    def _product_cycles(self, block: Counts, columns: Numbers) -> Numbers:
        """Cycles of all products, by a rough count."""
        context, conv = self.context, self.context.conv
        core, loads = context.target.machine.vectors, loads_a_cycle(context.target)

        def step(size: Numbers) -> Numbers:
            busy = np.maximum(size * self.vectors / core.fma, (size + self.vectors) / loads)
            return np.asarray(np.maximum(busy, core.fma_latency) + LOOP_CYCLES, np.float64)

        whole = np.floor(block / columns)
        rest = block - whole * columns
        per_block = whole * step(columns) + np.where(rest > 0, step(np.maximum(rest, 1)), 0.0)
        steps = context.inputs * (context.m + 2) ** 2
        blocks = conv.ocb.extent / self.vectors  # peeled, unless they are shared
        blocks = np.where(self.by_channels, np.ceil(blocks), blocks)
        turns = blocks * conv.n.extent * context.rows * np.ceil(context.width / self.wide)
        turns = turns / (1 if context.in_rows else self.rows)
        return np.asarray(per_block * steps * turns, np.float64)


def _operands(context: _Context, window: int, tiles: int) -> tuple[Operand, ...]:
    """What the products read and write: [window, tile or output, input or output]."""
    conv, element = context.conv, context.element_bytes
    vector, inputs, outputs = (
        element * context.lanes,
        context.inputs,
        conv.ocb.extent,
    )
    return (
        Operand("data.both", element, (((0, 1),), ((1, 1),), ((3, 1),)), (window, tiles, inputs)),
        Operand("filter", vector, (((0, 1),), ((2, 1),), ((3, 1),)), (window, outputs, inputs)),
        Operand("products", vector, (((0, 1),), ((1, 1),), ((2, 1),)), (window, tiles, outputs)),
    )
