"""Pass: padding that a kernel fills is written behind the true elements, and never computed.

for i in 0..64: y[i] = select(i < sizes[0], f(i), 0)     needed where i < sizes[0] + 1
->
for i in 0..64: y[i] = f(i)                              needed where i < sizes[0]
for j in 0..1: if sizes[0] + j < 64: y[sizes[0] + j] = 0
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tunefarm.compiler.expr.affine import Affine, Ranges, affine
from tunefarm.compiler.expr.nodes import (
    Binary,
    Const,
    Expr,
    Load,
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
from tunefarm.compiler.kernels.kernel import DensePitch, ValidExtent
from tunefarm.compiler.loops.demand_analysis import DemandAnalysis, Place, assumed
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    Dot,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Memory,
    Stmt,
    Store,
    TileLoad,
    Update,
    values_of,
    walk,
    written,
)
from tunefarm.compiler.loops.size_conditions import (
    Condition,
    reduced,
    size_conditions,
    terms_of,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen, replace

_LANES = 16


@frozen
class _Border:
    """From a row of a size on a dimension of the output on it holds a value.

    A row has `each` so many elements of the dimension: of an axis that is two in one.
    """

    dimension: int
    size: Load
    value: Const
    each: int


def split_borders(
    nest: LoopNest, limits: Sequence[ValidExtent]
) -> tuple[LoopNest, tuple[ValidExtent, ...], Body]:
    """The nest without selects for what is filled behind its sizes, its limits, and the filling.

    The filling is to follow the nest, whose last tiles may write behind the sizes.
    """
    places = DemandAnalysis(nest, ()).places
    stores = [place for place in places.values() if place.statement.buffer == nest.output.name]
    if not stores or _is_used_otherwise(nest) or _ends_at_sizes(nest):
        return nest, tuple(limits), ()
    borders: list[_Border] = []
    left = list(limits)
    for border in _common_borders(stores):
        limit = _limit_of(border, nest.output, left)
        if limit is None and any(_ends_along(other, border, nest.output) for other in left):
            continue  # what is behind the size is needed up to another one
        if limit is None:
            left.append(_whole(border, nest.output))
        else:
            left[left.index(limit)] = replace(limit, offset=min(limit.offset, 0))
        borders.append(border)
    if not borders:
        return nest, tuple(limits), ()
    body = _without(nest.body, {id(p.statement): _assumed(p, borders) for p in stores})
    made = (_filled(nest.output, border, limits) for border in borders)
    return replace(nest, body=body), tuple(left), tuple(filling for one in made for filling in one)


def _ends_at_sizes(nest: LoopNest) -> bool:
    """Whether an input may end where sizes do, so that selects keep tiles from reading on."""
    return any(isinstance(memory.pitch, DensePitch) for memory in nest.inputs)


def _is_used_otherwise(nest: LoopNest) -> bool:
    """Whether the output is read, or written by anything but stores."""
    name = nest.output.name
    for statement in walk(nest.body):
        if isinstance(statement, TileLoad) and statement.source.buffer == name:
            return True
        for write in written(statement):
            if write.buffer == name and (write is not statement or not isinstance(write, Store)):
                return True
            read = values_of(write) if isinstance(write, Store | Update | Dot) else ()
            if any(load.buffer == name for value in read for load in loads(value)):
                return True
    return False


def _common_borders(stores: Sequence[Place]) -> list[_Border]:
    """What all stores to the output fill, the outermost first."""
    found = [[border for _, border in _borders(place)] for place in stores]
    return [border for border in found[0] if all(border in other for other in found[1:])]


def _borders(place: Place) -> Iterator[tuple[Condition, _Border]]:
    """The conditions of a store's outermost selects, with what they fill."""
    assert isinstance(place.statement, Store)
    value, forms = place.statement.value, [affine(i, place.ranges) for i in place.statement.indices]
    filling: Expr | None = None
    while isinstance(value, Select) and isinstance(value.otherwise, Const):
        filling = value.otherwise if filling is None else filling
        conditions = size_conditions(value.condition, place.ranges)
        if value.otherwise != filling or len(conditions) != len(conjuncts(value.condition)):
            return
        for condition in conditions:
            for dimension, form in enumerate(forms):
                each = _elements(form, condition, place.ranges)
                if each is not None:
                    yield condition, _Border(dimension, condition.size, value.otherwise, each)
                    break
            else:
                return
        value = value.then


