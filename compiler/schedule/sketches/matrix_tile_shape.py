"""The loops round matrix tiles that n candidates decide, and their shape as arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tunefarm.compiler.expr.nodes import Load
from tunefarm.compiler.machine.amx_set_up import TilePalette
from tunefarm.compiler.schedule.nest_shape import Counts, Loop, Nest, NestShape, Numbers
from tunefarm.compiler.schedule.sketches.operand_copies import attached_axis
from tunefarm.compiler.schedule.sketches.parallel_choices import pieces_and_grains
from tunefarm.compiler.schedule.sketches.tile_context import TileContext
from tunefarm.compiler.schedule.sketches.tile_domains import COPY_CYCLES
from tunefarm.compiler.schedule.space import Values

LOAD_CYCLES = 0.5  # of a tile's row, which is a cache line
SUM_CYCLES = 2.0  # of a row of sums that is stored, and read again by what follows
ORDERS = ("columns", "blocks")
"""What the outer one of the two loops over tiles goes along."""


@dataclass(frozen=True)
class TileSizes:
    """What the tiles of a form hold: `steps` of the sum, `lanes`, and rows up to `most_rows`.

    The left factor is `data`. A tile has the steps of several points of `group_axis`.
    """

    axis: str
    terms: int
    steps: int
    lanes: int
    most_rows: int
    most_steps: int
    data: Load
    group_axis: str = ""
    groups: int = 1

    def rows(self, columns: Counts | int, extent: int) -> Counts:
        """Rows of a tile, of which `columns` lie along an axis of this extent."""
        return np.asarray(np.minimum(self.most_rows, extent // np.asarray(columns)))

    def cycles(self, high: Numbers, wide: Numbers, extent: int) -> Numbers:
        """Of a step of the sum in so many tiles along an axis of this extent, and along vectors.

        A product of tiles takes as many cycles as the left one has rows; loads go on meanwhile.
        """
        rows = self.rows(high.astype(np.int64), extent)
        loads = LOAD_CYCLES * (high * rows + wide * self.steps * self.groups)
        return np.asarray(np.maximum(high * wide * rows, loads), np.float64)


class MatrixTileLoops:
    """The loops over blocks of `high` x `wide` tiles, `rows` rows each, in both orders."""

    def __init__(self, context: TileContext, sizes: TileSizes, values: Values) -> None:
        self.context, self.sizes, self.values = context, sizes, values
        self.high, self.wide = values.pairs("tile")
        self.columns = context.extent(context.roles.column)
        self.rows = sizes.rows(self.high, self.columns)
        self.which = values.are("loops", ORDERS[1]).astype(np.int64)
        self.loops = [self._loops(order) for order in ORDERS]
        self.parallel = [self._parallel(loops) for loops in self.loops]

    def _loops(self, order: str) -> list[Loop]:
        """Outermost first."""
        context, roles = self.context, self.context.roles
        blocks = f"{roles.block}.o" if roles.block else f"{roles.vector}.o.o"
        size, axis = self.high * self.rows, roles.block or roles.vector
        inner = [
            Loop(f"{roles.column}.o", roles.column, self.columns, size, whole=True),
            Loop(blocks, axis, context.vectors, self.wide, whole=True),
        ]
        if order != ORDERS[0]:
            inner.reverse()
        outside = (*roles.outer, roles.row) if roles.row else roles.outer
        return [*(Loop(name, name, context.extents[name]) for name in outside), *inner]

    def _parallel(self, loops: list[Loop]) -> list[Loop]:
        """The loops that threads share: all, or those that copies are made within."""
        if "chunks" not in self.values.domains:
            return []
        attached = attached_axis(self.context)
        if attached:
            names = [loop.name for loop in loops]
            return loops[: names.index(attached) + 1]
        return loops

    def shape_in(self, palette: TilePalette) -> NestShape:
        """See `NestShape`; a vector operation here is a product of two tiles.

        `palette` says how many tiles there are: their share in use is given as that of registers.
        """
        context, sizes, extents = self.context, self.sizes, self.context.extents
        roles, count = context.roles, self.values.count
        high, wide = self.high.astype(np.float64), self.wide.astype(np.float64)
        products, tiles = high * wide, high * wide + high + wide
        turns = np.ones((len(ORDERS), count))
        for row, loops in enumerate(self.loops):
            for loop in loops:
                turns[row] *= loop.turns
        blocks = turns[self.which, np.arange(count)]
        steps = context.reduction / (sizes.steps * sizes.groups)
        points = blocks * products * self.rows * sizes.lanes
        sums = math.prod(axis.extent for axis in context.anchor.axes)
        copied = context.copied / (context.lanes * context.element_bytes) * COPY_CYCLES
        cycles = steps * blocks * sizes.cycles(high, wide, self.columns)
        cycles = cycles + blocks * products * self.rows * SUM_CYCLES + copied
        pieces, grains = pieces_and_grains(self.values, self.parallel, self.which, context.threads)
        lanes = extents[roles.vector] / (-(-extents[roles.vector] // sizes.lanes) * sizes.lanes)
        filled = sizes.steps * sizes.groups / sizes.most_steps
        size = high * self.rows
        whole = np.floor(self.columns / size) * size / self.columns
        return NestShape(
            operands=context.operands,
            nest=self._nest(),
            operations=steps * blocks * products,
            body=products,
            accumulators=products,
            registers=tiles / palette.tiles * context.target.vector_registers,
            loads=high + wide,
            step=products,
            cycles=cycles,
            flops=2.0 * context.terms * points * context.reduction,
            full=whole * np.floor(context.vectors / wide) * wide / context.vectors,
            lanes=np.full(count, lanes * filled),
            aliased=context.aliased(self.rows.astype(np.float64), np.ones(count)),
            temporary=np.full(count, 2.0 * (context.copied + sums * context.anchor.dtype.bytes)),
            pieces=pieces,
            grains=grains,
        )

    def _nest(self) -> Nest:
        """The loops; the body is one step of the sums of a block of tiles."""
        context, sizes, roles = self.context, self.sizes, self.context.roles
        nest = Nest(list(context.extents), self.values.count)
        inside: dict[str, Counts | int] = {
            roles.column: self.high * self.rows,
            sizes.axis: sizes.steps,
        }
        if roles.block:
            inside |= {roles.block: self.wide, roles.vector: sizes.lanes}
        else:
            inside[roles.vector] = self.wide * sizes.lanes
        if sizes.group_axis:
            inside[sizes.group_axis] = sizes.groups
        for axis, points in inside.items():
            nest.inside[nest.numbers[axis]] = points
        others = [axis for axis in roles.reduce if axis != sizes.axis]
        for axis in (sizes.axis, *reversed(others)):
            held = inside.get(axis, 1)
            nest.loop(Loop(axis, axis, context.extents[axis], held))
        for level in zip(*map(reversed, self.loops), strict=True):
            nest.loop(*level, which=self.which)
        return nest
