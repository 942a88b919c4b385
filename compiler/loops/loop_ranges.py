"""The ranges of a stage's loops: extents, tiles, tails, and what an axis is worth so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from itertools import pairwise
from typing import TypeAlias

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import Expr, add, integer, mul
from tunefarm.compiler.loops.ir import Body, Memory
from tunefarm.compiler.loops.region import free_index, free_name
from tunefarm.compiler.loops.stage_state import Split, StageState
from tunefarm.compiler.types.frozen import frozen

RangeMap = dict[str, tuple[int, int]]


@frozen
class Dotted:
    """The variable of a dot product, and over how many terms it runs; `widened` as in `Dot`."""

    variable: str
    count: int
    widened: bool


@frozen
class Env:
    """What is known on the way down a nest; changed only by `replace`."""

    values: dict[str, Expr]  # bound axes of the current stage
    extents: dict[str, int]  # extents of its axes, as far as known
    bases: dict[str, Expr]  # where a shifted tile begins, by parent axis
    ranges: RangeMap  # all loop variables in scope
    locals: dict[str, tuple[Memory, tuple[Expr, ...]]]  # stage -> its part and where that begins
    edge: bool = False  # in a part of some loop that runs rarely
    guards: tuple[Expr, ...] = ()  # conditions over root axes that no loop has decided yet
    dot: Dotted | None = None  # the dot product that the statement is
    starts: Mapping[Expr, str] = field(default_factory=dict)
    """Variables that are bound to where regions begin, by their values."""


Inside: TypeAlias = Callable[[Env], Body]
"""Makes what comes inside of a loop, given what is known there."""


@frozen
class PlacedStage:
    """A stage where one region of it is computed, which begins at `offsets`, by axis.

    In memory that holds more of the stage the region begins at `places`.
    """

    state: StageState
    offsets: dict[str, Expr]
    places: Mapping[str, Expr] = field(default_factory=dict)

    def values(self, env: Env) -> dict[str, Expr]:
        """The root axes in the whole stage, over bound and free variables."""
        stage = self.state.stage
        values = {axis.name: axis_value(self.state, axis.name, env) for axis in stage.reduce_axes}
        for axis in stage.axes:
            value = axis_value(self.state, axis.name, env)
            values[axis.name] = add(self.offsets[axis.name], value)
        return values


@frozen
class Piece:
    """A part of a loop's range, with the extents of the tile inside.

    An `edge` is a part that runs rarely: a tail, or an iteration that stands alone.
    """

    start: int
    stop: int
    extents: dict[str, int]
    edge: bool


def axis_value(state: StageState, axis: str, env: Env) -> Expr:
    """An axis over bound loop variables, or over a free variable where no loop bound it yet."""
    if axis in env.values:
        return env.values[axis]
    split = state.splits.get(axis)
    if split is None:
        return free_index(axis)
    base = env.bases.get(axis)
    if base is None:
        outer = axis_value(state, split.outer, env)
        if outer == free_index(split.outer):
            return free_index(axis)
        base = mul(outer, integer(split.tile(env.extents[split.parent])))
    return add(base, axis_value(state, split.inner, env))


def pieces_of(state: StageState, axis: str, env: Env) -> list[Piece]:
    """The parts of a loop's range, in order."""
    split = state.splits_by_outer.get(axis)
    extents = enclosing_tile(state, split, env)
    tail: list[Piece] = []
    if split is None:
        stop = extent_of(state, axis, env)
    else:
        whole = extent_of(state, split.parent, env)
        factor = split.tile(whole)
        stop, rest = divmod(whole, factor)
        tail_extents = {**extents, split.parent: whole, split.inner: rest}
        extents = {**extents, split.parent: whole, split.inner: factor}
        if rest and split.whole:
            stop += 1
        elif rest:
            tail = [Piece(stop, stop + 1, tail_extents, stop > 0)]
    if axis in state.fusions:
        for part in state.fusions[axis]:
            part_split = state.splits_by_outer.get(part)
            if part_split is not None:
                whole = extent_of(state, part_split.parent, env)
                factor = part_split.tile(whole)
                if whole % factor and not part_split.whole:
                    raise ScheduleError(
                        f"{part} is fused: its tile cannot be peeled ({whole} by {factor})"
                    )
                extents |= enclosing_tile(state, part_split, env)
                extents |= {part_split.parent: whole, part_split.inner: factor}
    cuts = state.cuts.get(axis)
    if cuts is None or stop == 0:
        return [Piece(0, stop, extents, False), *tail] if stop else tail
    first, last = cuts.first, cuts.last
    if first + last and stop <= first + last + 1:
        return [*(Piece(i, i + 1, extents, False) for i in range(stop)), *tail]
    inside = [cut for cut in sorted(set(cuts.inside)) if first < cut < stop - last]
    return [
        *(Piece(i, i + 1, extents, True) for i in range(first)),
        *(Piece(*ends, extents, False) for ends in pairwise([first, *inside, stop - last])),
        *(Piece(i, i + 1, extents, True) for i in range(stop - last, stop)),
        *tail,
    ]


def enclosing_tile(state: StageState, split: Split | None, env: Env) -> dict[str, int]:
    """That tile's extents, where the loop's axis was split off another tile's outer part."""
    above = state.splits_by_outer.get(split.parent) if split is not None else None
    if above is None:
        return {}
    whole = extent_of(state, above.parent, env)
    factor = above.tile(whole)
    if whole % factor and not above.whole:
        raise ScheduleError(f"{above.outer} is tiled again: {factor} does not divide {whole}")
    return {
        **enclosing_tile(state, above, env),
        above.parent: whole,
        above.inner: factor,
    }


def padded_extent(state: StageState, axis: str, env: Env) -> int:
    """How far the loops over an axis will reach: beyond its extent where its tiles are masked."""
    extent = env.extents[axis]
    split = state.splits.get(axis)
    if split is None or not split.masked or split.tile(extent) < split.factor:
        return extent
    return -(-extent // split.factor) * split.factor


def free_ranges(state: StageState, env: Env) -> RangeMap:
    """Ranges of the variables that stand for axes which no loop has bound yet."""
    names = [axis.name for axis in (*state.stage.axes, *state.stage.reduce_axes)]
    names += [split.inner for split in state.splits.values()]
    return {
        free_name(name): (0, padded_extent(state, name, env) - 1)
        for name in names
        if name in env.extents
    }


def padded_extents(state: StageState) -> dict[str, int]:
    """By root axis that is tiled with a mask, itself or in a part: how far its tiles may reach."""
    result = {}
    for split in state.splits.values():
        root = state.root_of(split.parent)
        if split.masked and root is not None and split.tile(root.extent) == split.factor:
            result[root.name] = -(-root.extent // split.factor) * split.factor
    return result


def extent_of(state: StageState, axis: str, env: Env) -> int:
    """How many iterations a loop has: of an axis, of a part of one, or of several fused ones."""
    if axis in state.fusions:
        extent = 1
        for part in state.fusions[axis]:
            extent *= extent_of(state, part, env)
        return extent
    split = state.splits_by_outer.get(axis)
    if split is not None:
        whole = extent_of(state, split.parent, env)
        return -(-whole // split.tile(whole))
    if axis not in env.extents:
        raise ScheduleError(f"loop {axis} of {state.name} is inside of its own tile's loop")
    return env.extents[axis]
