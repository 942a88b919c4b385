"""ScheduledKernel -> LoopNest: generate the loops that its stages ask for."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

from compiler.errors import ScheduleError
from compiler.expr.affine import affine, decide, expr_range
from compiler.expr.combiners import neutral_element
from compiler.expr.nodes import (
    Const,
    Expr,
    Index,
    all_of,
    binary,
    index,
    integer,
    mul,
    select,
)
from compiler.expr.parts import split_guards
from compiler.expr.walk import axes_of, loads, substitute
from compiler.kernels.accumulate import widened
from compiler.loops.ir import (
    Allocate,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Memory,
    Scope,
    Stmt,
)
from compiler.loops.leaves import Leaves, global_values
from compiler.loops.loop_ranges import (
    Env,
    extent_of,
    free_ranges,
    padded_extents,
    pieces_of,
)
from compiler.loops.region import Region, User, free_name, required_regions
from compiler.loops.scheduled_kernel import ScheduledKernel
from compiler.loops.stage_state import StageState

SHORT_LOOP = 7  # a loop of at most so many rounds is written out if that decides a guard


def lower_kernel(scheduled: ScheduledKernel) -> LoopNest:
    """The loop nest of a scheduled kernel; `ScheduleError` if its stages do not fit together."""
    return _Lowering(scheduled).run()


class _Lowering:
    def __init__(self, scheduled: ScheduledKernel) -> None:
        self.scheduled = scheduled
        self.kernel = scheduled.kernel
        self.leaves = Leaves(scheduled)
        self._names = itertools.count(1)

    def run(self) -> LoopNest:
        output = self.scheduled.stages[-1]
        memories = tuple(
            Memory(
                buffer.name,
                buffer.dtype,
                self.scheduled.layouts[buffer.name].shape(buffer.shape)
                if buffer.name in self.scheduled.layouts
                else buffer.shape,
            )
            for buffer in self.kernel.inputs
        )
        roots = tuple(state for state in self.scheduled.stages if state.attachment is None)
        body = self._roots(roots, Env({}, {}, {}, {}, {}))
        stage = output.stage
        return LoopNest(
            self.kernel.name,
            memories,
            Memory(stage.name, stage.dtype, stage.shape),
            body,
            tuple(self.scheduled.prefetches.items()),
        )

    def _roots(self, states: tuple[StageState, ...], env: Env) -> tuple[Stmt, ...]:
        state, rest = states[0], states[1:]
        stage = state.stage
        memory = Memory(stage.name, stage.dtype, stage.shape)
        zero = tuple(integer(0) for _ in stage.axes)
        statements = self._stage(state, Region(zero, stage.shape), memory, env)
        if not rest:
            return statements
        inner = replace(env, locals={**env.locals, stage.name: (memory, zero)})
        return (Allocate(memory, Scope.WORKSPACE, (*statements, *self._roots(rest, inner))),)

    def _stage(
        self, state: StageState, region: Region, memory: Memory, env: Env
    ) -> tuple[Stmt, ...]:
        """The loops that fill `memory` with `region` of the stage."""
        stage = state.stage
        extents = {
            axis.name: extent for axis, extent in zip(stage.axes, region.extents, strict=True)
        }
        extents |= {axis.name: axis.extent for axis in stage.reduce_axes}
        offsets = {axis.name: base for axis, base in zip(stage.axes, region.base, strict=True)}
        start = replace(env, values={}, extents=extents, bases={}, guards=())
        if not stage.reduce_axes:
            leaf = self.leaves.leaf(state, memory, offsets, stage.body, "")
            return self._loops(state, state.order, start, leaf, offsets)
        if stage.accumulator is None:
            return self._reduction(state, memory, memory, offsets, start)
        held = Memory(f"{memory.name}.accumulated", stage.accumulator, memory.shape)
        return (Allocate(held, state.scope, self._reduction(state, held, memory, offsets, start)),)

    def _reduction(
        self,
        state: StageState,
        held: Memory,
        memory: Memory,
        offsets: dict[str, Expr],
        env: Env,
    ) -> tuple[Stmt, ...]:
        """Outer loops; then the initial value and the updates, from the first reduce axis on.

        Terms are joined in `held`, which is then stored to `memory` unless it is the same.
        """
        stage = state.stage
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
        fill = self.leaves.leaf(state, held, offsets, initial, "", indices_only=True)
        update = self.leaves.leaf(state, held, offsets, body, stage.combiner)
        store = self.leaves.leaf(state, memory, offsets, held, "", indices_only=True)

        def from_first_reduce_axis(env: Env) -> tuple[Stmt, ...]:
            filled = self._loops(state, spatial, env, fill, offsets, producers=False)
            updating = replace(env, guards=tuple(guards))
            updated = self._loops(state, inner, updating, update, offsets)
            if held is memory:
                return (*filled, *updated)
            stored = self._loops(state, spatial, env, store, offsets, producers=False)
            return (*filled, *updated, *stored)

        return self._loops(state, outer, env, from_first_reduce_axis, offsets)

    # Loops ---------------------------------------------------------------------------------------

    def _loops(
        self,
        state: StageState,
        order: tuple[str, ...],
        env: Env,
        leaf: Callable[[Env], tuple[Stmt, ...]],
        offsets: dict[str, Expr],
        producers: bool = True,
    ) -> tuple[Stmt, ...]:
        if not order:
            return leaf(env)
        axis, rest = order[0], order[1:]
        kind = state.kinds.get(axis, LoopKind.SERIAL)
        if env.edge and axis in state.unrolled_inside:
            kind = LoopKind.SERIAL
        statements: list[Stmt] = []
        parts = pieces_of(state, axis, env)
        if kind is LoopKind.SERIAL and self._settles_guards(state, axis, env, offsets):
            parts = [
                replace(part, start=i, stop=i + 1)
                for part in parts
                for i in range(part.start, part.stop)
            ]
        for part in parts:
            start, stop = part.start, part.stop

            def inside(env: Env) -> tuple[Stmt, ...]:
                def deeper(env: Env) -> tuple[Stmt, ...]:
                    return self._loops(state, rest, env, leaf, offsets, producers)

                if not producers:
                    return deeper(env)
                return self._guarded(
                    state,
                    env,
                    offsets,
                    lambda env: self._attached(state, axis, env, offsets, deeper),
                )

            extents = {**env.extents, **part.extents}
            piece = replace(env, extents=extents, edge=env.edge or part.edge)
            if stop - start == 1:
                statements += self._bind(state, axis, integer(start), piece, inside)
                continue
            variable = axis if axis not in env.ranges else f"{axis}.{next(self._names)}"
            piece = replace(piece, ranges={**piece.ranges, variable: (start, stop - 1)})
            body = self._bind(state, axis, index(variable), piece, inside)
            if body:
                parallel = kind is LoopKind.PARALLEL
                statements.append(
                    For(variable, start, stop, kind, body, state.chunks if parallel else 1)
                )
        return tuple(statements)

    def _bind(
        self,
        state: StageState,
        axis: str,
        value: Expr,
        env: Env,
        inside: Callable[[Env], tuple[Stmt, ...]],
    ) -> tuple[Stmt, ...]:
        """Give an axis its value, with what follows: parts of a fused axis, shifted tiles."""
        env = replace(env, values={**env.values, axis: value})
        if axis in state.fusions:
            return self._bind_parts(state, axis, value, env, inside)
        split = state.splits_by_outer.get(axis)
        if split is None or split.tail != "shift":
            return inside(env)
        whole = env.extents[split.parent]
        factor = min(split.factor, whole)
        if whole % factor == 0:
            return inside(env)
        adds = state.stage.reduce_axes and state.is_parallel(axis)
        if adds or not state.reduce.isdisjoint(env.values):
            raise ScheduleError(
                f"loop {axis} of {state.name} is shifted where two of its tiles add up at once",
                hint="tile outside of the reduction, or with another tail",
            )
        return self._let(
            f"{split.parent}.start",
            binary("min", mul(value, integer(factor)), integer(whole - factor)),
            env,
            lambda base, env: inside(replace(env, bases={**env.bases, split.parent: base})),
        )

    def _bind_parts(
        self,
        state: StageState,
        axis: str,
        value: Expr,
        env: Env,
        inside: Callable[[Env], tuple[Stmt, ...]],
    ) -> tuple[Stmt, ...]:
        parts = state.fusions[axis].parts
        extents = [extent_of(state, part, env) for part in parts]

        def bind(position: int, remaining: Expr, env: Env) -> tuple[Stmt, ...]:
            if position == 0:
                return self._bind(state, parts[0], remaining, env, inside)
            extent = integer(extents[position])
            return self._let(
                parts[position],
                binary("mod", remaining, extent),
                env,
                lambda part, env: self._bind(
                    state,
                    parts[position],
                    part,
                    env,
                    lambda env: self._let(
                        f"{axis}.{position}",
                        binary("floordiv", remaining, extent),
                        env,
                        lambda left, env: bind(position - 1, left, env),
                    ),
                ),
            )

        return bind(len(parts) - 1, value, env)

    def _let(
        self,
        name: str,
        value: Expr,
        env: Env,
        inside: Callable[[Expr, Env], tuple[Stmt, ...]],
    ) -> tuple[Stmt, ...]:
        """Bind a name to `value`, or pass the value on where it is a constant or a variable."""
        simple = affine(value, env.ranges).to_expr()
        if isinstance(simple, Const | Index):
            return inside(simple, env)
        variable = name if name not in env.ranges else f"{name}.{next(self._names)}"
        ranges = {**env.ranges, variable: expr_range(simple, env.ranges)}
        body = inside(index(variable), replace(env, ranges=ranges))
        return (Let(variable, simple, body),) if body else ()

    # Guards and producers ------------------------------------------------------------------------

    def _guarded(
        self,
        state: StageState,
        env: Env,
        offsets: dict[str, Expr],
        inside: Callable[[Env], tuple[Stmt, ...]],
    ) -> tuple[Stmt, ...]:
        """Test each guard as soon as all of its axes are bound."""
        if not env.guards:
            return inside(env)
        values = global_values(state, offsets, env)
        pending: list[Expr] = []
        conditions: list[Expr] = []
        for guard in env.guards:
            condition = substitute(guard, values)
            verdict = decide(condition, {**env.ranges, **free_ranges(state, env)})
            if verdict is False:
                return ()
            if verdict is True:
                continue
            if any(name.startswith("?") for name in axes_of(condition)) or loads(condition):
                pending.append(guard)
            else:
                conditions.append(condition)
        body = inside(replace(env, guards=tuple(pending)))
        if not body:
            return ()
        for condition in reversed(conditions):
            body = (If(condition, body),)
        return body

    def _settles_guards(
        self, state: StageState, axis: str, env: Env, offsets: dict[str, Expr]
    ) -> bool:
        """A pending guard needs nothing but this short loop and unrolled ones to be decided."""
        if not env.guards or axis not in env.extents or env.extents[axis] > SHORT_LOOP:
            return False
        values = global_values(state, offsets, env)
        own = free_name(axis)
        return any(
            own in names and all(name.startswith("?") for name in names)
            for names in (axes_of(substitute(guard, values)) for guard in env.guards)
        )

    def _attached(
        self,
        state: StageState,
        axis: str,
        env: Env,
        offsets: dict[str, Expr],
        deeper: Callable[[Env], tuple[Stmt, ...]],
    ) -> tuple[Stmt, ...]:
        """Compute the producers that are attached to this loop, then go on."""
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
        values, free = global_values(state, offsets, env), free_ranges(state, env)
        padded = padded_extents(state) if self.leaves.masks else {}
        consumer = User.of(state.stage, values, {**env.ranges, **free})
        regions = required_regions(nested, consumer, free, env.ranges, padded)
        return self._emit_producers(producers, regions, env, deeper)

    def _emit_producers(
        self,
        producers: list[StageState],
        regions: dict[str, Region],
        env: Env,
        deeper: Callable[[Env], tuple[Stmt, ...]],
    ) -> tuple[Stmt, ...]:
        if not producers:
            return deeper(env)
        producer, rest = producers[0], producers[1:]
        region = regions[producer.name]
        memory = Memory(producer.name, producer.stage.dtype, region.extents)
        statements = self._stage(producer, region, memory, env)
        inner = replace(env, locals={**env.locals, producer.name: (memory, region.base)})
        return (
            Allocate(
                memory,
                producer.scope,
                (*statements, *self._emit_producers(rest, regions, inner, deeper)),
            ),
        )
