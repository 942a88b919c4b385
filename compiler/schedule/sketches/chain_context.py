"""What all candidates of a chain have in common: its parts, and what they give each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from tunefarm.compiler.kernels.chain import chain_parts, follows, lanes_read, part_work, rows_read
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.roles import with_roles
from tunefarm.compiler.schedule.sketches.roles import roles_of
from tunefarm.compiler.schedule.sketches.tile_context import TileContext
from tunefarm.compiler.schedule.sketches.tile_domains import tiles_of
from tunefarm.compiler.schedule.sketches.tile_forms import TileForm
from tunefarm.compiler.schedule.sketches.tile_operands import can_inline
from tunefarm.compiler.schedule.sketches.tiled_reduction import PARALLEL_WORK
from tunefarm.compiler.schedule.steps.placement import STACK_BYTES
from tunefarm.compiler.schedule.vectors import vector_lanes
from tunefarm.compiler.target import Target

MOST_BLOCKS = 6  # of channels that are filtered at a time, unless it is all of them
FILTERED = 0.4  # of the cycles that are counted for depthwise windows (measured on Zen 5)
MOST_WASTE = 1.1  # of the rows, those that are computed twice included


@dataclass(frozen=True)
class ChainPart:
    """A part, with the axis that blocks of rows are made of; what is worked out is kept."""

    context: TileContext
    filters: bool  # each block of channels by itself

    @property
    def kernel(self) -> FusedKernel:
        """The part as a kernel of its own."""
        return self.context.kernel

    @property
    def rows(self) -> str:
        """The row, or where there are none the columns of a product's tile."""
        return self.context.roles.row or self.context.roles.column

    @property
    def extent(self) -> int:
        """How many rows the part gives."""
        return self.context.extents[self.rows]

    @property
    def share_of_count(self) -> float:
        """The part of the cycles that tiles are counted with that windows take: loads overlap."""
        return FILTERED if self.filters and len(self.kernel.inputs) > 1 else 1.0

    @cached_property
    def result_bytes(self) -> int:
        """Bytes of a row of all that the part gives."""
        output = self.kernel.output
        return math.prod(output.shape) // self.extent * output.dtype.bytes // self.stack

    @cached_property
    def batch(self) -> tuple[str, ...]:
        """The outer axes each point of which has rows of its own; others read the same rows."""
        return tuple(axis for axis in self.context.roles.outer if follows(self.kernel, axis))

    @cached_property
    def stack(self) -> int:
        """Points of the batch."""
        return math.prod(self.context.extents[axis] for axis in self.batch)


@dataclass(frozen=True)
class ChainContext:
    """The parts in order; what is worked out is kept."""

    parts: tuple[ChainPart, ...]
    threads: int
    _counted: dict[int, list[int]] = field(default_factory=dict, init=False)

    def rows(self, rows: int) -> list[int]:
        """How many rows each part computes for so many of the last one."""
        if rows not in self._counted:
            counts = [rows]
            for part in reversed(self.parts[1:]):
                counts.insert(0, rows_read(part.kernel, part.rows, counts[0]))
            self._counted[rows] = counts
        return self._counted[rows]

    @cached_property
    def block_rows(self) -> tuple[int, ...]:
        """Sizes of blocks of rows that are nearly even, and for which the stack has room."""
        extent = self.parts[-1].extent
        even = sorted({-(-extent // blocks) for blocks in range(1, extent + 1)})
        return tuple(
            n
            for n in even
            if -(-extent // n) * n <= MOST_WASTE * extent
            and self.bytes(n, MOST_BLOCKS) <= STACK_BYTES
        )

    @cached_property
    def streamed_bytes(self) -> int:
        """Of constants that come anew for each block of rows, as they do not stay in the cache."""
        buffers = [buffer for part in self.parts for buffer in part.kernel.inputs]
        size = sum(buffer.type.bytes for buffer in buffers if buffer.constant)
        return size if size > self.parts[0].context.target.l2_bytes // 2 else 0

    def bytes(self, rows: int, vectors: int | None = None) -> int:
        """What the parts give each other for so many rows of the last one.

        With `vectors` given, what is filtered by itself is computed for so many blocks at a time.
        """
        total = 0
        for part, reader, count in zip(self.parts, self.parts[1:], self.rows(rows), strict=False):
            size = count * part.result_bytes
            if vectors is not None and reader.filters:
                size = size * vectors // max(vectors, part.context.vectors)
            total += size
        return total


def chain_context(kernel: FusedKernel, target: Target, threads: int) -> ChainContext | None:
    """The kernel as a chain whose parts all have register tiles, and some block of rows."""
    parts = tuple(_part(part, target) for part in chain_parts(kernel))
    known = tuple(part for part in parts if part is not None)
    if not known or len(known) < len(parts):
        return None
    if not all(map(_gives_vectors, known, known[1:])):
        return None
    work = sum(part_work(part.kernel) for part in known)
    threads = threads if work >= PARALLEL_WORK else 1
    last = replace(known[-1], context=replace(known[-1].context, threads=threads))
    chain = ChainContext((*known[:-1], last), threads)
    return chain if chain.block_rows else None


def _gives_vectors(part: ChainPart, reader: ChainPart) -> bool:
    """Whether what is read of a part are whole tiles of vectors, where a block has several."""
    context = part.context
    extent = context.extents[context.roles.vector]
    return extent <= context.lanes or lanes_read(reader.kernel) == extent


def _part(kernel: FusedKernel, target: Target) -> ChainPart | None:
    lanes = vector_lanes(kernel, target)
    known = with_roles(kernel, lanes)
    roles = roles_of(known)
    if roles is None or roles.phases or not roles.column:
        return None
    if roles.window and not roles.row:
        # Depthwise, of channels that lie side by side. Else a tile has rows of several blocks.
        if not roles.outer or roles.block:
            return None
        *outer, row = roles.outer
        roles = replace(roles, row=row, outer=tuple(outer))
    context = TileContext(TileForm("tiled", known, (), roles), target, 1)
    if not tiles_of(context) or not can_inline(known, context.prologue, roles.vector):
        return None
    return ChainPart(context, bool(roles.block) and follows(known, roles.block))
