"""The loops of stages that walk along an axis in order: running reductions, and scatters.

Of a scanned stage what was combined so far is carried from one round to the next.
"""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import Affine, affine, affine_range, expr_range
from tunefarm.compiler.expr.combiners import neutral_element
from tunefarm.compiler.expr.nodes import Expr, Select, all_of, binary, index, integer, sub
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.kernels.scatter import NOWHERE
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    Carry,
    If,
    Let,
    LoopKind,
    Memory,
    Scope,
    Store,
    Update,
)
from tunefarm.compiler.loops.leaves import Leaves
from tunefarm.compiler.loops.loop_ranges import Env, Inside, axis_value, free_ranges
from tunefarm.compiler.loops.region import Region
from tunefarm.compiler.loops.stage_loops import StageLoops
from tunefarm.compiler.loops.stage_state import ScannedAxis, ScatteredAxis, StageState
from tunefarm.compiler.types.frozen import frozen, replace


def scan_loops(loops: StageLoops, leaves: Leaves, memory: Memory, region: Region, env: Env) -> Body:
    """The loops that fill `memory` with `region` of the stage.

    Outer loops; from the first loop over the scanned axis on, a carried value for each element of
    the other axes. Raises `ScheduleError` where only a part of the axis is needed.
    """
    state, scanned = loops.state, loops.state.scanned
    assert scanned is not None
    extents = dict(zip((axis.name for axis in state.stage.axes), region.extents, strict=True))
    whole = next(axis.extent for axis in state.stage.axes if axis.name == scanned.axis)
    if extents[scanned.axis] != whole:
        raise ScheduleError(
            f"{state.name} is scanned along all of {scanned.axis}, of which a part is needed"
        )
    derived = [axis for axis in state.order if state.is_part(axis, scanned.axis)]
    first = state.order.index(derived[0])
    outer, inner = state.order[:first], state.order[first:]
    spatial = tuple(axis for axis in inner if axis not in derived)

    def from_first_round(env: Env) -> Body:
        carried = _Carried.of(state, scanned, f"{memory.name}.carried", memory, env)

        def fill(env: Env) -> Body:
            neutral = neutral_element(scanned.combiner, memory.dtype)
            return (Store(carried.memory.name, carried.indices(state, env), neutral),)

        def step(env: Env) -> Body:
            value = leaves.value(loops.placed, state.stage.body, env)
            held = carried.indices(state, env)
            update = Update(carried.memory.name, held, scanned.combiner, value)
            indices = tuple(
                _position(state, axis.name, axis.extent, scanned, env) for axis in state.stage.axes
            )
            return (Carry(memory.name, indices, update, scanned.exclusive),)

        filled = loops.nest(spatial, env, fill, producers=False)
        return (Allocate(carried.memory, Scope.STACK, (*filled, *loops.nest(inner, env, step))),)

    return loops.nest(outer, env, from_first_round)


class _Carried:
    """The buffer of carried values: a box of the axes that are not scanned."""

    def __init__(self, memory: Memory, axes: tuple[str, ...], bases: tuple[Affine, ...]) -> None:
        self.memory, self._axes, self._bases = memory, axes, bases

    @staticmethod
    def of(state: StageState, scanned: ScannedAxis, name: str, like: Memory, env: Env) -> _Carried:
        """The box of elements that loops inside of this point go over."""
        axes = tuple(a.name for a in state.stage.axes if a.name != scanned.axis)
        free = free_ranges(state, env)
        ranges = {**env.ranges, **free}
        bases, extents = [], []
        for axis in axes:
            form = affine(axis_value(state, axis, env), ranges)
            inside = tuple(term for term in form.terms if term[0] in free)
            fixed = tuple(term for term in form.terms if term[0] not in free)
            bases.append(Affine(form.constant, fixed))
            extents.append(affine_range(Affine(0, inside), free)[1] + 1)
        return _Carried(Memory(name, like.dtype, tuple(extents)), axes, tuple(bases))

    def indices(self, state: StageState, env: Env) -> tuple[Expr, ...]:
        """Where the value of the element at this point is."""
        places = (affine(axis_value(state, axis, env), env.ranges) for axis in self._axes)
        return tuple(
            place.plus(base, -1).to_expr() for place, base in zip(places, self._bases, strict=True)
        )


