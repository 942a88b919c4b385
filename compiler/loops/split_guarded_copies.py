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

    That is from `first` on, before `stop` and before all `sizes`; elsewhere it stores the constant.
    """

    loop: For
    lanes: For
    store: Store
    value: Expr
    padding: Const
    guards: tuple[Expr, ...]
    first: int
    stop: int
    sizes: tuple[Expr, ...]

    def split(self) -> Body:
        """What is padded before, what is there, and what is padded behind it."""
        loop, here = self.loop, index(self.loop.variable)
        end: Expr = integer(self.stop)
        for size in self.sizes:
            end = binary("min", end, size)
        end = binary("max", end, integer(self.first))
        last: Expr = integer(loop.stop)
        if loop.limit is not None:
            last = binary("min", loop.limit, last)
        inside = replace(loop, start=self.first, stop=self.stop, limit=binary("min", end, last))
        rest = replace(loop, start=0, stop=loop.stop - self.first, limit=sub(last, end))
        parts = (
            self._padded(replace(loop, stop=self.first), here),
            replace(inside, body=self._lanes(self.value)),
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
        store = replace(self.store, indices=indices, value=self.padding)
        return replace(loop, body=(replace(self.lanes, body=(store,)),))

    def _lanes(self, value: Expr) -> Body:
        return (replace(self.lanes, body=(replace(self.store, value=value),)),)


def _copy_of(loop: For) -> _Copy | None:
    """The loop as such a copy; None where it is anything else."""
    match loop.body:
        case (For(kind=LoopKind.VECTORISED, body=(Store() as store,)) as lanes,):
            pass
        case _:
            return None
    if loop.kind is not LoopKind.SERIAL:
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
    """The copy whose conditions are bounds of the loop's variable, or do not depend on it."""
    guards: list[Expr] = []
    first, stop, sizes = loop.start, loop.stop, list[Expr]()
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
        if place.terms != ((loop.variable, 1),):
            return None
        if condition.op == "lt":
            end = add(condition.right, integer(-place.constant))
            if isinstance(end, Const):
                stop = min(stop, int(end.value))
            else:
                sizes.append(end)
        elif condition.op == "ge" and isinstance(condition.right, Const):
            first = max(first, int(condition.right.value) - place.constant)
        else:
            return None
    if first > stop:
        return None
    return _Copy(loop, lanes, store, value, padding, tuple(guards), first, stop, tuple(sizes))
