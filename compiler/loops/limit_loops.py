"""Pass: loops end where sizes that are known at run time say that no round matters any more.

for i.o in 0..43:                                     for i.o in 0..min(43, (sizes[1] + 11) // 12):
  for k in 0..512:                                      for k in 0..min(512, sizes[1]):
    unrolled for i in 0..12:                      ->      unrolled for i in 0..12:
      y[12 i.o + i] += select(k < sizes[1], …, 0)           y[12 i.o + i] += …

Limits come from the output's (`FusedKernel.limits`) and from selects by `index < size`. Rounds of a
tile that are only needed in part stay whole, with their selects, or become smaller tiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from compiler.expr.affine import Ranges, affine, expr_range
from compiler.expr.nodes import Binary, Const, Expr, Select, all_of, binary, integer, unary
from compiler.kernels.kernel import Limit
from compiler.loops.fused_trips import fused_parts
from compiler.loops.ir import (
    Allocate,
    Body,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Scope,
    Stmt,
    Store,
    Update,
    values_of,
    walk,
)
from compiler.loops.known_padding import nodes
from compiler.loops.live_writes import LiveWrites, assumed
from compiler.loops.share_loops import share_loops
from compiler.loops.size_conditions import (
    Condition,
    Key,
    shared,
    size_conditions,
    strongest,
)
from compiler.loops.split_borders import split_borders
from compiler.types.dtypes import DType

SIZES = (1, 2, 4, 6, 8, 11, 15, 20, 27)
"""Rows of tiles that are smaller than the whole: the last tile of rows computes few in vain, while
all of them together take little more code than two whole ones."""

LONE = 3
"""Rows of a tile that is all there is, at which it is worth smaller ones."""

Facts = dict[Key, Condition]
_RUNS = (LoopKind.SERIAL, LoopKind.PARALLEL)


def limit_loops(nest: LoopNest, limits: Sequence[Limit]) -> LoopNest:
    """The nest with limits on its loops; the same one where no size is known at run time only."""
    if not limits and not _has_sizes(nest):
        return nest
    nest, limits, filling = split_borders(nest, limits)
    before = nest
    nest = replace(nest, body=LiveWrites(nest, limits).guarded_body(nest.body))
    body = _Limiter(LiveWrites(nest, limits)).body(nest.body, {}, {})
    return share_loops(replace(nest, body=(*body, *filling)), before, limits)


def _has_sizes(nest: LoopNest) -> bool:
    if not any(item.dtype is DType.I64 and len(item.shape) == 1 for item in nest.inputs):
        return False
    return any(
        isinstance(node, Select) and size_conditions(node.condition, {})
        for statement in walk(nest.body)
        if isinstance(statement, Store | Update)
        for value in values_of(statement)
        for node in nodes(value)
    )


class _Limiter:
    """Rewrites a nest from the outside to the inside; `known` are conditions that hold there."""

    def __init__(self, writes: LiveWrites) -> None:
        self.writes = writes
        self._live: dict[int, tuple[Stmt, Facts]] = {}  # kept, so that no other gets its identity

    # --- what a statement is needed for ---------------------------------------------------------

    def live(self, statement: Stmt) -> Facts:
        """Conditions over what is bound outside of a statement, without which it is of no use."""
        if id(statement) not in self._live:
            self._live[id(statement)] = statement, self._find(statement)
        return self._live[id(statement)][1]

    def _find(self, statement: Stmt) -> Facts:
        match statement:
            case For(variable=variable, start=start, stop=stop, body=body):
                lowest = (
                    item.at(variable, start if item.coefficient(variable) > 0 else stop - 1)
                    for item in self.of_body(body).values()
                )
                return strongest(lowest)
            case Let(body=body):
                inner = (_outside_of(statement, item) for item in self.of_body(body).values())
                return strongest(item for item in inner if item is not None)
            case If(body=body) | Allocate(body=body):
                return self.of_body(body)
        return strongest(self.writes.conditions(statement))

    def of_body(self, body: Body) -> Facts:
        """The conditions without which no statement of a body is of any use."""
        facts = self.live(body[0])
        for statement in body[1:]:
            facts = shared(facts, self.live(statement))
        return facts

    # --- what becomes of statements -------------------------------------------------------------

    def body(self, body: Body, known: Facts, ranges: Ranges, held: bool = False) -> Body:
        """The statements of a body; `held` where a register tile or a vector surrounds them."""
        result: list[Stmt] = []
        for statement in body:
            result += self._statement(statement, known, ranges, held)
        return tuple(result)

    def _statement(self, statement: Stmt, known: Facts, ranges: Ranges, held: bool) -> Body:
        made: Body
        if not held and isinstance(statement, For | Allocate | Let):
            ended = self._ended(statement)
            missing = {
                key: item
                for key, item in self.live(statement).items()
                if not _holds(item, known) and not _holds(item, ended)
            }
            if missing:
                condition = all_of(*(item.to_expr() for item in missing.values()))
                body = self._statement(statement, {**known, **missing}, ranges, held)
                return (If(condition, body),)
        match statement:
            case For() if statement.kind in _RUNS:
                made = self._loop(statement, known, ranges, held)
            case For():
                inner = {**ranges, statement.variable: (statement.start, statement.stop - 1)}
                made = (replace(statement, body=self.body(statement.body, known, inner, True)),)
            case Let(variable=variable, value=value, body=body):
                inner = {**ranges, variable: expr_range(value, ranges)}
                facts = {**known, **self._known_inside(statement, known)}
                made = (replace(statement, body=self.body(body, facts, inner, held)),)
            case If(body=body):
                made = (replace(statement, body=self.body(body, known, ranges, held)),)
            case Allocate():
                made = self._allocate(statement, known, ranges, held)
            case _:
                made = (_folded(statement, known, ranges),)
        return made

    def _ended(self, statement: Stmt) -> Facts:
        """Conditions without which a loop's limit leaves it no round."""
        if not isinstance(statement, For) or statement.kind not in _RUNS:
            return {}
        parts = fused_parts(statement)
        fused = None if parts is None else parts.limited(self.of_body(parts.body))
        if fused is not None:
            return fused.needed()
        variable = statement.variable
        limits = self.of_body(statement.body).values()
        ends = (item for item in limits if item.coefficient(variable) > 0)
        return strongest(item.at(variable, statement.start) for item in ends)

    def _known_inside(self, let: Let, known: Facts) -> Facts:
        """What is known of the variable that a binding makes."""
        facts = {}
        for key, item in self.of_body(let.body).items():
            outer = _outside_of(let, item) if item.coefficient(let.variable) else None
            if outer is not None and _holds(outer, known):
                facts[key] = item
        return facts

    def _loop(self, loop: For, known: Facts, ranges: Ranges, held: bool) -> Body:
        """The loop with a limit, and what is left where its last round is of another form."""
        parts = fused_parts(loop)
        if parts is not None and not held:
            fused = parts.limited(self.of_body(parts.body))
            if fused is not None:
                inner = {**ranges, **parts.ranges()}
                facts = {**known, **fused.facts}
                return fused.rebuilt(self.body(parts.body, facts, inner))
        variable = loop.variable
        inner = {**ranges, variable: (loop.start, loop.stop - 1)}
        limits = {
            key: item
            for key, item in self.of_body(loop.body).items()
            if item.coefficient(variable) > 0
        }
        facts = {**known, **limits}
        if not limits:
            return (replace(loop, body=self.body(loop.body, facts, inner, held)),)
        limited = replace(loop, limit=_least(item.rounds(variable) for item in limits.values()))
        full = self._whole(loop, inner) if loop.kind is LoopKind.SERIAL else None
        if full is None:
            body = self.body(loop.body, facts, inner, held)
            return (replace(limited, body=body),)
        whole, exact = full
        folded = self.body(loop.body, {**facts, **whole}, inner, held)
        if exact:
            return (replace(limited, body=folded),)
        rounds = _least(
            _highest(item, self._bound_inside(loop)).rounds(variable) for item in whole.values()
        )
        main = replace(loop, limit=rounds, body=folded)
        at_most = integer(loop.stop - 1)
        first = binary("min", binary("max", rounds, integer(loop.start)), at_most)
        some = [item.to_expr() for item in limits.values()]
        left = all_of(binary("lt", rounds, integer(loop.stop)), *some)
        rest = self.body(loop.body, facts, inner, held)
        return main, Let(variable, first, (If(left, rest),))

    def _bound_inside(self, loop: For) -> dict[str, tuple[int, int]]:
        """The ranges of the loops in a loop."""
        return {
            item.variable: (item.start, item.stop - 1)
            for item in walk(loop.body)
            if isinstance(item, For)
        }

    def _whole(self, loop: For, ranges: Ranges) -> tuple[Facts, bool] | None:
        """Conditions of selects that hold in whole rounds of an innermost loop.

        And whether all rounds before the limit are whole ones; None where that is not so, and the
        rest would be more than one round, or nothing is won.
        """
        inside = self._bound_inside(loop)
        if any(isinstance(s, For) and s.kind in _RUNS for s in walk(loop.body)):
            return None
        if any(isinstance(statement, Let | If) for statement in walk(loop.body)):
            return None
        ends = self.of_body(loop.body)
        found: Facts = {}
        exact = True
        for item in self._select_conditions(loop, {**ranges, **inside}):
            factor = item.coefficient(loop.variable)
            if factor <= 0:
                continue
            low, high = _lowest(item, inside), _highest(item, inside)
            span = high.constant - low.constant
            if span > factor or low.key not in ends or ends[low.key].constant < low.constant:
                continue
            exact = exact and not span
            found[item.key] = item
        return (found, exact) if found else None

    def _select_conditions(self, loop: For, ranges: Ranges) -> Iterable[Condition]:
        found: dict[Condition, None] = {}
        for statement in walk(loop.body):
            if isinstance(statement, Store | Update):
                for node in nodes(statement.value):
                    if isinstance(node, Select):
                        found |= dict.fromkeys(size_conditions(node.condition, ranges))
        return strongest(found).values()

    # --- register tiles -------------------------------------------------------------------------

    def _allocate(self, statement: Allocate, known: Facts, ranges: Ranges, held: bool) -> Body:
        registers = statement.scope is Scope.REGISTER
        body = self.body(statement.body, known, ranges, held or registers)
        made = replace(statement, body=body)
        if held or not registers:
            return (made,)
        for item in self.live(statement).values():
            rows = self._unrolled_rows(statement, item)
            if rows is not None and _holds(item, known):
                variables, factor, count = rows
                return _tiles(made, item, variables, factor, count)
        return (made,)

    def _unrolled_rows(
        self, tile: Allocate, condition: Condition
    ) -> tuple[frozenset[str], int, int] | None:
        """The unrolled loops of a tile that the condition cuts: their names, factor and extent."""
        found: set[tuple[int, int]] = set()
        names: set[str] = set()
        others: set[str] = set()
        for loop in walk(tile.body):
            if not isinstance(loop, For):
                continue
            factors = {
                item.coefficient(loop.variable)
                for item in self.of_body(loop.body).values()
                if item.coefficient(loop.variable) > 0
                and item.at(loop.variable, loop.start) == condition
            }
            if loop.kind is LoopKind.UNROLLED and loop.start == 0 and len(factors) == 1:
                names.add(loop.variable)
                found.add((factors.pop(), loop.stop))
            else:
                others.add(loop.variable)
        if len(found) != 1 or names & others:
            return None
        ((factor, count),) = found
        least = 2 if any(step > 0 for _, step in condition.terms) else LONE
        return (frozenset(names), factor, count) if count >= least else None


