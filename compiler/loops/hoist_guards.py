"""Pass: vectors that are stored under conditions are stored without them where all of them hold.

unrolled for i in 0..4:                              if o * 4 + 3 < n:
  vector for l in 0..8:                                unrolled for i in 0..4:
    y[o * 4 + i, l] = select(o * 4 + i < n, v, 0) ->     vector for l: y[o * 4 + i, l] = v
                                                     if not o * 4 + 3 < n:
                                                       as before

One condition for each nest of such loops instead of one for each vector, or for each lane.
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.expr.affine import Affine, Ranges, affine, affine_range
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
    unary,
)
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.expr.walk import axes_of, loads
from tunefarm.compiler.loops.ir import Allocate, Body, For, If, Let, LoopKind, Store


def hoist_guards(body: Body) -> Body:
    """The statements with such nests in two forms, where sizes are among the conditions."""
    made: Body = ()
    for statement in body:
        if isinstance(statement, For) and statement.kind in _INSIDE:
            made += _both_forms(statement)
        elif isinstance(statement, For | If | Let | Allocate):
            made += (replace(statement, body=hoist_guards(statement.body)),)
        else:
            made += (statement,)
    return made


_INSIDE = (LoopKind.UNROLLED, LoopKind.VECTORISED)


def _both_forms(nest: For) -> Body:
    """The nest where all vectors are there, and where not; as it is where it is no such nest."""
    loops, store = _parts(nest)
    if store is None:
        return (nest,)
    value, conditions = store.value, list[Expr]()
    while isinstance(value, Select) and isinstance(value.otherwise, Const):
        conditions += conjuncts(value.condition)
        value = value.then
    if not any(loads(condition) for condition in conditions):
        return (nest,)
    ranges = {loop.variable: (loop.start, loop.stop - 1) for loop in loops}
    hold = [_everywhere(condition, ranges) for condition in conditions]
    if None in hold:
        return (nest,)
    inside = all_of(*dict.fromkeys(item for item in hold if item is not None))
    plain: Body = (replace(store, value=value),)
    for loop in reversed(loops):
        plain = (replace(loop, body=plain),)
    return If(inside, plain), If(unary("not", inside), (nest,))


def _parts(nest: For) -> tuple[list[For], Store | None]:
    """The loops of a nest, outermost first, and the store that is all that they have."""
    loops = [nest]
    while True:
        match loops[-1].body:
            case (For() as inner,) if inner.kind in _INSIDE and inner.is_whole:
                loops.append(inner)
            case (Store() as store,) if loops[0].is_whole:
                return loops, store
            case _:
                return loops, None


def _everywhere(condition: Expr, ranges: Ranges) -> Expr | None:
    """A condition that implies this one for all values of the variables; None if there is none."""
    if axes_of(condition).isdisjoint(ranges):
        return condition
    if not isinstance(condition, Binary) or condition.op not in ("lt", "ge"):
        return None
    op, left, right = condition.op, condition.left, condition.right
    match left:
        case Binary(op="floordiv", left=number, right=Const() as divisor):
            left, right = number, mul(right, divisor)  # x // d < n where x < n * d
    place = affine(left, {})
    inner = Affine(0, tuple((atom, by) for atom, by in place.terms if atom in ranges))
    outer = Affine(0, tuple(term for term in place.terms if term not in inner.terms))
    atoms = [atom for atom, _ in outer.terms if not isinstance(atom, str)]
    if not axes_of(right).isdisjoint(ranges) or any(axes_of(a) & ranges.keys() for a in atoms):
        return None
    least, most = affine_range(inner, ranges)
    total: Expr = integer(place.constant + (most if op == "lt" else least))
    for atom, by in outer.terms:
        term = index(atom) if isinstance(atom, str) else atom
        total = add(mul(term, integer(by)), total)
    return binary(op, total, right)
