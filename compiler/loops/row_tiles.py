"""Register tiles of rows that end at run time: tiles for fewer rows, of which one is run.

register sum: f32[8, 16]                        if 4 < rows:
  unrolled for i in 0..8: …          ->           register sum: f32[8, 16]
                                                    unrolled for i in 0..8: …
                                                if 2 < rows and not(4 < rows):
                                                  register sum: f32[8, 16]
                                                    unrolled for i in 0..4: …
                                                …
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from tunefarm.compiler.expr.nodes import Load, all_of, unary
from tunefarm.compiler.loops.ir import Allocate, Body, For, If, Let, LoopKind, Stmt, walk
from tunefarm.compiler.loops.needed_statements import Facts, NeededStatements, holds
from tunefarm.compiler.loops.size_conditions import Condition

SIZES = (1, 2, 4, 6, 8, 11, 15, 20, 27)
"""Rows of tiles that are smaller than the whole: the last tile of rows computes few in vain, while
all of them together take little more code than two whole ones."""

MIN_LONE_TILE_ROWS = 3
"""Rows of a tile that is all there is, at which it is worth smaller ones."""

FEW = 8
"""So many times its rows before a last tile, it may compute some in vain."""

NEAR_MAXIMUM_SHARE = 0.75
"""A statement that is run where a size is above so much of its maximum may compute in vain
in other directions."""


@dataclass(frozen=True, slots=True)
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


def tiles_of_rows(tile: Allocate, condition: Condition, rows: Rows, known: Facts) -> Body:
    """The tile for as many rows as matter: the smallest of some sizes that has them.

    Those that have too few where what is known holds are left out.
    """
    count = rows.count
    sizes = [size for size in SIZES if size < count]
    made: list[Stmt] = []
    for least, size in reversed(list(pairwise([0, *sizes, count]))):
        more, none = (
            replace(condition, constant=condition.constant + rows.factor * number)
            for number in (least, size)
        )
        if holds(none, known):
            break
        parts = [] if holds(more, known) else [more.to_expr()]
        parts += [unary("not", none.to_expr())] if size < count else []
        cut = tile if size == count else cut_rows((tile,), rows.variables, size)[0]
        made.append(If(all_of(*parts), (cut,)) if parts else cut)
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
