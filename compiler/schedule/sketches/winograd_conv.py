"""Sketch: Winograd's minimal filtering, computed for one block of tile rows at a time.

for row block: (parallel)
    pad the rows; transform them: data.both[x, y, channels, tiles]       stays in the L2 cache
    for block.o:
        products[x, y] += data.both[x, y] * filter[x, y]                 register tile as in matmul
        for tile: transform back; epilogue; store

With several threads, the other way to share the work is by channels, where there are few rows:

for block of input channels: (parallel) pad; transform: data.both    in the workspace
for block of output channels: (parallel) products; transform back; epilogue; store
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compiler.kernels.kernel import FusedKernel
from compiler.kernels.winograd import TRANSFORMS, apply_winograd, winograd_applies
from compiler.schedule.schedule import Schedule
from compiler.schedule.sketches.roles import epilogue_is_plain
from compiler.schedule.sketches.winograd_shape import winograd_shape
from compiler.schedule.space import Choice, ChoiceValue, Sketch
from compiler.schedule.steps.cache_write import CacheWrite
from compiler.schedule.steps.compute_at import ComputeAt
from compiler.schedule.steps.fuse import Fuse
from compiler.schedule.steps.inline import Inline
from compiler.schedule.steps.pack_layout import PackLayout
from compiler.schedule.steps.parallelize import Parallelize
from compiler.schedule.steps.reorder import Reorder
from compiler.schedule.steps.step import Step
from compiler.schedule.steps.tile import Tile
from compiler.schedule.steps.unroll import Unroll
from compiler.schedule.steps.vectorize import Vectorize
from compiler.schedule.steps.winograd import Winograd
from compiler.schedule.vectors import vector_lanes
from compiler.target import Target
from compiler.types.numerics import Algorithm, Numerics

MARGIN = 1.3  # times faster, by the count, before Winograd is the default
MEMORY_BYTES = 4  # a cycle, that memory delivers to one core
TRANSFORM_OPERATIONS = 10  # per element of a transformed tile, with loads and stores
MANY_BLOCKS = 3  # per thread: with fewer row blocks one thread may wait for a whole one
MOST_VECTORS = 4  # of output channels in a register tile
STACK_BYTES = 1024 * 1024  # what a thread keeps of transformed data on its stack, at most


@dataclass(frozen=True, slots=True)
class _Context:
    kernel: FusedKernel  # in Winograd's form
    m: int
    lanes: int
    threads: int
    extents: Mapping[str, int]
    prologue: tuple[str, ...]

    @property
    def output(self) -> str:
        return self.kernel.output.name


def winograd_sketches(
    kernel: FusedKernel, target: Target, threads: int, numerics: Numerics
) -> list[Sketch]:
    """One sketch per admitted tile size, the better first, where Winograd's form exists."""
    sizes = [m for m in TRANSFORMS if Algorithm.winograd(m) in numerics.algorithms]
    if not sizes or not winograd_applies(kernel) or not epilogue_is_plain(kernel):
        return []
    sizes.sort(key=lambda m: _cycles(kernel, m, target))
    sketches = [_sketch(kernel, m, target, threads) for m in sizes]
    return [sketch for sketch in sketches if sketch is not None]


def winograd_pays(kernel: FusedKernel, target: Target) -> bool:
    """Whether the better tile size is clearly faster than the direct form, by a rough count."""
    best = min(_cycles(kernel, m, target) for m in TRANSFORMS)
    return MARGIN * best < _cycles(kernel, 1, target)


