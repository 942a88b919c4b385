"""Pass: few rows of several batches are one register tile, which reads the weights once for all.

for b in 0..4:                               if 2 < sizes[1] and not(3 < sizes[0]):
  for m.o in 0..36:                            for b.o in 0..1:
    register sum: f32[14, 16]                    register sum: f32[4, 14, 16]
    for k in 0..768:                             for k in 0..768:
      unrolled for m in 0..14:                     unrolled for b.i in 0..4:
        sum[m, …] += x[b, 14 m.o + m, k]   ->        unrolled for m in 0..3:
                     * w[k, …]                         sum[b.i, m, …] += x[4 b.o + b.i, m, k] …
    …                                            …
                                             if not(2 < sizes[1] and not(3 < sizes[0])):
                                               for b in 0..4: …

A batch of few rows is a tile of few sums, which wait for each other, and each batch reads all the
weights again. How many batches there are is known at run time only: a tile is run where more than
half of its batches are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import is_

from compiler.expr.nodes import Expr, Load, add, all_of, binary, index, integer, mul, unary
from compiler.expr.walk import axes_of, loads, substitute, transform
from compiler.loops.ir import (
    Allocate,
    Body,
    Dot,
    For,
    If,
    Let,
    LoopKind,
    Scope,
    Stmt,
    Store,
    Update,
    values_of,
    walk,
)
from compiler.loops.live_writes import LiveWrites
from compiler.loops.needed_statements import NeededStatements
from compiler.loops.row_tiles import Rows, cut_rows, unrolled_rows
from compiler.loops.size_conditions import Condition

BATCHES = 4
"""Batches of a tile at most: with these, sums of one row of each do not wait for each other."""

_LEAVES = (Store, Update, Dot)


def join_batches(writes: LiveWrites) -> Body:
    """The body of the nest of these writes, with tiles of several batches beside loops over batches
    that read what no batch changes; statements without such loops are the same ones."""
    body = writes.nest.body
    return body if len(writes.limits) < 2 else _joined(body, NeededStatements(writes))


def _joined(body: Body, needed: NeededStatements) -> Body:
    made: list[Stmt] = []
    for statement in body:
        found = _find(statement, needed) if isinstance(statement, For) else None
        if found is not None:
            few = found.condition()
            made += [If(few, (found.loop_over_tiles(),)), If(unary("not", few), (statement,))]
        elif isinstance(statement, For | Let | If | Allocate):
            inner = _joined(statement.body, needed)
            same = len(inner) == len(statement.body) and all(map(is_, inner, statement.body))
            made.append(statement if same else replace(statement, body=inner))
        else:
            made.append(statement)
    return tuple(made)


@dataclass(frozen=True, slots=True)
class _Batches:
    """A loop over batches, the first tile of rows in it, and what ends both."""

    loop: For
    batch_end: Condition
    strip: _Strip
    rows: Rows
    row_end: Condition  # of the tile's first row

    @property
    def count(self) -> int:
        """Batches of a tile."""
        return min(BATCHES, self.loop.stop, self.rows.count)

    @property
    def behind(self) -> Condition:
        """There are more rows of a batch than its part of the tile has."""
        most = self.rows.factor * (self.rows.count // self.count)
        return replace(self.row_end, constant=self.row_end.constant + most)

    def condition(self) -> Expr:
        """There are few rows, and more than half of a tile's batches."""
        several = self.batch_end.at(self.loop.variable, self.count // 2)
        return all_of(several.to_expr(), unary("not", self.behind.to_expr()))

    def loop_over_tiles(self) -> For:
        """The loop over tiles of so many batches; the last one begins earlier where it has to."""
        name, count, stop = self.loop.variable, self.count, self.loop.stop
        outer, start, inner = f"{name}.o", f"{name}.s", f"{name}.i"
        first: Expr = mul(index(outer), integer(count))
        is_even = stop % count == 0
        batch = add(first if is_even else index(start), index(inner))
        values = {name: batch, self.strip.variable: integer(0)}
        tile: Body = (self.strip.tile,)
        tile = cut_rows(tile, self.rows.variables, self.rows.count // count)
        body = _Jam(inner, count, values, self.rows.variables).body(tile)
        if not is_even:
            body = (Let(start, binary("min", first, integer(stop - count)), body),)
        return For(outer, 0, -(-stop // count), LoopKind.SERIAL, body)


@dataclass(frozen=True, slots=True)
class _Strip:
    """Tiles of rows, one for each value of a variable; "" if there is but one."""

    variable: str
    tile: Allocate


def _find(loop: For, needed: NeededStatements) -> _Batches | None:
    """What a loop over batches is made of; None of any other loop."""
    strip = _strip(loop.body[0])
    if loop.kind is not LoopKind.SERIAL or loop.start or loop.stop < 2 or strip is None:
        return None
    if not _reads_shared(strip.tile, {loop.variable, strip.variable}):
        return None
    ends = [item for item in needed.of_body(loop.body).values() if item.coefficient(loop.variable)]
    if len(ends) != 1 or len(ends[0].terms) != 1:
        return None
    for item in needed.of(strip.tile).values():
        rows = unrolled_rows(needed, strip.tile, item)
        if rows is None or {name for name, _ in item.terms} - {strip.variable}:
            continue
        found = _Batches(loop, ends[0], strip, rows, item.at(strip.variable, 0))
        if found.count > 1 and _is_all(found, item.at(strip.variable, 1), needed):
            return found
    return None


def _strip(statement: Stmt) -> _Strip | None:
    match statement:
        case Allocate(scope=Scope.REGISTER):
            return _Strip("", statement)
        case For(variable=variable, start=0, kind=LoopKind.SERIAL, body=(Allocate() as tile,)):
            return _Strip(variable, tile) if tile.scope is Scope.REGISTER else None
    return None


def _is_all(found: _Batches, second: Condition, needed: NeededStatements) -> bool:
    """Whether nothing but the first tile is of use where there are so few rows.

    `second` is the condition of the first row of the second tile.
    """
    others = [needed.of(statement).get(found.behind.key) for statement in found.loop.body[1:]]
    if found.strip.variable:
        others.append(second)
    return all(item is not None and item.implies(found.behind) for item in others)


def _reads_shared(tile: Allocate, own: set[str]) -> bool:
    """Whether a serial loop of a tile reads what is the same for all batches and rows.

    All that it is made of can be written once more: loops, buffers, stores, updates and dots.
    """
    kinds = (For, Allocate, *_LEAVES)
    if not all(isinstance(statement, kinds) for statement in walk((tile,))):
        return False
    for statement in walk(tile.body):
        if isinstance(statement, For) and statement.kind is LoopKind.SERIAL:
            read = [
                load
                for leaf in walk(statement.body)
                if isinstance(leaf, Update | Dot)
                for value in values_of(leaf)
                for load in loads(value)
            ]
            names = [set().union(*map(axes_of, load.indices)) for load in read]
            if any(statement.variable in item and not item & own for item in names):
                return True
    return False


@dataclass(frozen=True, slots=True)
class _Jam:
    """Has each statement of a tile done for several batches, next to the loops over its rows."""

    variable: str
    count: int
    values: Mapping[str, Expr]
    rows: frozenset[str]

    def body(self, body: Body) -> Body:
        """The statements in buffers that have an axis of batches more, in front."""
        return self._statements(body, frozenset())

    def _statements(self, body: Body, own: frozenset[str]) -> Body:
        made: list[Stmt] = []
        for statement in body:
            if isinstance(statement, Allocate):
                memory = statement.memory
                inner = self._statements(statement.body, own | {memory.name})
                memory = replace(memory, shape=(self.count, *memory.shape))
                made.append(replace(statement, memory=memory, body=inner))
            elif isinstance(statement, For) and self._goes_on(statement):
                made.append(replace(statement, body=self._statements(statement.body, own)))
            else:
                of_one = self._of_one(statement, own)
                made.append(For(self.variable, 0, self.count, LoopKind.UNROLLED, (of_one,)))
        return tuple(made)

    def _goes_on(self, loop: For) -> bool:
        """Whether loops over rows are further inside."""
        if loop.variable in self.rows or loop.kind is LoopKind.VECTORISED:
            return False
        inside = [item.variable for item in walk(loop.body) if isinstance(item, For)]
        return not self.rows.isdisjoint(inside)

    def _of_one(self, statement: Stmt, own: frozenset[str]) -> Stmt:
        """The statement for the batch that the variable says."""
        if isinstance(statement, For):
            body = tuple(self._of_one(item, own) for item in statement.body)
            return replace(statement, body=body)
        assert isinstance(statement, Store | Update | Dot)

        def whole(expr: Expr) -> Expr:
            moved = substitute(expr, self.values)
            return transform(moved, visit)

        def visit(node: Expr) -> Expr | None:
            if isinstance(node, Load) and node.buffer in own:
                return replace(node, indices=(index(self.variable), *map(whole, node.indices)))
            return None

        indices = tuple(map(whole, statement.indices))
        if statement.buffer in own:
            indices = (index(self.variable), *indices)
        if isinstance(statement, Dot):
            left, right = whole(statement.left), whole(statement.right)
            return replace(statement, indices=indices, left=left, right=right)
        return replace(statement, indices=indices, value=whole(statement.value))