def _position(state: StageState, axis: str, extent: int, scanned: ScannedAxis, env: Env) -> Expr:
    """Where along an axis of its memory the stage's element lies."""
    value = axis_value(state, axis, env)
    if axis == scanned.axis and scanned.reverse:
        value = sub(integer(extent - 1), value)
    return affine(value, env.ranges).to_expr()


# The loops of a stage of the Scatter operator: its data in all of it, then the updates in order.


def scatter_loops(
    loops: StageLoops, leaves: Leaves, memory: Memory, region: Region, env: Env
) -> Body:
    """The loops that fill `memory` with `region` of the stage, which has to be all of it.

    From the first loop over the scattered axis or over the updates on, the loops run twice: without
    the updates' for the data, and without the axis' for the updates.
    """
    state, scattered = loops.state, loops.state.scattered
    assert scattered is not None
    if region.extents != state.stage.shape:
        raise ScheduleError(f"{state.name} scatters into all of its data, and a part is needed")
    own = {loop for loop in state.order if state.is_part(loop, scattered.axis)}
    first = next(i for i, loop in enumerate(state.order) if loop in own or loop in state.reduce)
    outer, inner = state.order[:first], state.order[first:]
    filling = tuple(loop for loop in inner if loop not in state.reduce)
    updating = tuple(loop for loop in inner if loop not in own)
    fill = leaves.leaf(loops.placed, memory, scattered.seed)
    updates = _Updates(loops.with_state(_lanes_apart(state, scattered)), leaves, memory, scattered)

    def inside(env: Env) -> Body:
        return (*loops.nest(filling, env, fill), *updates.nest(updating, env))

    return loops.nest(outer, env, inside)


def _lanes_apart(state: StageState, scattered: ScatteredAxis) -> StageState:
    """The state with lanes that have a position each, one after the other."""
    needed = axes_of(scattered.position)
    kinds = {
        loop: LoopKind.SERIAL
        if kind is LoopKind.VECTORISED and _is_part_of(state, loop, needed)
        else kind
        for loop, kind in state.kinds.items()
    }
    return replace(state, kinds=kinds)


def _is_part_of(state: StageState, loop: str, axes: set[str]) -> bool:
    root = state.root_of(loop)
    return loop in state.reduce or (root is not None and root.name in axes)


def _updates_that_are_there(position: Expr) -> tuple[Expr | None, Expr]:
    """Which updates have a position, where only some have one, and that position."""
    if isinstance(position, Select) and position.otherwise == integer(NOWHERE):
        return position.condition, position.then
    return None, position


@frozen
class _Updates:
    """Makes the loops that write the updates."""

    loops: StageLoops
    leaves: Leaves
    memory: Memory
    scattered: ScatteredAxis

    def nest(self, order: tuple[str, ...], env: Env) -> Body:
        """The loops of `order`; the position is known, and tested, as soon as it can be."""
        state, needed = self.loops.state, axes_of(self.scattered.position)
        known = 1 + max(i for i, loop in enumerate(order) if _is_part_of(state, loop, needed))
        return self.loops.nest(
            order[:known], env, lambda env: self._at_position(order[known:], env)
        )

    def _at_position(self, rest: tuple[str, ...], env: Env) -> Body:
        there, given = _updates_that_are_there(self.scattered.position)
        position = self.leaves.value(self.loops.placed, given, env)
        name = self.loops.fresh(f"{self.memory.name}.at", env)
        place = index(name)
        extent = next(
            axis.extent for axis in self.loops.state.stage.axes if axis.name == self.scattered.axis
        )
        inside = all_of(binary("ge", place, integer(0)), binary("lt", place, integer(extent)))
        bound = replace(env, ranges={**env.ranges, name: expr_range(position, env.ranges)})
        body = self.loops.nest(rest, bound, self._write(place))
        made: Body = (Let(name, position, (If(inside, body),)),)
        if there is None:
            return made
        return (If(self.leaves.value(self.loops.placed, there, env), made),)

    def _write(self, place: Expr) -> Inside:
        def leaf(env: Env) -> Body:
            stage = self.loops.state.stage
            indices = tuple(
                place if axis.name == self.scattered.axis else self._index(axis.name, env)
                for axis in stage.axes
            )
            value = self.leaves.value(self.loops.placed, stage.body, env)
            if not stage.combiner:
                return (Store(self.memory.name, indices, value),)
            return (Update(self.memory.name, indices, stage.combiner, value),)

        return leaf

    def _index(self, axis: str, env: Env) -> Expr:
        return affine(axis_value(self.loops.state, axis, env), env.ranges).to_expr()