def _elements(form: Affine, condition: Condition, ranges: Ranges) -> int | None:
    """Of how many elements the condition counts rows along an index; None where it is about none.

    i * 8 + lane is less than 8 * size where i < size.
    """
    terms = dict(form.terms)
    if form.constant == condition.constant and terms == dict(condition.terms):
        return condition.scale
    named = terms_of(form)
    if named is None or not condition.terms:
        return None
    name, step = condition.terms[0]
    each, rest = divmod(terms.get(name, 0) * condition.scale, step)
    if rest or each < 1:
        return None
    whole = reduced(Condition(named, form.constant, each, condition.size), ranges)
    return each if whole == reduced(condition, ranges) else None


def _limit_of(border: _Border, output: Memory, limits: Sequence[ValidExtent]) -> ValidExtent | None:
    """The limit of a border's dimension by its size."""
    for limit in limits:
        named = Load(border.size.dtype, limit.sizes, (integer(limit.number),))
        if named == border.size and _is_along(limit, border, output):
            return limit
    return None


def _whole(border: _Border, output: Memory) -> ValidExtent:
    """The limit of a border's dimension where all that is behind it is needed."""
    (number,) = border.size.indices
    assert isinstance(number, Const)
    stride, extent = _rows(border, output)
    return ValidExtent(stride, extent, border.size.buffer, int(number.value))


def _is_along(limit: ValidExtent, border: _Border, output: Memory) -> bool:
    return (limit.stride, limit.extent) == _rows(border, output)


def _ends_along(limit: ValidExtent, border: _Border, output: Memory) -> bool:
    """Whether a limit ends the border's dimension, after so many of its rows at a time."""
    stride, extent = _rows(border, output)
    return limit.stride % stride == 0 and limit.period == stride * extent


def _rows(border: _Border, output: Memory) -> tuple[int, int]:
    """How far the rows of a border are apart in the output, and how many there are."""
    inner = math.prod(output.shape[border.dimension + 1 :])
    return inner * border.each, output.shape[border.dimension] // border.each


def _assumed(place: Place, borders: Sequence[_Border]) -> Stmt:
    assert isinstance(place.statement, Store)
    known = {c.key: c for c, border in _borders(place) if border in borders}
    value = assumed(place.statement.value, known, place.ranges)
    return replace(place.statement, value=value)


def _without(body: Body, stores: dict[int, Stmt]) -> Body:
    made: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For | Let | If | Allocate):
            made.append(replace(statement, body=_without(statement.body, stores)))
        else:
            made.append(stores.get(id(statement), statement))
    return tuple(made)


# --- what fills ---------------------------------------------------------------------------------


