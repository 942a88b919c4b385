"""Leaves of a loop nest: a stage's store or update, with its indices over loop variables."""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import Affine, Substitution, affine, decide
from tunefarm.compiler.expr.nodes import (
    Expr,
    Index,
    Load,
    add,
    all_of,
    binary,
    cast,
    const,
    integer,
    select,
)
from tunefarm.compiler.expr.walk import transform
from tunefarm.compiler.kernels.accumulate import narrow_factors
from tunefarm.compiler.loops.ir import Body, Dot, If, Memory, Stmt, Store, Update
from tunefarm.compiler.loops.loop_ranges import Dotted, Env, Inside, PlacedStage, axis_value
from tunefarm.compiler.loops.scheduled_kernel import ScheduledKernel


class Leaves:
    """Makes the innermost statements of a scheduled kernel's stages."""

    def __init__(self, scheduled: ScheduledKernel) -> None:
        self.layouts = scheduled.layouts
        self.inputs = {buffer.name for buffer in scheduled.kernel.inputs}
        splits = (split for state in scheduled.stages for split in state.splits.values())
        self.masks = any(split.masked for split in splits)

    def leaf(
        self,
        placed: PlacedStage,
        memory: Memory,
        body: Expr | Memory,
        combiner: str = "",
        indices_only: bool = False,
    ) -> Inside:
        """What stores `body` to `memory`, given what is known on the way down to it.

        Of another memory it is the element at the same place, converted.
        """

        def statements(env: Env) -> Body:
            indices = tuple(
                affine(_place(placed, axis.name, env), env.ranges).to_expr()
                for axis in placed.state.stage.axes
            )
            if isinstance(body, Memory):
                value = cast(memory.dtype, Load(body.dtype, body.name, indices))
            else:
                value = body if indices_only else self.value(placed, body, env)
            statement: Stmt = Store(memory.name, indices, value)
            if combiner and env.dot is not None:
                statement = _dot(memory.name, indices, value, env.guards, env.dot)
            elif combiner:
                statement = Update(memory.name, indices, combiner, value)
            beyond = _beyond(placed, env, indices_only) if self.masks else []
            return (If(all_of(*beyond), (statement,)),) if beyond else (statement,)

        return statements

    def place(self, placed: PlacedStage, memory: Memory, env: Env) -> Load:
        """The element of the stage that is computed, where it is stored."""
        indices = tuple(_place(placed, axis.name, env) for axis in placed.state.stage.axes)
        return Load(memory.dtype, memory.name, indices)

    def value(self, placed: PlacedStage, body: Expr, env: Env) -> Expr:
        """`body` over loop variables: axes substituted, local parts and packed layouts resolved."""
        values = placed.values(env)
        ranges = env.ranges
        forms = {name: affine(value, ranges) for name, value in values.items()}
        bases: dict[str, tuple[Affine, ...]] = {}
        found: dict[int, Affine] = {}  # by identity: the loads of a window share their indices

        def form_of(item: Expr) -> Affine:
            form = found.get(id(item))
            if form is None:
                form = found[id(item)] = affine(item, ranges, under)
            return form

        def visit(node: Expr) -> Expr | None:
            if isinstance(node, Index):
                return values.get(node.name)
            if not isinstance(node, Load):
                return None
            indices = [form_of(item) for item in node.indices]
            if node.buffer in env.locals:
                memory, base = env.locals[node.buffer]
                if node.buffer not in bases:
                    bases[node.buffer] = tuple(affine(item, ranges) for item in base)
                begins = bases[node.buffer]
                indices = [i.plus(b, -1) for i, b in zip(indices, begins, strict=True)]
                return Load(node.dtype, memory.name, tuple(i.to_expr() for i in indices))
            if node.buffer not in self.inputs:
                raise ScheduleError(
                    f"{placed.state.name} uses {node.buffer}, which is computed elsewhere"
                )
            plain = tuple(i.to_expr() for i in indices)
            layout = self.layouts.get(node.buffer)
            if layout is not None:
                plain = tuple(affine(i, ranges).to_expr() for i in layout.indices(plain))
            return Load(node.dtype, node.buffer, plain)

        under = Substitution(forms, lambda expr: transform(expr, visit))
        return transform(body, visit)


def _dot(
    buffer: str, indices: tuple[Expr, ...], term: Expr, guards: tuple[Expr, ...], dot: Dotted
) -> Dot:
    """The dot product of the term's factors, which is 0 where a guard does not hold."""
    if guards:
        term = select(all_of(*guards), term, const(0, term.dtype))
    factors = narrow_factors(term)
    if factors is None:
        raise ScheduleError(f"the terms of {buffer} are no products of narrower factors")
    return Dot(buffer, indices, dot.variable, dot.count, *factors, dot.widened)


def _place(placed: PlacedStage, axis: str, env: Env) -> Expr:
    """Where in its memory the stage's element is."""
    value = axis_value(placed.state, axis, env)
    return add(placed.places[axis], value) if axis in placed.places else value


def _beyond(placed: PlacedStage, env: Env, indices_only: bool) -> list[Expr]:
    """The conditions that keep whole tiles within the region and, if it is read, the stage."""
    conditions = []
    for axis in placed.state.stage.axes:
        value = axis_value(placed.state, axis.name, env)
        limits = [(value, env.extents[axis.name])]
        if not indices_only:
            limits.append((add(placed.offsets[axis.name], value), axis.extent))
        for position, extent in dict.fromkeys(limits):
            inside = binary("lt", affine(position, env.ranges).to_expr(), integer(extent))
            if decide(inside, env.ranges) is not True:
                conditions.append(inside)
    return conditions
