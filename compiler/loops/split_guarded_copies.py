"""Pass: a copy with padding, of a dynamic size, becomes loops over what is there and what is not.

for i in 0..n + 5:                                     if r < m:
  vector for l:                                          for i in 0..1:      y[i, l] = 0
    y[i, l] = select(r < m and i >= 1 and i < n + 1, ->  for i in 1..n + 1:  y[i, l] = x[i - 1, l]
                     x[i - 1, l], 0)                     for j in 0..4:      y[n + 1 + j, l] = 0
                                                       if not r < m:
                                                         for i in 0..n + 5:  y[i, l] = 0

Conditions that all lanes share would be worked out for each vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tunefarm.compiler.expr.affine import affine
from tunefarm.compiler.expr.nodes import (
    Binary,
    Const,
    Expr,
    Select,
    add,
    all_of,
    binary,
    index,
    integer,
    mul,
    sub,
    unary,
)
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.expr.walk import axes_of, loads, substitute
from tunefarm.compiler.loops.ir import Allocate, Body, For, If, Let, LoopKind, Stmt, Store


def split_guarded_copies(body: Body) -> Body:
    """The statements with the loops of such copies split."""
    made: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For):
            copy = _copy_of(statement)
            if copy is not None:
                made += copy.split()
                continue
        if isinstance(statement, For | If | Let | Allocate):
            statement = replace(statement, body=split_guarded_copies(statement.body))
        made.append(statement)
    return tuple(made)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A loop of vectors that are stored where all `guards` hold and the variable is inside.

    That is from `first` and all `firsts` on, before `stop` and before all `sizes`; elsewhere it
    stores the constant. `firsts` are at most `latest`.
    """

    loop: For
    lanes: For
    store: Store
    value: Expr
    padding: Const
    guards: tuple[Expr, ...]
    first: int
    firsts: tuple[Expr, ...]
    latest: int
    stop: int
    sizes: tuple[Expr, ...]

    def split(self) -> Body:
        """What is padded before, what is there, and what is padded behind it."""
        loop, here = self.loop, index(self.loop.variable)
        begin: Expr = integer(self.first)
        for first in self.firsts:
            begin = binary("max", begin, first)
        end: Expr = integer(self.stop)
        for size in self.sizes:
            end = binary("min", end, size)
        end = binary("max", end, begin)
        last: Expr = integer(loop.stop)
        if loop.limit is not None:
            last = binary("min", loop.limit, last)
        before = replace(loop, stop=self.first)
        inside = replace(loop, start=self.first, stop=self.stop, limit=binary("min", end, last))
        copied = self._lanes(self.store.indices, self.value)
        if self.firsts:
            before = replace(loop, stop=self.latest, limit=binary("min", begin, last))
            limit = sub(binary("min", end, last), begin)
            inside = replace(loop, start=0, stop=self.stop - self.first, limit=limit)
            moved = {loop.variable: add(begin, here)}
            indices = tuple(substitute(item, moved) for item in self.store.indices)
            copied = self._lanes(indices, substitute(self.value, moved))
        rest = replace(loop, start=0, stop=loop.stop - self.first, limit=sub(last, end))
        parts = (
            self._padded(before, here),
            replace(inside, body=copied),
            self._padded(rest, add(end, here)),
        )
        some = tuple(part for part in parts if part.start < part.stop)
        if not self.guards:
            return some
        guard = all_of(*self.guards)
        return If(guard, some), If(unary("not", guard), (self._padded(loop, here),))

    def _padded(self, loop: For, place: Expr) -> For:
        """The loop with the constant stored at the place."""
        values = {self.loop.variable: place}
        indices = tuple(substitute(item, values) for item in self.store.indices)
        return replace(loop, body=self._lanes(indices, self.padding))

    def _lanes(self, indices: tuple[Expr, ...], value: Expr) -> Body:
        store = replace(self.store, indices=indices, value=value)
        return (replace(self.lanes, body=(store,)),)


def _copy_of(loop: For) -> _Copy | None:
    """The loop as such a copy; None where it is anything else."""
    match loop.body:
        case (For(kind=LoopKind.VECTORISED, body=(Store() as store,)) as lanes,):
            pass
        case _:
            return None
    if loop.kind is not LoopKind.SERIAL or loop.begins is not None:
        return None
    value, conditions, padding = store.value, list[Expr](), store.value
    while isinstance(value, Select) and isinstance(value.otherwise, Const):
        if isinstance(padding, Const) and padding != value.otherwise:
            return None
        padding = value.otherwise
        conditions += conjuncts(value.condition)
        value = value.then
    sized = loop.limit is not None or any(loads(condition) for condition in conditions)
    if not isinstance(padding, Const) or not sized or not loads(value):
        return None
    return _divided(loop, lanes, store, value, padding, conditions)


def _divided(
    loop: For, lanes: For, store: Store, value: Expr, padding: Const, conditions: Sequence[Expr]
) -> _Copy | None:
    """The copy whose conditions are bounds of the loop's variable, or do not depend on it.

    What outer loops add to the variable moves the bounds.
    """
    guards: list[Expr] = []
    first, stop, sizes = loop.start, loop.stop, list[Expr]()
    firsts, latest = list[Expr](), loop.start
    for condition in conditions:
        names = axes_of(condition)
        if lanes.variable in names:
            return None
        if loop.variable not in names:
            guards.append(condition)
            continue
        if not isinstance(condition, Binary) or loop.variable in axes_of(condition.right):
            return None
        place = affine(condition.left, {})
        outside = [(atom, step) for atom, step in place.terms if atom != loop.variable]
        if dict(place.terms).get(loop.variable) != 1 or any(step < 0 for _, step in outside):
            return None
        bound = add(condition.right, integer(-place.constant))
        for atom, step in outside:
            if not isinstance(atom, str):
                return None
            bound = sub(bound, mul(index(atom), integer(step)))
        if condition.op == "lt":
            if isinstance(bound, Const):
                stop = min(stop, int(bound.value))
            else:
                sizes.append(bound)
        elif condition.op == "ge" and isinstance(condition.right, Const):
            least = int(condition.right.value) - place.constant
            if outside:
                firsts.append(bound)
                latest = max(latest, least)
            else:
                first = max(first, least)
        else:
            return None
    if first > stop:
        return None
    latest = min(max(latest, first), loop.stop)
    found = (first, tuple(firsts), latest, stop, tuple(sizes))
    return _Copy(loop, lanes, store, value, padding, tuple(guards), *found)
