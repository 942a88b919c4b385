"""ScheduledKernel -> LoopNest: generate the loops that its stages ask for."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import expr_range
from tunefarm.compiler.expr.combiners import neutral_element
from tunefarm.compiler.expr.nodes import Expr, Load, all_of, index, integer, select, sub
from tunefarm.compiler.expr.parts import split_guards
from tunefarm.compiler.expr.walk import axes_of, substitute
from tunefarm.compiler.kernels.accumulate import widened
from tunefarm.compiler.kernels.recurrence import Recurrence, recurrence_among
from tunefarm.compiler.kernels.stage import Stage
from tunefarm.compiler.loops.clamp_loop_bounds import clamp_loop_bounds
from tunefarm.compiler.loops.hoist_positions import hoist_positions
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    Let,
    LoopKind,
    LoopNest,
    Memory,
    Scope,
)
from tunefarm.compiler.loops.leaves import Leaves
from tunefarm.compiler.loops.loop_ranges import (
    Env,
    Inside,
    PlacedStage,
    RangeMap,
    free_ranges,
    padded_extents,
)
from tunefarm.compiler.loops.region import Region, User, required_region, required_regions
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel
from tunefarm.compiler.loops.separate_rows import separate_rows
from tunefarm.compiler.loops.skip_kept import skip_kept
from tunefarm.compiler.loops.stage_loops import StageLoops
from tunefarm.compiler.loops.stage_state import StageState
from tunefarm.compiler.loops.tile_loops import tile_loops
from tunefarm.compiler.loops.walk_loops import scan_loops, scatter_loops
from tunefarm.compiler.types.frozen import replace

MOST_PRIVATE = 256
"""Bytes of an intermediate result that is private to the thread, not in the workspace."""


def lower_kernel(scheduled: ScheduledKernel) -> LoopNest:
    """The loop nest of a scheduled kernel; `ScheduleError` if its stages do not fit together."""
    kernel = scheduled.kernel.checked_rows()
    ended = clamp_loop_bounds(bounded_loops(scheduled), kernel.limits)
    return skip_kept(hoist_positions(separate_rows(ended)), kernel)


def bounded_loops(scheduled: ScheduledKernel) -> LoopNest:
    """The same, with loops that all run to their bounds."""
    return _Lowering(scheduled).run()


class _Lowering:
    def __init__(self, scheduled: ScheduledKernel) -> None:
        self.scheduled = scheduled
        self.kernel = scheduled.kernel
        self.leaves = Leaves(scheduled)
        self.recurrence = checked_recurrence(scheduled)
        self._names = itertools.count(1)
        layouts = scheduled.layouts
        self.inputs = tuple(
            Memory(
                buffer.name,
                buffer.dtype,
                layouts[buffer.name].shape(buffer.shape)
                if buffer.name in layouts
                else buffer.shape,
                buffer.pitch,
            )
            for buffer in self.kernel.inputs
        )
        stage = scheduled.stages[-1].stage
        self.output = Memory(stage.name, stage.dtype, stage.shape, self.kernel.pitch)

    def run(self) -> LoopNest:
        states = self.scheduled.stages
        roots = tuple(state for state in states if state.attachment is None)
        output = self.output
        zero: tuple[Expr, ...] = tuple(integer(0) for _ in output.shape)
        stored = {state.name: (output, zero) for state in states if state.in_output}
        body = self._roots(roots, Env({}, {}, {}, {}, stored))
        prefetches = tuple(self.scheduled.prefetches.items())
        return LoopNest(self.kernel.name, self.inputs, output, body, prefetches)

    def _roots(self, states: tuple[StageState, ...], env: Env) -> Body:
        state, rest = states[0], states[1:]
        stage = state.stage
        memory = self.output if state.in_output else Memory(stage.name, stage.dtype, stage.shape)
        zero = tuple(integer(0) for _ in stage.axes)
        if not rest and self.recurrence is not None:
            env = replace(env, locals={**env.locals, stage.name: (memory, zero)})
        statements = self._stage(state, Region(zero, stage.shape), memory, env)
        if not rest:
            return statements
        if state.in_output:
            return (*statements, *self._roots(rest, env))
        inner = replace(env, locals={**env.locals, stage.name: (memory, zero)})
        scope = Scope.STACK if self._is_private(memory) else Scope.WORKSPACE
        return (Allocate(memory, scope, (*statements, *self._roots(rest, inner))),)

    def _is_private(self, memory: Memory) -> bool:
        """A few values on the way to one number, for one thread: they may stay in registers."""
        kinds = (kind for state in self.scheduled.stages for kind in state.kinds.values())
        is_one = math.prod(self.kernel.output.shape) == 1
        return is_one and memory.type.bytes <= MOST_PRIVATE and LoopKind.PARALLEL not in kinds

    def _stage(
        self,
        state: StageState,
        region: Region,
        memory: Memory,
        env: Env,
        places: Mapping[str, Expr] | None = None,
    ) -> Body:
        """The loops that fill `memory`, from `places` on, with `region` of the stage."""
        stage = state.stage
        extents = {
            axis.name: extent for axis, extent in zip(stage.axes, region.extents, strict=True)
        }
        extents |= {axis.name: axis.extent for axis in stage.reduce_axes}
        offsets = {axis.name: base for axis, base in zip(stage.axes, region.base, strict=True)}
        start = replace(env, values={}, extents=extents, bases={}, guards=())
        loops = StageLoops(PlacedStage(state, offsets, places or {}), self._names, self._attached)
        if state.scanned is not None:
            return scan_loops(loops, self.leaves, memory, region, start)
        if state.scattered is not None:
            return scatter_loops(loops, self.leaves, memory, region, start)
        if not stage.reduce_axes:
            leaf = self.leaves.leaf(loops.placed, memory, stage.body)
            return loops.nest(state.order, start, leaf)
        if stage.accumulator is None:
            return self._reduction(loops, memory, memory, start)
        held = Memory(f"{memory.name}.accumulated", stage.accumulator, memory.shape)
        return (Allocate(held, state.scope, self._reduction(loops, held, memory, start)),)

    def _reduction(self, loops: StageLoops, held: Memory, memory: Memory, env: Env) -> Body:
        """Outer loops; then the initial value and the updates, from the first reduce axis on.

        Terms are joined in `held`, which is then stored to `memory` unless it is the same.
        """
        state, stage, leaf = loops.state, loops.state.stage, partial(self.leaves.leaf, loops.placed)
        first = next(i for i, axis in enumerate(state.order) if axis in state.reduce)
        outer, inner = state.order[:first], state.order[first:]
        spatial = tuple(axis for axis in inner if axis not in state.reduce)
        initial = neutral_element(stage.combiner, held.dtype)
        guards, body = split_guards(stage.body, stage.combiner)
        body = widened(body, stage.combiner, held.dtype) if held is not memory else body
        lanes = state.vector_roots()
        per_lane = [guard for guard in guards if axes_of(guard) & lanes]
        if per_lane:
            # What differs between the lanes of a vector cannot be a branch.
            guards = [guard for guard in guards if not axes_of(guard) & lanes]
            body = select(all_of(*per_lane), body, initial)
        fill = leaf(held, initial, indices_only=True)
        update = leaf(held, body, stage.combiner)
        store = leaf(memory, held, indices_only=True)

        def from_first_reduce_axis(env: Env) -> Body:
            if state.tiled is not None:
                return tile_loops(loops, self.leaves, held, self._shapes(held, env), env)
            filled = loops.nest(spatial, env, fill, producers=False)
            updating = replace(env, guards=tuple(guards))
            updated = loops.nest(inner, updating, update)
            if held is memory:
                return (*filled, *updated)
            stored = loops.nest(spatial, env, store, producers=False)
            return (*filled, *updated, *stored)

        return loops.nest(outer, env, from_first_reduce_axis)

    def _shapes(self, held: Memory, env: Env) -> dict[str, tuple[int, ...]]:
        """How the inputs, and what is computed so far, lie in memory."""
        known = (*self.inputs, *(memory for memory, _ in env.locals.values()), held)
        return {memory.name: memory.shape for memory in known}

    def _attached(self, placed: PlacedStage, axis: str, env: Env, deeper: Inside) -> Body:
        """Compute the producers that are attached to this loop, then go on."""
        state = placed.state
        producers = [
            other
            for other in self.scheduled.stages
            if other.attachment is not None
            and other.attachment.consumer == state.name
            and other.attachment.axis == axis
        ]
        if not producers:
            return deeper(env)
        nested = [
            other.stage
            for other in self.scheduled.stages
            if self.scheduled.is_inside(other, state, axis)
        ]
        values, free = placed.values(env), free_ranges(state, env)
        padded = padded_extents(state) if self.leaves.masks else {}
        consumer = User.of(state.stage, values, {**env.ranges, **free})
        kept = {o.name: _own_load(o) for o in producers if o.kept or o.in_output}
        consumer = replace(consumer, loads=(*consumer.loads, *kept.values()))
        moved = _Starts(dict(env.ranges), self._names, env.starts)
        regions = required_regions(nested, consumer, free, moved.ranges, padded, moved.bind)
        starts = moved.used_by([regions[producer.name] for producer in producers])
        env = replace(env, ranges=moved.ranges, starts={**env.starts, **starts})
        for name, load in kept.items():
            other, reader = self.scheduled.stage(name), replace(consumer, loads=(load,))
            own = required_region(other.stage, [reader], free, moved.ranges, padded)
            if other.in_output:
                own, regions[name] = (_existing(r, other.stage) for r in (own, regions[name]))
            if own != regions[name]:
                raise ScheduleError(f"more of {name} is read in the loop than is kept of it")
        stored = [
            other
            for producer in producers
            for other in self.scheduled.stages
            if other.kept and other.attachment and other.attachment.consumer == producer.name
        ]
        memories = {other.name: self._stored_memory(other, regions) for other in stored}
        inside = replace(env, locals={**env.locals, **memories})
        body = self._emit_producers(producers, regions, inside, deeper)
        for other in stored:
            body = (Allocate(memories[other.name][0], other.scope, body),)
        for value, name in reversed(starts.items()):
            body = (Let(name, value, body),)
        return body

    def _stored_memory(
        self, state: StageState, regions: Mapping[str, Region]
    ) -> tuple[Memory, tuple[Expr, ...]]:
        """Room for all of the stage that the loops of another one will compute."""
        assert state.attachment is not None
        within = self.scheduled.stage(state.attachment.consumer).stage
        box, names = regions[within.name], [axis.name for axis in within.axes]
        places = [names.index(axis.name) for axis in state.stage.axes]
        base = tuple(box.base[place] for place in places)
        extents = tuple(box.extents[place] for place in places)
        needed = regions[state.name]
        if base != needed.base or any(map(operator.lt, extents, needed.extents)):
            raise ScheduleError(f"{within.name} does not compute all of {state.name} that is read")
        return Memory(state.name, state.stage.dtype, extents), base

    def _emit_producers(
        self,
        producers: list[StageState],
        regions: dict[str, Region],
        env: Env,
        deeper: Inside,
    ) -> Body:
        if not producers:
            return deeper(env)
        producer, rest = producers[0], producers[1:]
        region = regions[producer.name]
        if producer.kept or producer.in_output:
            memory, base = env.locals[producer.name]
            places = {
                axis.name: sub(begin, first)
                for axis, begin, first in zip(producer.stage.axes, region.base, base, strict=True)
            }
            statements = self._stage(producer, region, memory, env, places)
            return (*statements, *self._emit_producers(rest, regions, env, deeper))
        memory = Memory(producer.name, producer.stage.dtype, region.extents)
        statements = self._stage(producer, region, memory, env)
        inner = replace(env, locals={**env.locals, producer.name: (memory, region.base)})
        ahead = self.scheduled.copies.get(producer.name)
        if ahead is not None:
            axes = (axis.name for axis in producer.stage.axes)
            begin = dict(zip(axes, region.base, strict=True))
            indices = tuple(substitute(item, begin) for item in ahead.first.indices)
            ahead = replace(ahead, first=replace(ahead.first, indices=indices))
        return (
            Allocate(
                memory,
                producer.scope,
                (*statements, *self._emit_producers(rest, regions, inner, deeper)),
                ahead,
            ),
        )


@dataclass(slots=True)
class _Starts:
    """Where regions begin that were moved inside of their tensors: variables with their values."""

    ranges: RangeMap  # of all variables in scope, these included
    names: Iterator[int]
    outside: Mapping[Expr, str]  # those that are bound already
    values: dict[Expr, str] = field(default_factory=dict)

    def bind(self, name: str, value: Expr) -> Expr:
        """The variable that has this value, called `name` if that is free."""
        known = self.outside.get(value) or self.values.get(value)
        if known is not None:
            return index(known)
        if name in self.ranges:
            name = f"{name}.{next(self.names)}"
        self.values[value] = name
        self.ranges[name] = expr_range(value, self.ranges)
        return index(name)

    def used_by(self, regions: Sequence[Region]) -> dict[Expr, str]:
        """The new variables that these regions begin at, in the order in which they are bound."""
        used = {name for region in regions for base in region.base for name in axes_of(base)}
        for value, name in reversed(self.values.items()):
            if name in used:
                used |= axes_of(value)
        return {value: name for value, name in self.values.items() if name in used}


def _existing(region: Region, stage: Stage) -> Region:
    """The region without what masked tiles have beyond the stage."""
    pairs = zip(region.extents, stage.axes, strict=True)
    return replace(region, extents=tuple(min(extent, axis.extent) for extent, axis in pairs))


def _own_load(state: StageState) -> Load:
    """Of what is stored for later: the element at the axes of the loops it is computed in."""
    indices = tuple(index(axis.name) for axis in state.stage.axes)
    return Load(state.stage.dtype, state.name, indices)


def checked_recurrence(scheduled: ScheduledKernel) -> Recurrence | None:
    """The recurrence that a scheduled kernel computes, None if it computes none.

    `ScheduleError` unless its output has one loop over the steps, in order, outside of which are
    only loops over parts that never read one another, and inside of which is all else.
    """
    try:
        recurrence = recurrence_among(tuple(state.stage for state in scheduled.stages))
    except ValueError as error:
        raise ScheduleError(str(error)) from None
    if recurrence is None:
        return None
    output, axis = scheduled.stages[-1], recurrence.axis
    if axis not in output.order or output.is_parallel(axis):
        raise ScheduleError(f"{output.name} is not walked along {axis}, step after step")
    if output.kinds.get(axis, LoopKind.SERIAL) is not LoopKind.SERIAL:
        raise ScheduleError(f"the steps of {output.name} along {axis} can only be a serial loop")
    for loop in output.order[: output.position(axis)]:
        if not all(part in recurrence.apart for part in _roots(output, loop)):
            raise ScheduleError(f"steps along {axis} read across loop {loop} outside of them")
    for name in recurrence.stages[:-1]:
        if not scheduled.is_inside(scheduled.stage(name), output, axis):
            raise ScheduleError(f"{name} is computed outside of the steps of {output.name}")
    return recurrence


def _roots(state: StageState, loop: str) -> list[str]:
    """The axes that a loop goes over parts of."""
    found = [state.root_of(part) for part in state.fusions.get(loop, (loop,))]
    return [axis.name if axis is not None else "" for axis in found]
