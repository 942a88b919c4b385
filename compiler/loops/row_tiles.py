"""Register tiles of rows that end at run time: tiles for fewer rows, of which one is run.

register sum: f32[8, 16]                   if 6 < rows:
  unrolled for i in 0..8: …                  register sum: f32[8, 16]
  y[8 i.o + i, …] = f(sum[i, …])     ->        unrolled for i in 0..8: …
                                               y[8 i.o + i, …] = f(sum[i, …])
                                           if not(6 < rows):
                                             stack sum.tail: f32[8, 16]
                                               if 4 < rows:
                                                 register sum: f32[8, 16]
                                                   unrolled for i in 0..6: …
                                                   sum.tail[i, …] = sum[i, …]
                                               if 2 < rows and not(4 < rows): …
                                               for i in 0..min(6, rows):
                                                 y[8 i.o + i, …] = f(sum.tail[i, …])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from tunefarm.compiler.expr.affine import Affine, affine
from tunefarm.compiler.expr.nodes import (
    Binary,
    Expr,
    Index,
    Load,
    add,
    all_of,
    binary,
    index,
    integer,
    mul,
    unary,
)
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.expr.walk import axes_of, loads, transform
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
)
from tunefarm.compiler.loops.needed_statements import Facts, NeededStatements, holds
from tunefarm.compiler.loops.size_conditions import Condition
from tunefarm.compiler.types.frozen import frozen, replace

SIZES = (1, 2, 4, 6, 8, 11, 15, 20, 27)
"""Rows of tiles that are smaller than the whole: the last tile of rows computes few in vain, while
all of them together take little more code than two whole ones."""

FEW_ROWS, FEW_SIZES = 6, (1, 2, 3, 4)
"""Rows of a tile at the border of a plane, at most, that has all of these smaller ones: of planes
of few pixels it is the only one."""

BLOCK = 8
"""Rows of a tile that is run again and again where more are left: as many sums as hide the latency
of an addition."""

LONG_SUM = 32
"""Terms of a sum at least that takes as long as its additions wait for each other: of shorter ones
a core is at several at a time."""

MIN_LONE_TILE_ROWS = 3
"""Rows of a tile that is all there is, at which it is worth smaller ones."""

_VECTOR = LoopKind.VECTORISED
_ROW = "%row"  # stands for a row in what is computed of a condition

FEW = 8
"""So many times its rows before a last tile, it may compute some in vain."""

NEAR_MAXIMUM_SHARE = 0.75
"""A statement that is run where a size is above so much of its maximum may compute in vain
in other directions."""


@frozen
class Rows:
    """The unrolled loops of a tile that a condition cuts: names, how far it goes on with each
    round, and how many rounds there are."""

    variables: frozenset[str]
    factor: int
    count: int


def unrolled_rows(needed: NeededStatements, tile: Allocate, condition: Condition) -> Rows | None:
    """The rows of a tile that the condition cuts; None where they are no unrolled loops alone."""
    found: set[tuple[int, int]] = set()
    names: set[str] = set()
    others: set[str] = set()
    for loop in walk(tile.body):
        if not isinstance(loop, For):
            continue
        factors = {
            item.coefficient(loop.variable)
            for item in needed.of_body(loop.body).values()
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
    return Rows(frozenset(names), factor, count)


def worth_cutting(condition: Condition, rows: Rows) -> bool:
    """Whether tiles of fewer rows are worth their code."""
    if any(step > 0 for _, step in condition.terms):
        return rows.count > 1
    return rows.count >= MIN_LONE_TILE_ROWS and condition.constant < FEW * rows.factor * rows.count


def is_rare(known: Facts, cut: Condition, greatest: Mapping[Load, int]) -> bool:
    """Whether only sizes near the maximum ones make a tile run: another one than cuts it is known
    to be.

    The last rows of a plane are a statement of their own, and all tiles of their columns are once
    more in it.
    """
    return any(
        not item.terms
        and item.size != cut.size
        and item.size in greatest
        and item.constant >= NEAR_MAXIMUM_SHARE * item.scale * greatest[item.size]
        for item in known.values()
    )


@frozen
class SumTile:
    """A register tile by what its statements do: `zeros` are what sums begin with, `sums` what is
    added to them, under conditions or not, and `ends` store what becomes of them."""

    tile: Allocate
    zeros: Body
    sums: Body
    ends: Body

    def rolled_sums(self) -> Body:
        """What is added, with plain loops along the sums, but those that decide about guards: of
        these nothing is left where they are unrolled."""
        names = {loop.variable for loop in self._summed()}
        guards = (item.condition for item in walk(self.sums) if isinstance(item, If))
        decided = (axes_of(guard) for guard in guards if not self.asks(guard))
        return rolled(self.sums, frozenset(names.difference(*decided)))

    def asks(self, guard: Expr) -> bool:
        """Whether the run decides about a guard, and not the number of an unrolled round."""
        loops = (item for item in walk(self.sums) if isinstance(item, For))
        unrolled = {loop.variable for loop in loops if loop.kind is LoopKind.UNROLLED}
        return not axes_of(guard) <= unrolled or bool(loads(guard))

    def _summed(self) -> list[For]:
        """The loops along the sums."""
        loops = [item for item in walk(self.sums) if isinstance(item, For)]
        places = (axes_of(item) for leaf in leaves_of(self.sums) for item in leaf.indices)
        names = {loop.variable for loop in loops}.difference(*places)
        return [loop for loop in loops if loop.variable in names]

    def has_pixels(self, rows: frozenset[str]) -> bool:
        """Whether rows, by their variables, are pixels of images: the sum goes over blocks of
        channels outside of them."""
        loops = {item.variable for item in walk(self.sums) if isinstance(item, For)}
        for leaf in leaves_of(self.sums):
            for load in (item for value in values_of(leaf) for item in loads(value)):
                axes = [axes_of(item) for item in load.indices]
                first = next((at for at, item in enumerate(axes) if not rows.isdisjoint(item)), 0)
                if not (loops - rows).isdisjoint(set().union(*axes[:first])):
                    return True
        return False

    def unlike(self, sizes: Sequence[int], rows: int) -> list[int]:
        """Those of these numbers of rows, of a tile of `rows`, that take less time than the next:
        not where that has no more sums than wait for each other in any case."""
        lanes = [x.stop for x in walk(self.sums) if isinstance(x, For) and x.kind is _VECTOR]
        terms = math.prod(loop.stop - loop.start for loop in self._summed())
        terms *= max((item.count for item in walk(self.sums) if isinstance(item, Dot)), default=1)
        vectors = math.prod(self.tile.memory.shape) / rows / max(lanes, default=1)
        if terms < LONG_SUM:
            return list(sizes)
        kept = [size for size, more in pairwise(sizes) if more * vectors > BLOCK]
        return [*kept, *sizes[-1:]]

    def copied(self, kept: Memory, before: tuple[Expr, ...] = ()) -> Body:
        """The sums, stored to where they can be found by their number; `before` leads there."""

        def stored(body: Body) -> Body:
            made: list[Stmt] = []
            for item in body:
                if isinstance(item, For):
                    made.append(replace(item, body=stored(item.body)))
                else:
                    assert isinstance(item, Store)
                    value = Load(kept.dtype, item.buffer, item.indices)
                    made.append(Store(kept.name, (*before, *item.indices), value))
            return tuple(made)

        return stored(self.zeros)


def sum_tile(tile: Allocate) -> SumTile | None:
    """A register tile's statements by what they do to it, if they come in that order and do
    nothing else."""
    if tile.scope is not Scope.REGISTER:
        return None
    if not all(isinstance(item, For | If | Store | Update | Dot) for item in walk(tile.body)):
        return None
    own = tile.memory.name
    parts: tuple[list[Stmt], list[Stmt], list[Stmt]] = ([], [], [])
    for statement in tile.body:
        kinds = {_kind(leaf, own) for leaf in leaves_of((statement,))}
        if len(kinds) != 1 or any(parts[min(kinds) + 1 :]):
            return None
        parts[min(kinds)].append(statement)
    if not all(parts) or any(isinstance(item, If) for item in walk((*parts[0], *parts[2]))):
        return None
    return SumTile(tile, *map(tuple, parts))


def _kind(leaf: Store | Update | Dot, own: str) -> int:
    """0 of what a sum begins with, 1 of what is added to it, 2 of what else is written."""
    if leaf.buffer != own:
        return 2
    return 1 if isinstance(leaf, Update | Dot) else 0


def leaves_of(body: Body) -> Iterator[Store | Update | Dot]:
    """The writes in a body."""
    return (item for item in walk(body) if isinstance(item, Store | Update | Dot))


def tiles_of_rows(tile: Allocate, condition: Condition, rows: Rows, known: Facts) -> Body:
    """The tile for as many rows as matter: the smallest of some sizes that has them.

    Those that have too few where what is known holds are left out, and of pixels those that are as
    slow as larger ones. What becomes of the sums of smaller tiles is written once, for as many rows
    as there are.
    """
    count, parts = rows.count, sum_tile(tile)
    guards = [] if parts is None else _row_guards(parts.sums, rows)
    in_blocks = parts is not None and not guards and count - 2 > BLOCK
    sizes = [count - 2] if in_blocks else [size for size in SIZES if size < count]
    if guards and count <= FEW_ROWS:
        sizes = [size for size in FEW_SIZES if size < count]
    elif guards:
        sizes = sizes[::-2][::-1]  # each has several times the code
    rests = [size for size in SIZES if size < BLOCK] if in_blocks else []
    if parts is not None and parts.has_pixels(rows.variables):
        sizes, rests = parts.unlike(sizes, count), parts.unlike(rests, count)
    whole: list[Stmt] = []
    smaller: list[tuple[int, list[Expr]]] = []
    for least, size in reversed(list(pairwise([0, *sizes, count]))):
        more, none = (condition.moved(rows.factor * number) for number in (least, size))
        if holds(none, known):
            break
        tests = [] if holds(more, known) else [more.to_expr()]
        if size == count:
            body = (tile,) if parts is None or not guards else _guarded_tile(parts, rows)
            whole += [If(all_of(*tests), body)] if tests else body
        else:
            smaller.append((size, [*tests, unary("not", none.to_expr())]))
    if parts is None or not smaller:
        cut = (If(all_of(*tests), cut_rows((tile,), rows.variables, n)) for n, tests in smaller)
        return (*whole, *cut)
    return (*whole, _smaller_tiles(parts, condition, rows, smaller, rests))


def _guarded_tile(parts: SumTile, rows: Rows) -> Body:
    """The whole tile with guards in its rows, and without them where none of its rows needs any.

    The sums under guards are plain loops: each unrolled round would branch by itself.
    """
    guards = frozenset(guard for guard in _row_guards(parts.sums, rows) if parts.asks(guard))
    if not guards:
        return (parts.tile,)
    guarded = replace(parts.tile, body=(*parts.zeros, *parts.rolled_sums(), *parts.ends))
    inside = _inside_of_guards(parts.sums, guards)
    if inside is None:
        return (guarded,)
    free = replace(parts.tile, body=(*parts.zeros, *_without(parts.sums, guards), *parts.ends))
    return If(inside, (free,)), If(unary("not", inside), (guarded,))


def _inside_of_guards(sums: Body, guards: Iterable[Expr]) -> Expr | None:
    """Where guards hold in every round of these sums; None where nothing says it."""
    rounds: dict[str, tuple[int, int]] = {}
    for loop in (item for item in walk(sums) if isinstance(item, For)):
        low, high = rounds.get(loop.variable, (loop.start, loop.stop - 1))
        rounds[loop.variable] = min(low, loop.start), max(high, loop.stop - 1)
    tests: dict[Expr, None] = {}
    for part in (part for guard in guards for part in conjuncts(guard)):
        if not (isinstance(part, Binary) and part.op in ("lt", "ge")):
            return None
        form = affine(part.left, {}).plus(affine(part.right, {}), -1)
        for name, (low, high) in rounds.items():
            factor = form.coefficient(name)
            worst = high if (factor > 0) == (part.op == "lt") else low
            form = form.plus(Affine(factor * worst, ((name, -factor),) if factor else ()))
        others = (atom for atom, _ in form.terms if not isinstance(atom, str))
        if not form.terms or any(axes_of(atom) & rounds.keys() for atom in others):
            return None
        tests[binary(part.op, form.to_expr(), integer(0))] = None
    return all_of(*tests)


def _without(body: Body, guards: frozenset[Expr]) -> Body:
    """The body with what stands under these conditions in their place."""
    made: list[Stmt] = []
    for item in body:
        if isinstance(item, For | If):
            item = replace(item, body=_without(item.body, guards))
        made += item.body if isinstance(item, If) and item.condition in guards else [item]
    return tuple(made)


def tiles_of_rest(count: int, rest: int) -> tuple[int, ...]:
    """The rows of the tiles that are run where `rest` rows are left for a tile of `count`."""
    if not rest:
        return ()
    if count - 2 <= BLOCK or rest > count - 2:
        return (next((size for size in SIZES if rest <= size < count), count),)
    blocks = (rest + 1) // BLOCK
    left = rest - blocks * BLOCK
    return (*[BLOCK] * blocks, *[next(size for size in SIZES if size >= left)] * (left > 0))


def _smaller_tiles(
    parts: SumTile,
    condition: Condition,
    rows: Rows,
    sizes: Sequence[tuple[int, list[Expr]]],
    rests: Sequence[int],
) -> If:
    """Tiles for these numbers of rows, each where its tests hold, the largest first; or blocks of
    rows up to the one number that there is, and a tile of one of `rests` for what these leave."""
    memory = parts.tile.memory
    kept = replace(memory, name=f"{memory.name}.tail")
    most, (*_, fewer) = sizes[0]
    there = condition.along(_ROW, rows.factor).rounds(_ROW)
    if rests:
        made = _blocks(parts, kept, condition, rows, there, most, rests)
    else:
        made = tuple(
            If(all_of(*tests), (_tile_of(parts, kept, rows, size, integer(0)),))
            for size, tests in sizes
        )
    ends = _limited(_moved(parts.ends, memory.name, kept.name, {}), rows, there, most)
    return If(fewer, (Allocate(kept, Scope.STACK, (*made, *ends)),))


def _row_guards(body: Body, rows: Rows) -> list[Expr]:
    guards = (item.condition for item in walk(body) if isinstance(item, If))
    return [guard for guard in guards if not rows.variables.isdisjoint(axes_of(guard))]


def _blocks(
    parts: SumTile,
    kept: Memory,
    condition: Condition,
    rows: Rows,
    there: Expr,
    most: int,
    sizes: Sequence[int],
) -> Body:
    """Tiles of `BLOCK` rows one after the other, and one of the rows that are left.

    A row less than a block is one block more: it computes one in vain.
    """
    name = f"{parts.tile.memory.name}.block"
    many = (most + 1) // BLOCK
    count = binary("floordiv", add(there, integer(1)), integer(BLOCK))
    start = mul(index(name), integer(BLOCK))
    block = _tile_of(parts, kept, rows, BLOCK, start)
    loop = For(name, 0, many, LoopKind.SERIAL, (block,), limit=count)
    left = condition.along(name, BLOCK * rows.factor)
    rest: list[Stmt] = []
    for least, size in reversed(list(pairwise([0, *sizes]))):
        more, none = (left.moved(rows.factor * number) for number in (least, size))
        tests = [more.to_expr()]
        tests += [unary("not", none.to_expr())] if size < sizes[-1] else []
        rest.append(If(all_of(*tests), (_tile_of(parts, kept, rows, size, start),)))
    done = binary("max", binary("min", count, integer(many)), integer(0))
    return loop, Let(name, done, tuple(rest))


def _tile_of(parts: SumTile, kept: Memory, rows: Rows, size: int, start: Expr) -> Allocate:
    """The sums of so many rows from one on, copied to where they are kept.

    Those of one row are unrolled as in the whole tile: others have enough to do in each round.
    """
    sums = parts.sums if size == 1 else parts.rolled_sums()
    places = {name: add(start, index(name)) for name in rows.variables}
    own = parts.tile.memory.name
    body = (*parts.zeros, *sums, *parts.copied(kept))
    return replace(parts.tile, body=_moved(cut_rows(body, rows.variables, size), own, own, places))


def _moved(body: Body, own: str, kept: str, places: Mapping[str, Expr]) -> Body:
    """The body with variables replaced but in a tile, which is read from another buffer."""

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer == own:
            return replace(node, buffer=kept)
        return places.get(node.name) if isinstance(node, Index) else None

    made: list[Stmt] = []
    for item in body:
        if isinstance(item, For | If):
            item = replace(item, body=_moved(item.body, own, kept, places))
        if isinstance(item, If):
            item = replace(item, condition=transform(item.condition, visit))
        if isinstance(item, Store | Update | Dot):
            if item.buffer != own:
                item = replace(item, indices=tuple(transform(i, visit) for i in item.indices))
            if isinstance(item, Dot):
                left, right = transform(item.left, visit), transform(item.right, visit)
                item = replace(item, left=left, right=right)
            else:
                item = replace(item, value=transform(item.value, visit))
        made.append(item)
    return tuple(made)


def _limited(body: Body, rows: Rows, limit: Expr, most: int) -> Body:
    """The body with plain loops over as many rows as there are, at most so many."""
    made: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For):
            statement = replace(statement, body=_limited(statement.body, rows, limit, most))
            if statement.variable in rows.variables:
                statement = replace(statement, stop=most, kind=LoopKind.SERIAL, limit=limit)
        made.append(statement)
    return tuple(made)


def cut_rows(body: Body, variables: frozenset[str], size: int) -> Body:
    """The body with unrolled loops of so many rounds."""
    made: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For | Let | If | Allocate):
            statement = replace(statement, body=cut_rows(statement.body, variables, size))
        if isinstance(statement, For) and statement.variable in variables:
            statement = replace(statement, stop=size)
        made.append(statement)
    return tuple(made)


def rolled(body: Body, variables: frozenset[str]) -> Body:
    """The body with unrolled loops over these variables as plain ones: a fraction of the code."""
    made: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For | Let | If | Allocate):
            statement = replace(statement, body=rolled(statement.body, variables))
        if isinstance(statement, For) and statement.variable in variables:
            kind = LoopKind.SERIAL if statement.kind is LoopKind.UNROLLED else statement.kind
            statement = replace(statement, kind=kind)
        made.append(statement)
    return tuple(made)
