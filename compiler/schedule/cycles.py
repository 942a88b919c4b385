"""Cycles of many candidates at once: their arithmetic, and the data that their loops move.

What a nest computes is counted where its loops are known, in its sketch (`NestShape.cycles`). What
it moves follows from the loops for all sketches alike: the largest inner nest whose data fits a
cache keeps it, and each operand comes anew for each turn of the loops outside that move it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tunefarm.compiler.schedule.nest_shape import NestShape, Numbers
from tunefarm.compiler.target import Target

HIDDEN_SHARE = 0.5  # of the time in which data of the caches comes, the core computes: of loops of
# 40 kernels that move it again, timed in pairs on a Zen 3, about half of it showed

OF_SHARED = 0.5  # of the cache that cores share is there for a kernel's data


def cycles(shape: NestShape, target: Target) -> Numbers:
    """Of a core of the target's machine, for each of n candidates; shape [n].

    What the caches hold comes partly while the core computes; it waits for what lies beyond.
    """
    machine = target.machine
    near, far, beyond = (item.streamed for item in transfers_of(shape, target))
    cached = near / machine.l2.read + far / machine.l3.read
    hidden = HIDDEN_SHARE * np.minimum(cached, shape.cycles)
    total = shape.cycles + cached - hidden + beyond / machine.memory.read
    return np.asarray(total, np.float64)


class Transfers(NamedTuple):
    """What a cache holds of the nest, and what is brought into it: shapes [n]."""

    fill: Numbers  # data of the largest inner nest that fits / size of the cache
    spill: Numbers  # data of the next larger nest / size of the cache
    streamed: Numbers  # bytes


def transfers_of(shape: NestShape, target: Target) -> list[Transfers]:
    """The transfers into the target's three caches, the nearest first.

    The largest inner nest whose data fits keeps it: each operand then comes once for each turn of
    the loops outside, but for those next to the nest that do not move it.
    """
    nest = shape.nest
    axes, count = nest.inside.shape
    # below: [caches, n], [caches, operands, n]
    sizes = (target.l1_bytes, target.l2_bytes, target.l3_bytes)
    size = np.maximum(np.array(sizes, np.float64), 1.0)[:, None]
    here = np.arange(count)
    order, trips_of = nest.order(), nest.trips()
    extents = np.empty((axes, len(order) + 1, count))  # before the first loop and after each
    extents[:, 0] = nest.inside
    for level, (axis, trips) in enumerate(zip(order, trips_of, strict=True), 1):
        extents[:, level] = extents[:, level - 1]
        extents[axis, level, here] *= trips
    touched = np.stack([operand.footprint(extents) for operand in shape.operands])
    pieces = touched[:, 0]
    fill = pieces.sum(axis=0) / size
    spill = fill.copy()
    moves = np.stack([operand.moves_with(axes) for operand in shape.operands])
    fits = np.ones(fill.shape, np.bool_)  # everything up to the present loop
    next_to = np.ones((len(sizes), *pieces.shape), np.bool_)  # no loop outside has moved it yet
    streamed = np.broadcast_to(pieces, next_to.shape)
    for level, (axis, trips) in enumerate(zip(order, trips_of, strict=True), 1):
        turning = trips > 1
        if not turning.any():
            continue
        grown = touched[:, level]
        total = grown.sum(axis=0) / size
        still = fits & (total <= 1.0)
        fill = np.where(still, total, fill)
        spill = np.where(still | (fits & turning), total, spill)
        moved = moves[:, axis] & turning
        next_to &= still[:, None] | ~moved
        streamed = np.where(still[:, None], grown, streamed * np.where(next_to, 1.0, trips))
        fits = still | (fits & ~turning)
    return [Transfers(*parts) for parts in zip(fill, spill, streamed.sum(axis=1), strict=True)]
