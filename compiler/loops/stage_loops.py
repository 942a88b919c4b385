"""The loops of one stage over one region of it: pieces, tiles, fused axes, guards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import affine, decide, expr_range
from tunefarm.compiler.expr.nodes import (
    Binary,
    Const,
    Expr,
    Index,
    binary,
    index,
    integer,
    mul,
    select,
    sub,
)
from tunefarm.compiler.expr.walk import axes_of, loads, substitute
from tunefarm.compiler.loops.ir import Body, For, If, Let, LoopKind, Stmt
from tunefarm.compiler.loops.loop_ranges import (
    Dotted,
    Env,
    Inside,
    Piece,
    PlacedStage,
    extent_of,
    free_ranges,
    pieces_of,
)
from tunefarm.compiler.loops.region import free_name
from tunefarm.compiler.loops.stage_state import StageState
from tunefarm.compiler.types.frozen import replace

SHORT_LOOP = 7  # a loop of at most so many rounds is written out if that decides a guard

Attached: TypeAlias = Callable[[PlacedStage, str, Env, Inside], Body]
"""Computes what is attached to a loop of the stage, then goes on inside."""


class StageLoops:
    """Generates the loops of a stage; `names` numbers variables that are bound again."""

    def __init__(self, placed: PlacedStage, names: Iterator[int], attached: Attached) -> None:
        self.placed = placed
        self.state = placed.state
        self.attached = attached
        self._names = names

    def with_state(self, state: StageState) -> StageLoops:
        """The same for another state of the stage."""
        return StageLoops(replace(self.placed, state=state), self._names, self.attached)

    def fresh(self, name: str, env: Env) -> str:
        """The name, with a number if it is taken."""
        return name if name not in env.ranges else f"{name}.{next(self._names)}"

    def nest(self, order: tuple[str, ...], env: Env, leaf: Inside, producers: bool = True) -> Body:
        """The loops of `order`, round what `leaf` makes."""
        if not order:
            return leaf(env)
        state, axis, rest = self.state, order[0], order[1:]
        if state.dotted is not None and axis == state.dotted.axis:
            if rest:
                raise ScheduleError(f"the dot product over {axis} of {state.name} holds loops")
            return self._dotted(axis, state.dotted.widened, env, leaf)
        kind = state.kinds.get(axis, LoopKind.SERIAL)
        if env.edge and axis in state.unrolled_inside:
            kind = LoopKind.SERIAL
        statements: list[Stmt] = []
        env = self._ended(axis, env)
        parts = pieces_of(state, axis, env)
        if kind is LoopKind.SERIAL and self._settles_guards(axis, env):
            parts = [
                replace(part, start=i, stop=i + 1)
                for part in parts
                for i in range(part.start, part.stop)
            ]
        for part in parts:
            start, stop = part.start, part.stop

            def inside(env: Env) -> Body:
                def deeper(env: Env) -> Body:
                    return self.nest(rest, env, leaf, producers)

                if not producers:
                    return deeper(env)
                return self._guarded(env, lambda env: self.attached(self.placed, axis, env, deeper))

            extents = {**env.extents, **part.extents}
            piece = replace(env, extents=extents, edge=env.edge or part.edge)
            if stop - start == 1:
                statements += self._bind(axis, integer(start), piece, inside)
                continue
            variable = self.fresh(axis, env)
            piece = replace(piece, ranges={**piece.ranges, variable: (start, stop - 1)})
            body = self._walked(axis, variable, part, piece, inside)
            if body:
                parallel = kind is LoopKind.PARALLEL
                statements.append(
                    For(variable, start, stop, kind, body, state.chunks if parallel else 1)
                )
        return tuple(statements)

    def _walked(self, axis: str, variable: str, part: Piece, env: Env, inside: Inside) -> Body:
        """Bind a loop's axis to its variable, or from the end where the loop alternates."""
        value = index(variable)
        by = self.state.alternating.get(axis)
        if by is None:
            return self._bind(axis, value, env, inside)
        is_even = binary("eq", binary("mod", self.placed.values(env)[by], integer(2)), integer(0))
        back = sub(integer(part.start + part.stop - 1), value)
        return self._let(
            f"{axis}.at",
            select(is_even, value, back),
            env,
            lambda at, env: self._bind(axis, at, env, inside),
        )

    def _dotted(self, axis: str, widened: bool, env: Env, leaf: Inside) -> Body:
        """No loop: the statement itself sums over the axis."""
        count = extent_of(self.state, axis, env)
        if count == 0:
            return ()
        variable = axis if axis not in env.ranges else f"{axis}.{next(self._names)}"
        bound = replace(
            env,
            values={**env.values, axis: index(variable)},
            ranges={**env.ranges, variable: (0, count - 1)},
            dot=Dotted(variable, count, widened),
        )
        values = self.placed.values(bound)
        conditions = [substitute(guard, values) for guard in env.guards]
        verdicts = [decide(condition, bound.ranges) for condition in conditions]
        if False in verdicts:
            return ()
        pairs = zip(conditions, verdicts, strict=True)
        undecided = tuple(condition for condition, verdict in pairs if verdict is None)
        return leaf(replace(bound, guards=undecided))

    def _bind(self, axis: str, value: Expr, env: Env, inside: Inside) -> Body:
        """Give an axis its value, with what follows: parts of a fused axis, shifted tiles."""
        state = self.state
        env = replace(env, values={**env.values, axis: value})
        if axis in state.fusions:
            return self._bind_parts(axis, value, env, inside)
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

    def _bind_parts(self, axis: str, value: Expr, env: Env, inside: Inside) -> Body:
        parts = self.state.fusions[axis]
        extents = [extent_of(self.state, part, env) for part in parts]

        def bind(position: int, remaining: Expr, env: Env) -> Body:
            if position == 0:
                return self._bind(parts[0], remaining, env, inside)
            extent = integer(extents[position])
            return self._let(
                parts[position],
                binary("mod", remaining, extent),
                env,
                lambda part, env: self._bind(
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

    def _let(self, name: str, value: Expr, env: Env, inside: Callable[[Expr, Env], Body]) -> Body:
        """Bind a name to `value`, or pass the value on where it is a constant or a variable."""
        simple = affine(value, env.ranges).to_expr()
        if isinstance(simple, Const | Index):
            return inside(simple, env)
        variable = self.fresh(name, env)
        ranges = {**env.ranges, variable: expr_range(simple, env.ranges)}
        body = inside(index(variable), replace(env, ranges=ranges))
        return (Let(variable, simple, body),) if body else ()

    def _guarded(self, env: Env, inside: Inside) -> Body:
        """Test each guard as soon as all of its axes are bound."""
        if not env.guards:
            return inside(env)
        values = self.placed.values(env)
        pending: list[Expr] = []
        conditions: list[Expr] = []
        for guard in env.guards:
            condition = substitute(guard, values)
            verdict = decide(condition, {**env.ranges, **free_ranges(self.state, env)})
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

    def _ended(self, axis: str, env: Env) -> Env:
        """An axis of a sum ends where guards over such axes alone leave out all that follows.

        for k < 8: if 40 + k < 44: s += ..     ->     for k < 4: s += ..
        """
        state, root = self.state, axis
        if not env.guards or axis not in state.reduce:
            return env
        while (split := state.splits_by_outer.get(root)) is not None:
            root = split.parent
        own, ends = free_name(root), [env.extents.get(root, 0)]
        values = self.placed.values(env)
        for guard in filter(self._ends_sums, env.guards):
            assert isinstance(guard, Binary) and isinstance(guard.right, Const)
            form = affine(substitute(guard.left, values), env.ranges)
            if form.terms == ((own, 1),):
                ends.append(max(0, int(guard.right.value) - form.constant))
        return replace(env, extents={**env.extents, root: min(ends)}) if ends[1:] else env

    def _ends_sums(self, guard: Expr) -> bool:
        """Whether a guard says where the axes of a sum, which it counts through, end."""
        if not isinstance(guard, Binary) or guard.op != "lt" or not isinstance(guard.right, Const):
            return False
        axes, summed = axes_of(guard.left), {item.name for item in self.state.stage.reduce_axes}
        return len(axes) > 1 and axes <= summed

    def _settles_guards(self, axis: str, env: Env) -> bool:
        """A pending guard needs nothing but this short loop and unrolled ones to be decided."""
        if not env.guards or axis not in env.extents or env.extents[axis] > SHORT_LOOP:
            return False
        values = self.placed.values(env)
        own, others = free_name(axis), [g for g in env.guards if not self._ends_sums(g)]
        return any(
            own in names and all(name.startswith("?") for name in names)
            for names in (axes_of(substitute(guard, values)) for guard in others)
        )
