"""The loops of a tiled reduction that n candidates decide: over tiles, and over the sums' terms."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np

from tunefarm.compiler.schedule.nest_shape import Loop
from tunefarm.compiler.schedule.sketches.operand_copies import attached_axis
from tunefarm.compiler.schedule.sketches.phases import phase_cuts
from tunefarm.compiler.schedule.sketches.tile_context import LoopOrder, TileContext
from tunefarm.compiler.schedule.space import Values
from tunefarm.compiler.types.frozen import frozen

LONG_REDUCTION = 32  # steps, that are worth code of their own for each phase
MAX_UNROLLED = 640  # multiply-adds in the innermost body: code that still fits the caches


@frozen
class Tiles:
    """The loops over tiles in one order, outermost first, and which loops run in parallel."""

    order: LoopOrder
    loops: list[Loop]
    parallel: list[Loop]
    column: Loop


class TileLoops:
    """The loops of n candidates: outer axes, tiles in each order, unrolled steps of the sums."""

    def __init__(self, context: TileContext, values: Values) -> None:
        self.context, self.values = context, values
        self.columns, self.vectors = values.pairs("tile")
        self.inline = values.are("padding", "inline")
        self.attached = attached_axis(context)
        roles, extents = context.roles, context.extents
        self.outer = [Loop(axis, axis, extents[axis]) for axis in roles.outer]
        self.blocks, self.even_blocks = self._blocks(), self._blocks(even=True)
        self.row = Loop(roles.row, roles.row, context.extent(roles.row))
        self.column = self._column(roles.column, context.extent(roles.column))
        cuts: dict[str, tuple[int, ...]] = {}
        shared = context.threads > 1 and context.streamed
        if context.reduction >= LONG_REDUCTION and not shared:
            cuts = phase_cuts(context.kernel, roles.phases)
        self.phases = [
            Loop(axis, axis, extents[axis], cuts=cuts.get(axis, ())) for axis in roles.phases
        ]
        spellings = values.domains["loops"]
        self.tiles = [self._tiles(LoopOrder.parse(str(spelling))) for spelling in spellings]
        # The reduction's unrolled steps, halved until the body is small enough.
        orders: Any = values.domains["reduce"]
        self.orders: tuple[tuple[str, ...], ...] = orders
        lengths = np.array([[extents[axis] for axis in order] for order in self.orders])
        self.lengths = lengths[values.positions["reduce"]].T  # [reduce axes, n], outermost first
        inner, outer = values.pairs("unroll")
        inner, tile = np.minimum(inner, self.lengths[-1]), self.columns * self.vectors
        while (large := (inner > 1) & (inner * tile > MAX_UNROLLED)).any():
            inner = np.where(large, inner // 2, inner)
        self.unrolled = inner
        self.unrolls_next = np.zeros(values.count, np.bool_)
        if len(self.lengths) > 1:
            small = self.lengths[-2] * inner * tile <= MAX_UNROLLED
            self.unrolls_next = (outer > 1) & (inner == self.lengths[-1]) & small

    def _tiles(self, order: LoopOrder) -> Tiles:
        context, roles = self.context, self.context.roles
        row, column = self.row, self.column
        blocks = self.even_blocks if order.even else self.blocks
        loops: list[Loop] = []
        if order.rows:
            loops = [Loop(f"{roles.row}.o", roles.row, row.extent, order.rows, whole=True)]
            row = Loop(f"{roles.row}.i", roles.row, order.rows)
        if order.columns:
            # A loop with a tail cannot be fused with others.
            shared = context.threads > 1
            loops = [Loop(column.name, roles.column, column.extent, order.columns, whole=shared)]
            column = self._column(f"{roles.column}.i", order.columns)
        if order.blocks:
            loops.append(
                Loop(f"{roles.block}.o", roles.block, context.vectors, order.blocks, whole=True)
            )
            within = min(order.blocks, context.vectors)
            blocks = Loop(f"{roles.block}.i.o", roles.block, within, self.vectors, whole=True)
        by_name = {"row": row, "block": blocks, "column": column}
        loops += [by_name[name] for name in order.names]
        if self.phases:
            # Weights that come from beyond the caches serve all rows before others are read.
            inside = loops.index(row if roles.row else column)
            inside += bool(roles.row and not context.streamed)
            loops[inside:inside] = self.phases
        parallel = self._parallel(order, [*self.outer, *loops])
        if self.column.name not in [loop.name for loop in parallel]:
            return Tiles(order, loops, parallel, column)
        # Fused loops are not partitioned.
        even = replace(column, whole=True, apart=self.inline & (len(parallel) == 1))
        loops, parallel = (
            [even if loop is column else loop for loop in part] for part in (loops, parallel)
        )
        return Tiles(order, loops, parallel, even)

    def _column(self, axis: str, extent: int) -> Loop:
        """The loop over tiles of columns; `axis` is the column's, or its inner part."""
        shifted = self.values.are("rest", "shift")
        return Loop(
            f"{axis}.o", self.context.roles.column, extent, self.columns, shifted, self.inline
        )

    def _blocks(self, even: bool = False) -> Loop:
        """The loop over tiles of vectors, which in an `even` one have no tail."""
        roles, lanes, turned = self.context.roles, self.context.lanes, self.context.form.turned
        if turned:
            whole = not self.context.ragged
            channels, tile = self.context.channels, self.vectors * lanes
            return Loop(f"{turned}.o", roles.block, channels, tile, whole=whole)
        if roles.block:
            name, extent = f"{roles.block}.o", self.context.vectors
            return Loop(name, roles.block, extent, self.vectors, whole=True)
        extent = self.context.extents[roles.vector]
        if extent % lanes:
            tile = np.minimum(self.vectors * lanes, extent) if even else self.vectors * lanes
            return Loop(f"{roles.vector}.o", roles.vector, extent, tile, whole=even)
        return Loop(f"{roles.vector}.o.o", roles.vector, extent // lanes, self.vectors, whole=True)

    def _parallel(self, order: LoopOrder, loops: list[Loop]) -> list[Loop]:
        """The loops that are fused and run in parallel: all but the innermost of several.

        In an order in which they are `shared`, the innermost too.

        Those that stand apart cannot be fused: a loop with a tail, the rows of a tile of rows.
        Alone, a loop with a tail runs in parallel up to there.
        """
        roles = self.context.roles
        if self.context.threads == 1:
            return []
        if self.attached:
            return loops[: roles.outer.index(self.attached) + 1]
        if self.context.form.unpacked:
            return [self.blocks]
        if order.shared:
            return loops
        apart = {f"{roles.row}.i"}
        if self.context.ragged and not order.even:
            apart.add(self.blocks.name)
        apart |= {loop.name for loop in self.phases if loop.cuts}
        fused = takewhile(lambda loop: loop.name not in apart, loops[:-1] or loops)
        return list(fused) or loops[:1]
