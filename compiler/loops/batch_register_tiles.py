"""Pass: few rows of several batches are one register tile, which reads the weights once for all.

for b in 0..4:                               if 2 < sizes[1] and not(3 < sizes[0]):
  for m.o in 0..36:                            for b.o in 0..1:
    register sum: f32[14, 16]                    stack sum.few: f32[4, 14, 16]
    for k in 0..768:                               register sum: f32[4, 14, 16]
      unrolled for m in 0..14:                     for k in 0..768:
        sum[m, …] += x[b, 14 m.o + m, k]   ->        unrolled for b.i in 0..4:
                     * w[k, …]                         unrolled for m in 0..3:
    unrolled for m in 0..14:                             sum[b.i, m, …] += x[4 b.o + b.i, m, k] …
      y[b, 14 m.o + m, …] = f(sum[m, …])           sum.few[…] = sum[…]
                                                 for b.i in 0..4:
                                                   for m in 0..3:
                                                     y[4 b.o + b.i, m, …] = f(sum.few[b.i, m, …])
                                             if not(2 < sizes[1] and not(3 < sizes[0])):
                                               for b in 0..4: …

A batch of few rows is a tile of few sums, which wait for each other, and each batch reads all the
weights again. The number of batches is dynamic: a tile is run where more than half of its
batches are. What becomes of the sums is written once for tiles of all sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tunefarm.compiler.expr.nodes import Expr, Load, add, all_of, binary, index, integer, mul, unary
from tunefarm.compiler.expr.walk import axes_of, loads, substitute, transform
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    Dot,
    For,
    If,
    Let,
    LoopKind,
    Memory,
    Scope,
    Stmt,
    Store,
    Update,
    values_of,
    walk,
    with_body,
)
from tunefarm.compiler.loops.needed_statements import NeededStatements
from tunefarm.compiler.loops.row_tiles import (
    Rows,
    SumTile,
    cut_rows,
    leaves_of,
    rolled,
    sum_tile,
    unrolled_rows,
)
from tunefarm.compiler.loops.size_conditions import Condition
from tunefarm.compiler.types.frozen import frozen, replace

BATCHES = 4
"""Batches of a tile at most: with these, sums of one row of each do not wait for each other."""


def batch_register_tiles(needed: NeededStatements) -> Body:
    """The body of the nest of these statements, with tiles of several batches next to loops over
    batches that read what no batch changes; statements without such loops are the same ones."""
    body = needed.writes.nest.body
    return body if len(needed.writes.limits) < 2 else _joined(body, needed)


def _joined(body: Body, needed: NeededStatements) -> Body:
    made: list[Stmt] = []
    for statement in body:
        found = _find(statement, needed) if isinstance(statement, For) else None
        if found is not None:
            few = found.condition()
            made += [If(few, (found.loop_over_tiles(),)), If(unary("not", few), (statement,))]
        elif isinstance(statement, For | Let | If | Allocate):
            inner = _joined(statement.body, needed)
            made.append(with_body(statement, inner))
        else:
            made.append(statement)
    return tuple(made)


# --- what there is ------------------------------------------------------------------------------


@frozen
class _Batches:
    """A loop over batches, the first tile of rows in it, and what ends both.

    Loops over `columns` lie between: of tiles they are the outer ones, so that weights are read
    once for all batches.
    """

    loop: For
    columns: tuple[For, ...]
    batch_end: Condition
    variable: str  # of the loop over tiles of rows; "" if there is but one tile
    strip: SumTile
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

    def loop_over_tiles(self) -> Stmt:
        """The loop over tiles of so many batches; the last one begins earlier where it has to."""
        name, count, stop = self.loop.variable, self.count, self.loop.stop
        outer, start, inner = f"{name}.o", f"{name}.s", f"{name}.i"
        first: Expr = mul(index(outer), integer(count))
        is_even = stop % count == 0
        batch = add(first if is_even else index(start), index(inner))
        values = {name: batch, self.variable: integer(0)}
        jam = _Jam(inner, count, values, self.rows, self.strip)
        body: Body = (jam.tile(),)
        if not is_even:
            body = (Let(start, binary("min", first, integer(stop - count)), body),)
        made: Stmt = For(outer, 0, -(-stop // count), LoopKind.SERIAL, body)
        for loop in reversed(self.columns):
            made = replace(loop, body=(made,))
        return made


def _find(loop: For, needed: NeededStatements) -> _Batches | None:
    """What a loop over batches is made of; None of any other loop."""
    if loop.kind is not LoopKind.SERIAL or loop.start or loop.stop < 2:
        return None
    columns = list[For]()
    while (found_strip := _strip(loop.body[0])) is None:
        (between, *others) = loop.body
        if others or not isinstance(between, For) or not between.is_whole:
            return None
        if between.kind is not LoopKind.SERIAL:
            return None
        columns.append(between)
        loop = replace(loop, body=between.body)
    variable, strip = found_strip
    if any(isinstance(item, If) for item in walk(strip.sums)):
        return None
    ends = [item for item in needed.of_body(loop.body).values() if item.coefficient(loop.variable)]
    if len(ends) != 1 or len(ends[0].terms) != 1:
        return None
    for item in needed.of(strip.tile).values():
        rows = unrolled_rows(needed, strip.tile, item)
        if rows is None or {name for name, _ in item.terms} - {variable}:
            continue
        if not _have_roles(strip, loop.variable, rows.variables, variable):
            continue
        found = _Batches(loop, tuple(columns), ends[0], variable, strip, rows, item.at(variable, 0))
        if found.count < 2 or strip.has_pixels(rows.variables | {variable}):
            continue  # of each image one to three pixels: no faster than image by image
        if _is_all(found, item.at(variable, 1), needed):
            return found
    return None


def _strip(statement: Stmt) -> tuple[str, SumTile] | None:
    """The variable of a loop over tiles of rows, and the tile."""
    variable = ""
    if isinstance(statement, For) and statement.kind is LoopKind.SERIAL and not statement.start:
        variable, (statement, *more) = statement.variable, statement.body
        if more:
            return None
    tile = sum_tile(statement) if isinstance(statement, Allocate) else None
    return None if tile is None else (variable, tile)


def _have_roles(strip: SumTile, batch: str, row_loops: frozenset[str], variable: str) -> bool:
    """Whether a product's sums are of rows of batches and of weights that both share.

    Each batch has a place of its own in what is read and written, whose rows are along another
    dimension; whatever knows no batch knows no row either, as the loops that are rows would be
    columns otherwise; and weights are read along the sum.
    """
    rows = row_loops | {variable}
    summed = {
        loop.variable
        for loop in walk(strip.sums)
        if isinstance(loop, For) and loop.kind is LoopKind.SERIAL
    }
    has_weights = has_data = False
    for load in _read(strip.sums, strip.tile.memory.name):
        axes = set().union(*map(axes_of, load.indices))
        if batch in axes:
            if not _is_apart(load.indices, batch, rows):
                return False
            has_data = has_data or not axes.isdisjoint(row_loops)
        elif not axes.isdisjoint(rows):
            return False
        else:
            has_weights = has_weights or not axes.isdisjoint(summed)
    own = strip.tile.memory.name
    written = {leaf.buffer for leaf in leaves_of(strip.ends)}
    return (
        has_weights
        and has_data
        and all(isinstance(leaf, Store) for leaf in leaves_of(strip.ends))
        and all(_is_apart(leaf.indices, batch, rows) for leaf in leaves_of(strip.ends))
        and written.isdisjoint(load.buffer for load in _read(strip.tile.body, own))
    )


def _is_apart(indices: Iterable[Expr], batch: str, rows: frozenset[str]) -> bool:
    """Whether a batch is one index of a place and nothing else is in that, and rows are others."""
    axes = [axes_of(item) for item in indices]
    of_batch = [item for item in axes if batch in item]
    return of_batch == [{batch}] and not rows.isdisjoint(set().union(*axes))


def _is_all(found: _Batches, second: Condition, needed: NeededStatements) -> bool:
    """Whether nothing but the first tile is of use where there are so few rows.

    `second` is the condition of the first row of the second tile.
    """
    others = [needed.of(statement).get(found.behind.key) for statement in found.loop.body[1:]]
    if found.variable:
        others.append(second)
    return all(item is not None and item.implies(found.behind) for item in others)


def _read(body: Body, own: str) -> Iterator[Load]:
    """What is read of other buffers than this one."""
    for leaf in leaves_of(body):
        for value in (*values_of(leaf), *leaf.indices):
            yield from (load for load in loads(value) if load.buffer != own)


# --- what is made -------------------------------------------------------------------------------


@frozen
class _Jam:
    """Has a tile done for several batches, next to the loops over its rows."""

    variable: str
    count: int
    values: Mapping[str, Expr]
    rows: Rows
    strip: SumTile

    def tile(self) -> Allocate:
        """The tile, whose buffers have an axis of batches in front."""
        memory = self.strip.tile.memory
        shape = (self.count, *memory.shape)
        kept = Memory(f"{memory.name}.few", memory.dtype, shape)
        inside = self._cut((*self.strip.zeros, *self.strip.rolled_sums()))
        body = self._jammed((*inside, *self._cut(self.strip.copied(kept, (index(self.variable),)))))
        tile = Allocate(replace(memory, shape=shape), Scope.REGISTER, body)
        ends = tuple(
            For(self.variable, 0, self.count, LoopKind.SERIAL, (self._of_one(item, kept.name),))
            for item in rolled(self._cut(self.strip.ends), self.rows.variables)
        )
        return Allocate(kept, Scope.STACK, (tile, *ends))

    def _cut(self, body: Body) -> Body:
        return cut_rows(body, self.rows.variables, self.rows.count // self.count)

    def _jammed(self, body: Body) -> Body:
        made: list[Stmt] = []
        for statement in body:
            if isinstance(statement, For) and self._goes_on(statement):
                made.append(replace(statement, body=self._jammed(statement.body)))
            else:
                of_one = self._of_one(statement, self.strip.tile.memory.name)
                made.append(For(self.variable, 0, self.count, LoopKind.UNROLLED, (of_one,)))
        return tuple(made)

    def _goes_on(self, loop: For) -> bool:
        """Whether loops over rows are further inside."""
        if loop.variable in self.rows.variables or loop.kind is LoopKind.VECTORISED:
            return False
        inside = [item.variable for item in walk(loop.body) if isinstance(item, For)]
        return not self.rows.variables.isdisjoint(inside)

    def _of_one(self, statement: Stmt, sums: str) -> Stmt:
        """The statement for the batch that the variable says, with its sums in this buffer."""
        if isinstance(statement, For):
            body = tuple(self._of_one(item, sums) for item in statement.body)
            return replace(statement, body=body)
        assert isinstance(statement, Store | Update | Dot)
        own = self.strip.tile.memory.name

        def whole(expr: Expr) -> Expr:
            return transform(substitute(expr, self.values), visit)

        def visit(node: Expr) -> Expr | None:
            if isinstance(node, Load) and node.buffer == own:
                places = (index(self.variable), *map(whole, node.indices))
                return replace(node, buffer=sums, indices=places)
            return None

        indices = tuple(map(whole, statement.indices))
        if statement.buffer == own:
            indices = (index(self.variable), *indices)
        if isinstance(statement, Dot):
            left, right = whole(statement.left), whole(statement.right)
            return replace(statement, indices=indices, left=left, right=right)
        return replace(statement, indices=indices, value=whole(statement.value))
