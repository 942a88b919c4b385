"""Sketch: square blocks that are turned in registers, where data moves between two orders of axes.

for rest.. (parallel): for blocks of u, blocks of v, in an order that is open:
    lanes vectors along u, the axis in which the input is contiguous, are loaded
    lanes vectors along v, the axis in which the output is contiguous, are stored

Where rows end at run time they stay an axis of their own, next to which the blocks of u go: each
row anew would have all of u written, a stream for every element of it.

Serves transposes and changes of layout, with what is computed from their elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

from tunefarm.compiler.expr.affine import Affine, affine
from tunefarm.compiler.expr.nodes import Load, add, index, integer, mul
from tunefarm.compiler.expr.parts import parts_that_read
from tunefarm.compiler.expr.walk import axes_of, loads, substitute
from tunefarm.compiler.kernels.flatten_axes import divisions
from tunefarm.compiler.kernels.kernel import Buffer, FusedKernel
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.schedule.nest_shape import PAGE, Loop, Nest, NestShape, aliased_lines
from tunefarm.compiler.schedule.sketches.even_shares import evenly_shared
from tunefarm.compiler.schedule.sketches.merged_axes import flatten_single_rows, merge_all
from tunefarm.compiler.schedule.sketches.parallel_choices import (
    ENOUGH,
    chunk_choices,
    parallel_steps,
    pieces_and_grains,
)
from tunefarm.compiler.schedule.sketches.row_shape import KernelFacts
from tunefarm.compiler.schedule.space import Choice, ChoiceValue, Sketch, Values
from tunefarm.compiler.schedule.steps.loop_kinds import Unroll, Vectorize
from tunefarm.compiler.schedule.steps.new_stages import CacheRead
from tunefarm.compiler.schedule.steps.placement import ComputeAt
from tunefarm.compiler.schedule.steps.step import Step
from tunefarm.compiler.schedule.steps.tiles import Reorder, Tile
from tunefarm.compiler.schedule.vectors import vector_lanes
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128)  # vectors along each side of a block of blocks
LONGEST = 64  # vectors along a block that is long, by rule
FEWEST = 5  # columns that are worth a turn: of fewer, vectors are pieced together by shuffles
MAX_SHUFFLED_ELEMENTS = (
    3  # elements apart: a few shuffles pick them from the vectors that hold them
)
WASTE = 1.1  # at most so many elements are moved per element, as the last block is shifted


@frozen
class _Transpose:
    """The inputs that are contiguous along `read` while the output is along `written`.

    A block has so many `rows` along the former and `columns` along the latter: whole vectors, or
    all that there are.
    """

    buffers: tuple[str, ...]
    read: str
    written: str
    rows: int
    columns: int


def transposed_sketches(kernel: FusedKernel, target: Target, threads: int) -> list[Sketch]:
    """The sketch, if the kernel moves data between orders in which whole vectors fit."""
    merged, merges = merge_all(kernel)
    merged, flattened = flatten_single_rows(merged)
    lanes = vector_lanes(merged, target)
    turn = _turn(merged, lanes)
    if turn is None:
        return []
    facts = KernelFacts(merged, lanes, threads, target)
    extents = facts.extents
    line = max(1, target.machine.l1.line_bytes // (lanes * merged.output.dtype.bytes))
    # A few long streams along the longer axis, each of whole cache lines of the other side.
    longer = "read" if extents[turn.read] > extents[turn.written] else "written"
    choices: list[tuple[Choice, ChoiceValue]] = []
    sides = ("read", turn.read, turn.rows), ("written", turn.written, turn.columns)
    for side, axis, width in sides:
        blocks = tuple(b for b in BLOCKS if b * width <= extents[axis])
        most = min(LONGEST, _kept(facts, turn, axis) if line > 1 else LONGEST)
        most = most if side == longer else line
        longest = _longest([b for b in blocks if b <= most], width, extents[axis])
        choices.append((Choice(side, blocks), longest))
    order = "read" if _rows_within(merged, turn) else longer
    sides_of = (("order", order), ("inner", longer))
    choices += [(Choice(name, ("read", "written")), side) for name, side in sides_of]
    choices += chunk_choices(merged, threads)

    def plan(values: Values) -> _Candidates:
        return _Candidates(facts, turn, (*merges, *flattened), values)

    sketch = Sketch.planned("transposed", choices, plan)
    blocks_of = {choice.name: choice.values[::-1] for choice, _ in choices[:2]}
    return [evenly_shared(sketch, threads, blocks_of)]


def _kept(facts: KernelFacts, turn: _Transpose, axis: str) -> int:
    """Vectors along an axis of a block, such that lines that vectors share stay in the cache.

    Each element along the axis is another line of the other side. They share half of the ways of
    the first-level cache until the last part of each is read or written.
    """
    name, width = facts.kernel.output.name, turn.rows
    if axis == turn.written:
        name, width = turn.buffers[0], turn.columns
    other = next(operand for operand in facts.operands if operand.name == name)
    stride = other.stride(list(facts.extents).index(axis))
    ways = facts.target.machine.l1.ways // 2
    return max(1, ways * PAGE // (math.gcd(stride, PAGE) * width))


def _longest(blocks: Sequence[int], lanes: int, extent: int) -> int:
    """The longest block whose last one, shifted, repeats little of the one before."""
    return max(
        b for b in blocks if b == 1 or -(-extent // (b * lanes)) * b * lanes <= WASTE * extent
    )


def _turn(kernel: FusedKernel, lanes: int) -> _Transpose | None:
    output = kernel.output
    long = [axis for axis in output.axes if axis.extent > 1]
    if len(kernel.stages) > 1 or output.reduce_axes or len(long) < 2:
        return None
    written = long[-1]
    columns = min(written.extent, lanes)
    if columns < min(FEWEST, lanes):
        return None
    for buffer, axis in product(kernel.inputs, long[:-1]):
        rows = min(axis.extent, lanes)
        pair = {axis.name: rows, written.name: columns}
        if lanes in (rows, columns) and _is_turned(output, buffer, pair, lanes):
            turned = (item.name for item in kernel.inputs if _is_turned(output, item, pair, lanes))
            return _Transpose(tuple(turned), axis.name, written.name, rows, columns)
    return None


def _is_turned(stage: Stage, buffer: Buffer, pair: Mapping[str, int], lanes: int) -> bool:
    """Whether all that a stage reads of the buffer lies side by side along the first axis alone."""
    if buffer.dtype is DType.BOOL or len(set(parts_that_read(stage.body, buffer.name))) != 1:
        return False
    reads = [load for load in loads(stage.body) if load.buffer == buffer.name]
    least = 1 if next(iter(pair.values())) == lanes else MAX_SHUFFLED_ELEMENTS
    return all(_distance(stage, load, buffer.shape, pair) > least for load in reads)


def _distance(output: Stage, load: Load, shape: tuple[int, ...], pair: Mapping[str, int]) -> int:
    """How far apart a load's elements lie along the second axis, if side by side along the first.

    Else 0. Within tiles of so many points, because a blocked index such as c // 8, c % 8 is only
    affine inside of one.
    """
    ranges = {axis.name: (0, axis.extent - 1) for axis in output.axes}
    values = {}
    for name, lanes in pair.items():
        blocks = -(-(ranges[name][1] + 1) // lanes)
        ranges[f"{name}.o"], ranges[f"{name}.i"] = (0, blocks - 1), (0, lanes - 1)
        values[name] = add(mul(index(f"{name}.o"), integer(lanes)), index(f"{name}.i"))
    form, stride = Affine(0, ()), 1
    for extent, item in zip(reversed(shape), reversed(load.indices), strict=True):
        form = form.plus(affine(substitute(item, values), ranges), stride)
        stride *= extent
    inner = [f"{name}.i" for name in pair]
    if any(not isinstance(atom, str) and axes_of(atom) & set(inner) for atom, _ in form.terms):
        return 0
    return form.coefficient(inner[1]) if form.coefficient(inner[0]) == 1 else 0


def _rows_within(kernel: FusedKernel, turn: _Transpose) -> list[str]:
    """Axes of the output between the two of a block, where sizes are dynamic: in memory they are
    inside of the axis that is read along."""
    names = [axis.name for axis in kernel.output.axes] if kernel.limits else []
    if turn.read not in names:
        return []
    return [name for name in names[names.index(turn.read) + 1 :] if name != turn.written]


def _in_blocks(kernel: FusedKernel, ragged: bool) -> bool:
    """Whether elements are read from blocks, of which a vector should take no part of two.

    None does of wide elements unless the last one is not full, where it would be shifted.
    """
    narrow = any(buffer.dtype.bytes < 4 for buffer in kernel.inputs)
    return divisions(kernel) > 0 and (narrow or ragged)


class _Candidates:
    """What is decided for n candidates."""

    def __init__(
        self, facts: KernelFacts, turn: _Transpose, merges: tuple[Step, ...], values: Values
    ) -> None:
        self.facts, self.turn, self.merges, self.values = facts, turn, merges, values
        extents = facts.extents
        rows = _rows_within(facts.kernel, turn)
        self.rows = [Loop(axis, axis, extents[axis]) for axis in rows]
        around = (axis for axis in extents if axis not in (turn.read, turn.written, *rows))
        self.rest = [Loop(axis, axis, extents[axis]) for axis in around]
        self.tiles, self.blocks = [], []
        self.sides = {turn.read: turn.rows, turn.written: turn.columns}
        for side, (axis, width) in zip(("read", "written"), self.sides.items(), strict=True):
            size = values.integers(side) * width
            ragged = extents[axis] % width != 0
            whole = axis != turn.read or not _in_blocks(facts.kernel, ragged)
            self.tiles.append(Loop(f"{axis}.o", axis, extents[axis], size, whole=whole))
            self.blocks.append(Loop(f"{axis}.i.o", axis, size, width))
        # By position: 0 where that of the read axis comes first, from outside or from inside.
        self.outermost = values.are("order", "written").astype(np.int64)
        self.innermost = values.are("inner", "written").astype(np.int64)

    def steps(self) -> list[Step]:
        output = self.facts.kernel.output.name
        read, written = self.turn.read, self.turn.written
        rows = [f"{output}.rows{f'_{i}' if i else ''}" for i in range(len(self.turn.buffers))]
        outer, inner = self.outermost.item(), self.innermost.item()
        loops = [*self.rest, *self._orders()[outer]]
        block = [self.blocks[1 - inner].name, self.blocks[inner].name]
        inside = [f"{read}.i.i", f"{written}.i.i"]
        order = (*(loop.name for loop in (*self.rest, *self.rows)), written, read)
        steps: list[Step] = [*self.merges]
        steps += [
            CacheRead(output, buffer, name, order)
            for buffer, name in zip(self.turn.buffers, rows, strict=True)
        ]
        for tile in self.tiles:
            size = np.asarray(tile.tile).item()
            steps.append(Tile(output, tile.axis, size, "shift" if tile.whole else "peel"))
            steps.append(Tile(output, f"{tile.axis}.i", self.sides[tile.axis]))
        parallel = self._shared(self.outermost.item())
        return [
            *steps,
            Reorder(output, (*(loop.name for loop in loops), *block, *inside)),
            Unroll(output, inside[0]),
            Vectorize(output, inside[1]),
            *parallel_steps(output, parallel, self.values.integers("chunks").item()),
            *(ComputeAt(name, output, block[-1]) for name in rows),
            *(step for name in rows for step in (Unroll(name, written), Vectorize(name, read))),
        ]

    def _orders(self) -> tuple[list[Loop], list[Loop]]:
        """The loops over tiles, and over rows inside of those that are read along, from outside:
        with the former first, and with the latter."""
        read, written = self.tiles
        return [read, *self.rows, written], [written, read, *self.rows]

    def _shared(self, outermost: int) -> list[Loop]:
        """The loops that run in parallel: those of the rest, and where these are few, of tiles."""
        if "chunks" not in self.values.domains:
            return []
        rounds = prod(self.facts.extents[loop.axis] for loop in self.rest)
        if rounds >= ENOUGH * self.facts.threads:
            return self.rest
        first, second = self.tiles[outermost], self.tiles[1 - outermost]
        if not np.any(first.whole):  # a loop with a tail is shared alone, up to there
            return self.rest or [first]
        both = bool(np.all(second.whole)) and not self.rows
        return [*self.rest, first, *[second] * both]

    def shape(self) -> NestShape:
        facts, values = self.facts, self.values
        count, lanes = values.count, facts.lanes
        nest = Nest(list(facts.extents), count)
        read, written = (nest.numbers[name] for name in (self.turn.read, self.turn.written))
        nest.inside[read], nest.inside[written] = self.turn.rows, self.turn.columns
        nest.loop(*self.blocks, which=self.innermost)
        nest.loop(*self.blocks, which=1 - self.innermost)
        for loops in reversed(list(zip(*self._orders(), strict=True))):
            nest.loop(*loops, which=self.outermost)
        for loop in reversed(self.rest):
            nest.loop(loop)
        points = prod(facts.extents.values())
        moved = np.prod([tile.turns * tile.tile for tile in self.tiles], axis=0)
        moved = moved * prod(facts.extents[loop.axis] for loop in (*self.rest, *self.rows))
        parallel = [self._shared(outermost) for outermost in range(len(self.tiles))]
        pieces, grains = pieces_and_grains(values, parallel, self.outermost, facts.threads)
        block = np.full(count, float(lanes) * len(self.turn.buffers))
        return NestShape(
            operands=facts.operands,
            nest=nest,
            operations=moved / lanes,
            body=block,
            accumulators=block,
            registers=block,
            loads=block,
            step=block,
            cycles=moved / lanes,
            flops=moved,
            full=points / moved,
            lanes=np.ones(count),
            aliased=aliased_lines(facts.operands[0].stride(written), block),
            temporary=np.zeros(count),
            pieces=pieces,
            grains=grains,
        )
