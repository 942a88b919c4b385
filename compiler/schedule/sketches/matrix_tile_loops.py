"""The loops round matrix tiles that n candidates decide, and their shape as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tunefarm.compiler.expr.nodes import Load
from tunefarm.compiler.machine.amx_set_up import VECTOR_PALETTE, TilePalette
from tunefarm.compiler.schedule.cycles import OF_SHARED
from tunefarm.compiler.schedule.nest_shape import Counts, Loop, Nest, NestShape, Numbers
from tunefarm.compiler.schedule.sketches.operand_copies import attached_axis
from tunefarm.compiler.schedule.sketches.parallel_choices import pieces_and_grains
from tunefarm.compiler.schedule.sketches.tile_context import TileContext
from tunefarm.compiler.schedule.sketches.tile_domains import COPY_CYCLES
from tunefarm.compiler.schedule.space import Values

UNPACK_CYCLES = 6.0  # of a row of a tile that is unpacked: 32 weights (Emerald Rapids)
SUM_CYCLES = 2.0  # of a row of sums that is stored, and read again by what follows
NEAR_SHARE, FAR_SHARE = 0.5, 0.75  # of the first and the second cache, for what is to stay in it

ORDERS = ("columns", "blocks")
"""What the outer one of the two loops over tiles goes along."""
BLOCK_BY_BLOCK = "stacked blocks"
STACKED = ("stacked columns", BLOCK_BY_BLOCK)
"""The same for tiles of even rows: those of a block lie on neighbouring rows of the plane, and the
loop over these is one of those over tiles. Terms are summed in the order in which the constant
factor is packed."""
PANELS = "stacked panels"
"""Like "stacked blocks", for so many rows at a time as stay in the second cache next to a block of
channels: what is larger than that cache on both sides is read again by the panel."""
PREFETCHED = "prefetched blocks"
"""Like "stacked blocks", with tiles of the constant factor asked for before they are loaded."""
EVERY_ORDER = (*ORDERS, *STACKED, PANELS, PREFETCHED)


@dataclass(frozen=True)
class TileSizes:
    """What the tiles of a form hold: `steps` of the sum, `lanes`, and rows up to `most_rows`.

    The left factor is `data`, the right one the input `constant`. A tile has the steps of several
    points of `group_axis`, and loading a row of it takes `row_load` cycles. `packed` are the axes
    of the sum but `axis`, in the order in which the constant factor has them.
    """

    axis: str
    terms: int
    steps: int
    lanes: int
    most_rows: int
    most_steps: int
    data: Load
    constant: str
    packed: tuple[str, ...]
    row_load: float
    group_axis: str = ""
    groups: int = 1

    @property
    def tile_bytes(self) -> int:
        """Of a whole tile of the constant factor."""
        depth = self.steps * self.groups * self.terms
        return depth * self.lanes * self.data.dtype.bytes

    def packed_steps(self, context: TileContext) -> float:
        """Tiles that a sum goes over."""
        return context.reduction / (self.steps * self.groups)

    def rows(self, columns: Counts | int, extent: int) -> Counts:
        """Rows of a tile, of which `columns` lie along an axis of this extent."""
        return np.asarray(np.minimum(self.most_rows, extent // np.asarray(columns)))

    def even_rows(self, columns: Counts | int, extent: int) -> Counts:
        """Rows of tiles that are as few, and as even, as the axis of this extent allows."""
        columns = np.asarray(columns)
        blocks = -(-extent // (self.most_rows * columns))
        rows = -(-extent // (blocks * columns))
        return np.asarray(np.where(rows * columns > extent, extent // columns, rows))

    def cycles(self, high: Numbers, wide: Numbers, extent: int) -> Numbers:
        """Of a step of the sum in so many tiles along an axis of this extent, and along vectors.

        A product of tiles takes as many cycles as the left one has rows; loads go on meanwhile.
        """
        rows = self.rows(high.astype(np.int64), extent)
        loads = self.row_load * (high * rows + wide * self.steps * self.groups)
        return np.asarray(np.maximum(high * wide * rows, loads), np.float64)


class MatrixTileLoops:
    """The loops over blocks of `high` x `wide` tiles, `rows` rows each, in all orders.

    `down` of the tiles lie along the columns of the plane, `beside` of them along its rows.
    """

    def __init__(self, context: TileContext, sizes: TileSizes, values: Values) -> None:
        self.context, self.sizes, self.values = context, sizes, values
        self.high, self.wide = values.pairs("tile")
        self.columns = context.extent(context.roles.column)
        self.which = np.sum([i * values.are("loops", o) for i, o in enumerate(EVERY_ORDER)], axis=0)
        stacked = self.which >= len(ORDERS)
        beside = stacked & bool(context.roles.row)
        self.beside = np.where(beside, self.high, 1)
        self.down = np.where(beside, 1, self.high)
        even = sizes.even_rows(self.down, self.columns)
        self.rows = np.where(stacked, even, sizes.rows(self.high, self.columns))
        self.panel = self._panel() if not context.roles.row else self.rows * self.down
        self.loops = [self._loops(order) for order in EVERY_ORDER]
        self.parallel = [self._parallel(loops) for loops in self.loops]

    def _loops(self, order: str) -> list[Loop]:
        """Outermost first."""
        context, roles = self.context, self.context.roles
        blocks = f"{roles.block}.o" if roles.block else f"{roles.vector}.o.o"
        size, axis = self.down * self.rows, roles.block or roles.vector
        outer = [Loop(name, name, context.extents[name]) for name in roles.outer]
        row, extent = list[Loop](), context.extent(roles.row)
        if roles.row and order not in ORDERS:
            row = [Loop(f"{roles.row}.o", roles.row, extent, self.beside, whole=True)]
        elif roles.row:
            outer.append(Loop(roles.row, roles.row, extent))
        inner = [*row, Loop(f"{roles.column}.o", roles.column, self.columns, size, whole=True)]
        block = Loop(blocks, axis, context.vectors, self.wide, whole=True)
        if not roles.row:
            panel = Loop(f"{roles.column}.o", roles.column, self.columns, self.panel, whole=True)
            within = Loop(f"{roles.column}.i.o", roles.column, self.panel, size, whole=True)
            if order == PANELS:
                return [*outer, panel, block, within]
            outer.append(Loop("", roles.column, 1))  # as many loops as with panels
        return [*outer, *inner, block] if order.endswith("columns") else [*outer, block, *inner]

    def _panel(self) -> Counts:
        """Columns of a panel: whole blocks of rows, as even as they can be; shape [n]."""
        own, steps = self.down * self.rows, self.sizes.packed_steps(self.context)
        block = self.wide * self.sizes.tile_bytes * steps
        room = FAR_SHARE * self.context.target.l2_bytes - block
        each = self._data_bytes(np.asarray(own, np.float64), np.ones(self.values.count))
        most = np.maximum(1, np.floor(room / each)).astype(np.int64)
        turns = -(-self.columns // own)
        panels = -(-turns // most)
        return np.asarray(np.minimum(own * -(-turns // panels), self.columns))

    def summed(self, order: str) -> list[str]:
        """The loops of the sum but that of `sizes.axis`, outermost first, by their axes."""
        if order not in ORDERS:
            return list(self.sizes.packed)
        return [axis for axis in self.context.roles.reduce if axis != self.sizes.axis]

    def _parallel(self, loops: list[Loop]) -> list[Loop]:
        """The loops that threads share: all around panels, or those that copies are made within."""
        if "chunks" not in self.values.domains:
            return []
        attached = attached_axis(self.context)
        if attached:
            names = [loop.name for loop in loops]
            return loops[: names.index(attached) + 1]
        if self.context.form.unpacked:
            return loops[: self._block_position(loops) + 1]
        # How long a loop within panels is, is known inside of the loop over these.
        return [loop for loop in loops if not loop.name.endswith(".i.o")]

    def _turns(self, *axes: str) -> Numbers:
        """Iterations of the loops along these axes, or of all of them, shape [n]."""
        turns = np.ones((len(self.loops), self.values.count))
        for row, loops in enumerate(self.loops):
            for loop in loops:
                if not axes or loop.axis in axes:
                    turns[row] *= loop.turns
        return np.asarray(turns[self.which, np.arange(self.values.count)], np.float64)

    def _block_position(self, loops: Sequence[Loop]) -> int:
        """Of the loop over blocks of the right factor."""
        return next(i for i, loop in enumerate(loops) if loop.axis == self._block_axis)

    def _within_block(self) -> Numbers:
        """Blocks of rows that one block of the constant factor is used for, one after the other."""
        turns = np.ones((len(self.loops), self.values.count))
        for number, loops in enumerate(self.loops):
            for loop in loops[self._block_position(loops) + 1 :]:
                turns[number] *= loop.turns
        return np.asarray(turns[self.which, np.arange(self.values.count)], np.float64)

    def _data_bytes(self, columns: Numbers, rows: Numbers) -> Numbers:
        """What the sums of so many columns, in so many rows of the plane, read of the data."""
        context, roles = self.context, self.context.roles
        numbers = {name: number for number, name in enumerate(context.extents)}
        points = np.ones((len(numbers), self.values.count))
        for axis in roles.reduce:
            points[numbers[axis]] = context.extents[axis]
        points[numbers[roles.column]] = columns
        if roles.row:
            points[numbers[roles.row]] = rows
        constants = {buffer.name for buffer in context.kernel.inputs if buffer.constant}
        total = np.zeros(self.values.count)
        for item in context.operands[:-1]:
            moves = item.moves_with(len(numbers))
            summed = any(moves[numbers[axis]] for axis in roles.reduce)
            if item.name not in constants and moves[numbers[roles.column]] and summed:
                total += item.footprint(points)
        return total

    def _product_cycles(self, steps: float) -> Numbers:
        """Of all products of AMX tiles, or of what they read if that takes longer; shape [n].

        Each step of a block needs its products, its loads, and what the second cache delivers: all
        of the constant factor unless a block of it stays in the first, and what a block of rows
        reads of the data, once if that stays there and else with each load.
        """
        sizes, target = self.sizes, self.context.target
        high, wide, rows = (np.asarray(n, np.float64) for n in (self.high, self.wide, self.rows))
        depth = sizes.steps * sizes.groups
        line = depth * sizes.terms * sizes.data.dtype.bytes
        near = NEAR_SHARE * target.l1_bytes
        within = self._within_block()
        block = wide * sizes.tile_bytes
        kept = block * steps <= near
        right = np.where(kept, block / within, block)
        own = self._data_bytes(self.down * rows, np.asarray(self.beside, np.float64))
        every = high * rows * line
        blocks_inside = np.where(within > 1, 1.0, self._turns(self._block_axis))
        left = np.where(own <= near, np.minimum(own / steps, every) / blocks_inside, every)
        machine = self.context.target.machine
        # A product of 7 rows takes as long as one of 14.
        products = np.maximum(high * wide * machine.tiles.product, machine.tiles.latency)
        loads = sizes.row_load * (high * rows + wide * depth)
        each = np.maximum(np.maximum(products, loads), (right + left) / machine.l2.read)
        return np.asarray(self._turns() * steps * each, np.float64)

    @property
    def _block_axis(self) -> str:
        return self.context.roles.block or self.context.roles.vector

    def _far_cycles(self, steps: float) -> Numbers:
        """Of reading factors anew from beyond the second cache, shape [n].

        The constant factor is read for each block of rows unless a block of it stays in that cache
        from one block of rows to the next, or all of it does; of the data, for each block of
        channels, what the cache has no room for.
        """
        sizes, context = self.sizes, self.context
        target, machine = context.target, context.target.machine
        room = FAR_SHARE * target.l2_bytes
        constant = context.vectors * sizes.tile_bytes * steps
        block = self.wide * sizes.tile_bytes * steps
        plane = self._data_bytes(
            np.full(self.values.count, float(self.columns)),
            np.full(self.values.count, float(context.extent(context.roles.row))),
        )
        blocks, within = self._turns(self._block_axis), self._within_block()
        passes = self._turns() / blocks
        own = self._data_bytes(self.down * self.rows, np.asarray(self.beside, np.float64))
        again = np.where(block + own <= room, passes / within, passes)
        again = np.where(constant + own <= room, 1.0, again)
        if context.form.unpacked:
            again = np.ones_like(again)  # it is unpacked anew, which `_copy_cycles` counts
        inside = block + np.minimum(plane, own * within)
        beyond = np.maximum(0.0, 1.0 - room / inside)
        data_again = np.where(within > 1, (blocks - 1.0) * beyond, 0.0)
        far = (again - 1.0) * constant + data_again * plane
        is_near = constant + plane <= OF_SHARED * target.l3_bytes
        return np.asarray(far / np.where(is_near, machine.l3.read, machine.memory.read), np.float64)

    def shape_in(self, palette: TilePalette) -> NestShape:
        """See `NestShape`; a vector operation here is a product of two tiles.

        `palette` says how many tiles there are: their share in use is given as that of registers.
        """
        context, sizes, extents = self.context, self.sizes, self.context.extents
        roles, count = context.roles, self.values.count
        high, wide = self.high.astype(np.float64), self.wide.astype(np.float64)
        products, tiles = high * wide, high * wide + high + wide
        blocks = self._turns()
        steps = sizes.packed_steps(context)
        points = blocks * products * self.rows * sizes.lanes
        sums = math.prod(axis.extent for axis in context.anchor.axes)
        copied = self._copy_cycles()
        if palette == VECTOR_PALETTE:
            cycles = steps * blocks * sizes.cycles(high, wide, self.columns)
        else:
            cycles = self._product_cycles(steps) + self._far_cycles(steps)
        cycles = cycles + blocks * products * self.rows * SUM_CYCLES + copied
        pieces, grains = pieces_and_grains(self.values, self.parallel, self.which, context.threads)
        lanes = extents[roles.vector] / (-(-extents[roles.vector] // sizes.lanes) * sizes.lanes)
        filled = sizes.steps * sizes.groups / sizes.most_steps
        whole = np.ones(count)
        for extent, size in (
            (self.columns, self.down * self.rows),
            (context.extent(roles.row), self.beside),
        ):
            whole = whole * np.floor(extent / size) * size / extent
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

    def _copy_cycles(self) -> Numbers:
        """Of what is computed before the sums; weights are unpacked for each panel of rows."""
        context, sizes = self.context, self.sizes
        if not context.form.unpacked:
            each = context.lanes * context.element_bytes
            return np.full(self.values.count, context.copied / each * COPY_CYCLES)
        steps = context.vectors * sizes.packed_steps(context) * sizes.steps
        passes = self._turns() / (self._turns(self._block_axis) * self._within_block())
        return np.asarray(passes * steps * UNPACK_CYCLES, np.float64)

    def _nest(self) -> Nest:
        """The loops; the body is one step of the sums of a block of tiles."""
        context, sizes, roles = self.context, self.sizes, self.context.roles
        nest = Nest(list(context.extents), self.values.count)
        inside: dict[str, Counts | int] = {
            roles.column: self.down * self.rows,
            sizes.axis: sizes.steps,
        }
        if roles.row:
            inside[roles.row] = self.beside
        if roles.block:
            inside |= {roles.block: self.wide, roles.vector: sizes.lanes}
        else:
            inside[roles.vector] = self.wide * sizes.lanes
        if sizes.group_axis:
            inside[sizes.group_axis] = sizes.groups
        for axis, points in inside.items():
            nest.inside[nest.numbers[axis]] = points
        summed = {
            axis: Loop(axis, axis, context.extents[axis], inside.get(axis, 1))
            for axis in roles.reduce
        }
        nest.loop(summed[sizes.axis])
        orders = [reversed(self.summed(order)) for order in EVERY_ORDER]
        for level in zip(*orders, strict=True):
            nest.loop(*(summed[axis] for axis in level), which=self.which)
        for level in zip(*map(reversed, self.loops), strict=True):
            nest.loop(*level, which=self.which)
        return nest