def _filled(output: Memory, border: _Border, limits: Sequence[ValidExtent]) -> Body:
    """Loops that write the value as far behind the size as it is needed."""
    limit = _limit_of(border, output, limits)
    _, extent = _rows(border, output)
    count = extent if limit is None else min(limit.offset, extent)
    if count <= 0:
        return ()
    last = len(output.shape) - 1
    if border.dimension == last and border.each == 1:
        return _filled_rows(output, border, count, limits)
    names = [f"border{border.dimension}.{number}" for number in range(len(output.shape))]
    row, within = add(border.size, index(names[border.dimension])), f"{names[border.dimension]}.i"
    packed, elements = names[last], output.shape[last]
    if border.dimension == last:
        packed, elements = within, border.each
    lanes = max(count for count in (1, _LANES // 2, _LANES) if elements % count == 0)
    lane = f"{packed}.lane"
    indices: dict[str, Expr] = {name: index(name) for name in (*names, within)}
    if lanes > 1:
        indices[packed] = add(mul(indices[packed], integer(lanes)), index(lane))
    indices[names[border.dimension]] = row
    if border.each > 1:
        indices[names[border.dimension]] = add(mul(row, integer(border.each)), indices[within])
    body: Body = (Store(output.name, tuple(indices[name] for name in names), border.value),)
    if lanes > 1:
        body = (For(lane, 0, lanes, LoopKind.VECTORISED, body),)
    if border.each > 1:
        rounds = border.each // lanes if packed == within else border.each
        body = (For(within, 0, rounds, LoopKind.SERIAL, body),)
    for number in reversed(range(len(output.shape))):
        if number != border.dimension:
            by = lanes if number == last else 1
            body = _along_dimension(output, number, names[number], body, limits, by)
    inside = (If(binary("lt", row, integer(extent)), body),)
    rest = sub(integer(extent), border.size)
    return (For(names[border.dimension], 0, count, LoopKind.SERIAL, inside, limit=rest),)


def _filled_rows(
    output: Memory, border: _Border, count: int, limits: Sequence[ValidExtent]
) -> Body:
    """As `_filled` of the last dimension: row by row, and vectors from the end backwards."""
    extent = output.shape[-1]
    names = [f"border{border.dimension}.{number}" for number in range(len(output.shape))]
    outer = tuple(index(name) for name in names[:-1])
    left = sub(integer(extent), border.size)
    vectors = extent // _LANES if count == extent else 0
    single = left
    if vectors:
        single = binary("mod", left, integer(_LANES))
        count = min(count, _LANES - 1)
    behind = add(border.size, index(names[-1]))
    store = Store(output.name, (*outer, behind), border.value)
    inside = (If(binary("lt", behind, integer(extent)), (store,)),)
    body: Body = (For(names[-1], 0, count, LoopKind.SERIAL, inside, limit=single),)
    if vectors:
        lane, block = index(f"{names[-1]}.lane"), index(f"{names[-1]}.o")
        first = sub(integer(extent - _LANES), mul(block, integer(_LANES)))
        store = Store(output.name, (*outer, add(first, lane)), border.value)
        row = (For(lane.name, 0, _LANES, LoopKind.VECTORISED, (store,)),)
        end = binary("floordiv", left, integer(_LANES))
        body = (*body, For(block.name, 0, vectors, LoopKind.SERIAL, row, limit=end))
    for number in reversed(range(len(names) - 1)):
        body = _along_dimension(output, number, names[number], body, limits)
    return body


def _along_dimension(
    output: Memory, number: int, name: str, body: Body, limits: Sequence[ValidExtent], by: int = 1
) -> Body:
    """The loop over what is needed of a dimension, so many elements a round."""
    end = _end(output, number, limits)
    if end is not None and by > 1:
        end = binary("floordiv", add(end, integer(by - 1)), integer(by))
    return (For(name, 0, output.shape[number] // by, LoopKind.SERIAL, body, limit=end),)


def _end(output: Memory, dimension: int, limits: Sequence[ValidExtent]) -> Expr | None:
    """Where a dimension's elements are needed no more."""
    extent, inner = output.shape[dimension], math.prod(output.shape[dimension + 1 :])
    for limit in limits:
        by, rest = divmod(limit.stride, inner)  # of rows that are one axis, so many are an element
        if extent > 1 and not rest and by and limit.period == inner * extent:
            size = Load(DType.I64, limit.sizes, (integer(limit.number),))
            return mul(add(size, integer(limit.offset)), integer(by))
    return None


# Pass: a copy with padding, of a dynamic size, becomes loops over what is there and what is not.
#
# for i in 0..n + 5:                                     if r < m:
#   vector for l:                                          for i in 0..1:      y[i, l] = 0
#     y[i, l] = select(r < m and i >= 1 and i < n + 1, ->  for i in 1..n + 1:  y[i, l] = x[i - 1, l]
#                      x[i - 1, l], 0)                     for j in 0..4:      y[n + 1 + j, l] = 0
#                                                        if not r < m:
#                                                          for i in 0..n + 5:  y[i, l] = 0
#
# Conditions that all lanes share would be worked out for each vector.


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


@frozen
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
