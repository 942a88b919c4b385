"""The loops of a stage of the Scatter operator: its data in all of it, then the updates in order.

for i: for c: y[i, c] = data[i, c]
       for u: let p = position(i, u): if 0 <= p < 512: y[i, p] += value(i, u)

Where positions are those of some updates alone, the others are left out before they are read:

       for u: if u < sizes[0]: let p = position(i, u): if 0 <= p < 512: y[i, p] += value(i, u)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import affine, expr_range
from tunefarm.compiler.expr.nodes import Expr, Select, all_of, binary, index, integer
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.kernels.scatter import NOWHERE
from tunefarm.compiler.loops.ir import Body, If, Let, LoopKind, Memory, Store, Update
from tunefarm.compiler.loops.leaves import Leaves
from tunefarm.compiler.loops.loop_ranges import Env, Inside, axis_value
from tunefarm.compiler.loops.region import Region
from tunefarm.compiler.loops.stage_loops import StageLoops
from tunefarm.compiler.loops.stage_state import ScatteredAxis, StageState


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


@dataclass(frozen=True, slots=True)
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
