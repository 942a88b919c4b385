"""The loops of a scanned stage: what was combined so far is carried from one round to the next."""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import Affine, affine, affine_range
from tunefarm.compiler.expr.combiners import neutral_element
from tunefarm.compiler.expr.nodes import Expr, integer, sub
from tunefarm.compiler.loops.ir import Allocate, Body, Carry, Memory, Scope, Store, Update
from tunefarm.compiler.loops.leaves import Leaves
from tunefarm.compiler.loops.loop_ranges import Env, axis_value, free_ranges
from tunefarm.compiler.loops.region import Region
from tunefarm.compiler.loops.stage_loops import StageLoops
from tunefarm.compiler.loops.stage_state import ScannedAxis, StageState


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