def _tiles(
    tile: Allocate, condition: Condition, variables: frozenset[str], factor: int, count: int
) -> Body:
    """The tile for as many rows as matter: the least of some sizes that has them."""
    sizes = [size for size in SIZES if size < count]
    made: list[Stmt] = []
    for least, size in reversed(list(pairwise([0, *sizes, count]))):
        more = replace(condition, constant=condition.constant + factor * least).to_expr()
        none = replace(condition, constant=condition.constant + factor * size).to_expr()
        parts = [more] if least else []
        parts += [unary("not", none)] if size < count else []
        cut = tile if size == count else _cut((tile,), variables, size)[0]
        made.append(If(all_of(*parts), (cut,)))
    return tuple(made)


def _cut(body: Body, variables: frozenset[str], size: int) -> Body:
    """The body with unrolled loops of so many rounds."""
    made: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For | Let | If | Allocate):
            statement = replace(statement, body=_cut(statement.body, variables, size))
        if isinstance(statement, For) and statement.variable in variables:
            statement = replace(statement, stop=size)
        made.append(statement)
    return tuple(made)


def _folded(statement: Stmt, known: Facts, ranges: Ranges) -> Stmt:
    if not isinstance(statement, Store | Update):
        return statement
    value = assumed(statement.value, known, ranges)
    return statement if value is statement.value else replace(statement, value=value)


def _holds(condition: Condition, known: Facts) -> bool:
    best = known.get(condition.key)
    return best is not None and best.implies(condition)


def _outside_of(let: Let, condition: Condition) -> Condition | None:
    """A condition without the variable that a binding makes: one that the other implies.

    A shifted tile is of use where it would be if it was not: what it has before is in others.
    """
    factor = condition.coefficient(let.variable)
    if not factor:
        return condition
    rest = condition.at(let.variable, 0)
    value: Expr = let.value
    if isinstance(value, Binary) and value.op == "min" and isinstance(value.right, Const):
        if factor < 0 or rest.constant:
            return None
        value = value.left
    return rest.with_form(rest.form.plus(affine(value, {}), factor))


def _lowest(condition: Condition, inside: Ranges) -> Condition:
    for name, (low, high) in inside.items():
        condition = condition.at(name, low if condition.coefficient(name) > 0 else high)
    return condition


def _highest(condition: Condition, inside: Ranges) -> Condition:
    for name, (low, high) in inside.items():
        condition = condition.at(name, high if condition.coefficient(name) > 0 else low)
    return condition


def _least(values: Iterable[Expr]) -> Expr:
    first, *others = dict.fromkeys(values)
    for other in others:
        first = binary("min", first, other)
    return first