def _cycles(kernel: FusedKernel, m: int, target: Target) -> float:
    """Cycles of a core that starts two vector operations a cycle; m = 1 is the direct form.

    Products and filters overlap: filters beyond the second-level cache come from memory. The
    transforms load, compute and store without much reuse.
    """
    anchor = kernel.stage(kernel.anchor)
    extents = {axis.name: axis.extent for axis in (*anchor.axes, *anchor.reduce_axes)}
    inputs, outputs = extents["icb"], extents["ocb"]
    window = (m + 2) ** 2
    tiles = extents["n"] * -(-extents["oh"] // m) * -(-extents["ow"] // m)
    vectors = inputs * extents["ici"] * outputs * window
    filters = vectors * vector_lanes(kernel, target) * anchor.dtype.bytes
    products = tiles * vectors / 2
    streamed = filters / MEMORY_BYTES if filters > target.l2_bytes else 0.0
    transforms = 0.0 if m == 1 else tiles * (inputs + outputs) * window * TRANSFORM_OPERATIONS / 2
    return max(products, streamed) + transforms


def _sketch(kernel: FusedKernel, m: int, target: Target, threads: int) -> Sketch | None:
    anchor = kernel.stage(kernel.anchor)
    extents = {axis.name: axis.extent for axis in (*anchor.axes, *anchor.reduce_axes)}
    rewritten = apply_winograd(kernel, m)
    names = [stage.name for stage in rewritten.stages]
    prologue = tuple(names[: names.index("data.rows")])
    lanes = vector_lanes(kernel, target)
    context = _Context(rewritten, m, lanes, threads, extents, prologue)
    rows = _row_blocks(context)
    if not rows:
        return None
    tiles = _tiles(context, target)
    choices = [
        Choice("rows", rows),
        Choice("tile", tiles),
        Choice("unroll", tuple(step for step in (2, 4, 8, 16) if step <= lanes)),
    ]
    default: list[ChoiceValue] = [
        _default_rows(context, rows),
        _default_tile(tiles),
        min(8, lanes),
    ]
    if threads > 1:
        choices.append(Choice("chunks", (1, 2, 4)))
        default.append(2)
        choices.append(Choice("share", ("rows", "channels")))
        few = _row_count(context) // int(str(default[0])) < MANY_BLOCKS * threads
        default.append("channels" if few else "rows")

    def build(assignment: Mapping[str, ChoiceValue]) -> Schedule:
        return Schedule(tuple(_steps(context, assignment)))

    element = anchor.dtype.bytes
    shape = winograd_shape(extents, m, lanes, element, threads, choices, TRANSFORM_OPERATIONS)
    return Sketch(f"winograd{m}", tuple(choices), build, tuple(default), shape)


def _row_count(context: _Context) -> int:
    """Rows of tiles."""
    return -(-context.extents["oh"] // context.m)


def _row_blocks(context: _Context) -> tuple[int, ...]:
    """Numbers of tile rows whose data fits the stack, and that divide the rows evenly."""
    m, extents = context.m, context.extents
    rows, columns = _row_count(context), -(-extents["ow"] // m)
    channels = extents["icb"] * extents["ici"]
    element = context.kernel.stage("products").dtype.bytes
    result = []
    for block in range(1, rows + 1):
        transformed = (m + 2) ** 2 * channels * block * columns
        padded = channels * (block * m + 2) * (columns * m + 2)
        products = (m + 2) ** 2 * MOST_VECTORS * context.lanes * block * columns
        fits = (transformed + padded + products) * element <= STACK_BYTES
        even = rows % block == 0
        if fits and even:
            result.append(block)
    return tuple(result)


def _default_rows(context: _Context, rows: tuple[int, ...]) -> int:
    """Enough tiles to fill the register tile a few times, few enough to stay in the L2 cache."""
    columns = -(-context.extents["ow"] // context.m)
    enough = [block for block in rows if block * columns >= 12]
    return enough[0] if enough else rows[-1]


def _tiles(context: _Context, target: Target) -> tuple[tuple[int, int], ...]:
    """(tiles, vectors) pairs of the products' register tile."""
    budget = target.vector_registers - 1
    pairs = []
    for vectors in (1, MOST_VECTORS, 3, 2):
        if vectors <= context.extents["ocb"]:
            most = (budget - vectors) // vectors
            pairs += [(count, vectors) for count in range(max(1, most // 2), most + 1)]
    return tuple(pairs)


def _default_tile(tiles: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Three vectors where there are as many, and as many tiles as then fit the registers.

    More vectors mean fewer passes over the transformed data; from four on there are too few
    multiply-adds between the loads.
    """
    return max(tiles, key=lambda tile: (tile[1] <= 3, tile[1], tile[0]))


def _steps(context: _Context, choice: Mapping[str, ChoiceValue]) -> list[Step]:
    output, m = context.output, context.m
    tile = choice["tile"]
    assert isinstance(tile, tuple)
    columns, vectors = int(tile[0]), int(tile[1])
    conv = [stage.name for stage in context.kernel.stages][-2]
    has_epilogue = conv != "output.rows"
    steps: list[Step] = [Winograd(m)]
    weight = next(
        load
        for load in context.kernel.inputs
        if load.constant and len(load.shape) == 4 and load.shape[:2] == (m + 2, m + 2)
    )
    # [x][y][output block][input channel][lanes]
    steps.append(PackLayout(weight.name, ((2, context.lanes),), (0, 1, 2, 4, 3), m))
    if has_epilogue:
        steps.append(Inline(conv))
    by_channels = choice.get("share") == "channels"
    rows = int(str(choice["rows"]))
    steps += [
        CacheWrite("products", "products.sum"),
        Tile(output, "oh", m * rows),
        Tile(output, "oh.i", m),
        Tile(output, "ow", m),
        Tile(output, "ocb", vectors, "shift" if by_channels else "peel"),
    ]
    chunks = int(str(choice["chunks"])) if context.threads > 1 else 0
    share = _by_channels if by_channels else _by_rows
    steps += [
        *share(context, rows, chunks),
        Unroll(output, "oh.i.i"),
        Unroll(output, "ow.i"),
        Vectorize(output, "oci"),
        ComputeAt("output.rows", output, "ow.o"),
    ]
    return steps + _transform_steps(context) + _product_steps(int(str(choice["unroll"])), columns)


_TILE = ("ocb.i", "oh.i.o", "ow.o", "oh.i.i", "ow.i", "oci")


def _by_rows(context: _Context, rows: int, chunks: int) -> list[Step]:
    """Each block of tile rows is padded and transformed on its own, and not shared."""
    output = context.output
    steps: list[Step] = [Reorder(output, ("n", "oh.o", "ocb.o", *_TILE))]
    where = "oh.o"
    if chunks:
        if context.extents["oh"] % (context.m * rows) == 0 and context.extents["n"] > 1:
            steps += [Fuse(output, ("n", "oh.o"), "parallel")]
            steps.append(Parallelize(output, "parallel", chunks))
            where = "parallel"
        elif context.extents["n"] == 1:
            steps.append(Reorder(output, ("oh.o", "n", "ocb.o", *_TILE)))
            steps.append(Parallelize(output, "oh.o", chunks))
            where = "n"
        else:
            steps.append(Parallelize(output, "n", chunks))
    return [
        *steps,
        ComputeAt("products", output, "ocb.o"),
        ComputeAt("data.both", output, where),
        *(ComputeAt(stage, output, where) for stage in reversed(context.prologue)),
        Reorder("data.both", ("n", "icb", "th", "tw", "x", "y", "ici")),
    ]


def _by_channels(context: _Context, rows: int, chunks: int) -> list[Step]:
    """All data is transformed first, by blocks of input channels; then output channels share it."""
    output = context.output
    return [
        Reorder(output, ("n", "ocb.o", "oh.o", *_TILE)),
        Fuse(output, ("n", "ocb.o"), "parallel"),
        Parallelize(output, "parallel", chunks),
        ComputeAt("products", output, "oh.o"),
        Reorder("data.both", ("n", "icb", "th", "tw", "x", "y", "ici")),
        Fuse("data.both", ("n", "icb"), "parallel"),
        Parallelize("data.both", "parallel", chunks),
        *(ComputeAt(stage, "data.both", "parallel") for stage in reversed(context.prologue)),
    ]


def _transform_steps(context: _Context) -> list[Step]:
    steps: list[Step] = []
    for stage in context.prologue:
        steps.append(Vectorize(stage, context.kernel.stage(stage).axes[-1].name))
    return [
        *steps,
        Unroll("data.both", "x"),
        Unroll("data.both", "y"),
        Vectorize("data.both", "ici"),
        ComputeAt("data.rows", "data.both", "tw"),
        Reorder("data.rows", ("n", "icb", "th", "tw", "y", "x", "ici")),
        Unroll("data.rows", "x"),
        Unroll("data.rows", "y"),
        Vectorize("data.rows", "ici"),
        Reorder("output.rows", ("n", "ocb", "t", "y", "p", "oci")),
        Unroll("output.rows", "y"),
        Unroll("output.rows", "p"),
        Vectorize("output.rows", "oci"),
    ]


def _product_steps(unroll: int, columns: int) -> list[Step]:
    """The small matrix products: one per position of the transformed tile."""
    return [
        Tile("products", "t", columns),
        Reorder("products", ("n", "x", "y", "t.o", "t.i", "ocb", "oci")),
        Unroll("products", "t.i"),
        Unroll("products", "ocb"),
        Vectorize("products", "oci"),
        ComputeAt("products.sum", "products", "t.o", "register"),
        Tile("products.sum", "ici", unroll),
        Reorder("products.sum", ("n", "x", "y", "icb", "ici.o", "ici.i", "t", "ocb", "oci")),
        Unroll("products.sum", "ici.i", False),
        Unroll("products.sum", "t"),
        Unroll("products.sum", "ocb"),
        Vectorize("products.sum", "oci"),
    ]
