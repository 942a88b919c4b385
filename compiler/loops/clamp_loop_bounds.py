"""Pass: loops end at the last iteration that is needed, which dynamic sizes decide.

for i.o in 0..43:                                     for i.o in 0..min(43, (sizes[1] + 11) // 12):
  for k in 0..512:                                      for k in 0..min(512, sizes[1]):
    unrolled for i in 0..12:                      ->      unrolled for i in 0..12:
      y[12 i.o + i] += select(k < sizes[1], …, 0)           y[12 i.o + i] += …

`DemandAnalysis` says under which conditions on indices each write is used. A loop ends where no
write in it is, and a condition that the new bound implies is removed from selects and ifs. The last
iteration of a tiled loop, of which only a part is needed, keeps its conditions, or becomes tiles of
fewer rows (`row_tiles`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tunefarm.compiler.expr.affine import Affine, Ranges, affine, affine_range, expr_range
from tunefarm.compiler.expr.nodes import (
    Binary,
    Const,
    Expr,
    Index,
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
from tunefarm.compiler.kernels.kernel import ValidExtent
from tunefarm.compiler.loops.batch_register_tiles import batch_register_tiles
from tunefarm.compiler.loops.demand_analysis import DemandAnalysis, assumed
from tunefarm.compiler.loops.ir import (
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
from tunefarm.compiler.loops.known_padding import nodes
from tunefarm.compiler.loops.needed_statements import Facts, NeededStatements, holds, outside_of
from tunefarm.compiler.loops.row_tiles import is_rare, tiles_of_rows, unrolled_rows, worth_cutting
from tunefarm.compiler.loops.size_conditions import (
    Condition,
    Key,
    greatest_of,
    size_condition,
    size_conditions,
    strongest,
)
from tunefarm.compiler.loops.split_borders import split_borders, split_guarded_copies
from tunefarm.compiler.loops.thread_shares import parallel_profit
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen, replace

# --- Fused loops whose parts end at run time: one loop over as many rounds as the parts have -----
#
# parallel for p in 0..96:               let i.o.rounds = …
#   let j.o = p % 12               ->    parallel for p in 0..min(96, 12 * i.o.rounds):
#   let p.1 = p // 12                      let j.o = p % 12
#     …                                    let p.1 = p // 12


@frozen
class _Part:
    """A loop that was fused: the variable, its static extent, and whether it is what is left."""

    variable: str
    extent: int


@frozen
class FusedParts:
    """A fused loop with its bindings: `divided` has those of each part, innermost first."""

    loop: For
    lets: tuple[Let, ...]
    parts: tuple[_Part, ...]  # innermost first; the last one is what is left of the variable
    body: Body

    def ranges(self) -> Mapping[str, tuple[int, int]]:
        """Of the fused loop's variable and of what is bound to it."""
        found = {self.loop.variable: (0, self.loop.stop - 1)}
        size = self.loop.stop
        for part, quotient in zip(self.parts, self.lets[1::2], strict=False):
            found[part.variable] = (0, part.extent - 1)
            size //= part.extent
            found[quotient.variable] = (0, size - 1)
        return found

    def limited(self, live: Mapping[Key, Condition]) -> LimitedParts | None:
        """The parts with the conditions that end them; None where there are none."""
        names = {part.variable for part in self.parts}
        found: dict[str, list[Condition]] = {}
        for item in live.values():
            own = [name for name, _ in item.terms if name in names]
            if len(own) == 1 and item.coefficient(own[0]) > 0:
                found.setdefault(own[0], []).append(item)
        return LimitedParts(self, found) if found else None


@frozen
class LimitedParts:
    """Fused parts of which some end at run time, by variable."""

    fused: FusedParts
    ends: Mapping[str, list[Condition]]

    @property
    def facts(self) -> dict[Key, Condition]:
        """What holds inside."""
        return {item.key: item for items in self.ends.values() for item in items}

    def needed(self) -> dict[Key, Condition]:
        """Conditions without which the loop has no round."""
        return strongest(item.at(name, 0) for name, items in self.ends.items() for item in items)

    def rebuilt(self, body: Body) -> Body:
        """The loop over the rounds that there are, round this body."""
        loop, lets = self.fused.loop, self.fused.lets
        outer: list[tuple[str, Expr]] = []
        factors: list[Expr] = []
        for part in self.fused.parts:
            rounds: Expr = integer(part.extent)
            for item in self.ends.get(part.variable, ()):
                rounds = binary("min", item.rounds(part.variable), rounds)
            if not isinstance(rounds, Const):
                name = f"{part.variable}.rounds"
                outer.append((name, binary("max", rounds, integer(0))))
                rounds = index(name)
            factors.append(rounds)
        trips = factors[0]
        for factor in factors[1:]:
            trips = mul(trips, factor)
        made, size = body, loop.stop
        sizes = []
        for part in self.fused.parts[:-1]:
            size //= part.extent
            sizes.append(size)
        for number in reversed(range(len(self.fused.parts) - 1)):
            rest, quotient = lets[2 * number : 2 * number + 2]
            made = (
                replace(
                    quotient, value=_divided(quotient, factors[number], sizes[number]), body=made
                ),
            )
            extent = self.fused.parts[number].extent
            made = (replace(rest, value=_divided(rest, factors[number], extent), body=made),)
        made = (replace(loop, limit=trips, body=made),)
        for name, value in reversed(outer):
            made = (Let(name, value, made),)
        return made


def _divided(let: Let, divisor: Expr, extent: int) -> Expr:
    """A quotient or rest by another divisor, still below the static extent."""
    assert isinstance(let.value, Binary)
    if isinstance(divisor, Const):
        return let.value
    return binary("min", binary(let.value.op, let.value.left, divisor), integer(extent - 1))


def fused_parts(loop: For) -> FusedParts | None:
    """The parts of a loop that was fused; None of any other, or where more depends on the loop."""
    if loop.start:
        return None
    lets: list[Let] = []
    parts: list[_Part] = []
    variable, body, size = loop.variable, loop.body, loop.stop
    while (pair := _division(variable, body)) is not None:
        rest, quotient, divisor = pair
        lets += [rest, quotient]
        parts.append(_Part(rest.variable, divisor))
        variable, body, size = quotient.variable, quotient.body, size // divisor
    if not parts:
        return None
    return FusedParts(loop, tuple(lets), (*parts, _Part(variable, size)), body)


def _division(variable: str, body: Body) -> tuple[Let, Let, int] | None:
    """`let rest = v % d: let quotient = v // d: …`"""
    if len(body) != 1 or not isinstance(rest := body[0], Let):
        return None
    if len(rest.body) != 1 or not isinstance(quotient := rest.body[0], Let):
        return None
    match rest.value, quotient.value:
        case (
            Binary(op="mod", left=Index(name=first), right=Const(value=divisor)),
            Binary(op="floordiv", left=Index(name=second), right=Const(value=other)),
        ) if first == second == variable and divisor == other:
            return rest, quotient, int(divisor)
    return None


# Pass: vectors that are stored under conditions are stored without them where all of them hold.
#
# unrolled for i in 0..4:                              if o * 4 + 3 < n:
#   vector for l in 0..8:                                unrolled for i in 0..4:
#     y[o * 4 + i, l] = select(o * 4 + i < n, v, 0) ->     vector for l: y[o * 4 + i, l] = v
#                                                      if not o * 4 + 3 < n:
#                                                        as before
#
# One condition for each nest of such loops instead of one for each vector, or for each lane. Where
# vectors are chosen from several places, as parts of a concat are, each has a form of its own.


def hoist_guards(body: Body) -> Body:
    """The statements with such nests in several forms, where sizes are among the conditions."""
    made: Body = ()
    for statement in body:
        if isinstance(statement, For) and statement.kind in _INSIDE:
            made += _forms(statement)
        elif isinstance(statement, For | If | Let | Allocate):
            made += (replace(statement, body=hoist_guards(statement.body)),)
        else:
            made += (statement,)
    return made


_INSIDE = (LoopKind.UNROLLED, LoopKind.VECTORISED)


def _forms(nest: For) -> Body:
    """The nest for each choice of all its vectors, and for the rest; as it is if it is none."""
    loops, store = _parts(nest)
    if store is None:
        return (nest,)
    ranges = {loop.variable: (loop.start, loop.stop - 1) for loop in loops}
    made: list[If] = []
    for value, conditions in _choices(store.value):
        if not any(loads(condition) for condition in conditions):
            continue
        hold = [_everywhere(condition, ranges) for condition in conditions]
        if None in hold:
            continue
        inside = all_of(*dict.fromkeys(item for item in hold if item is not None))
        plain: Body = (replace(store, value=value),)
        for loop in reversed(loops):
            plain = (replace(loop, body=plain),)
        made.append(If(inside, plain))
    left = [unary("not", form.condition) for form in made]
    return (*made, If(all_of(*left), (nest,))) if made else (nest,)


_MOST_CHOICES = 4
"""Forms of a nest besides the one for all cases."""


def _choices(value: Expr) -> list[tuple[Expr, list[Expr]]]:
    """What a tree of selects chooses from, but for constants, and the conditions of each.

    Of a tree of many it is what its outermost selects leave of it where they do not choose a
    constant; also of one whose conditions read data, which is there where others hold.
    """
    found = list(_chosen(value, []))
    reads_data = any(_reads_data(item) for _, conditions in found for item in conditions)
    if 0 < len(found) <= _MOST_CHOICES and not reads_data:
        return found
    conditions = list[Expr]()
    while isinstance(value, Select) and isinstance(value.otherwise, Const):
        conditions += conjuncts(value.condition)
        value = value.then
    return [(value, conditions)]


def _reads_data(condition: Expr) -> bool:
    """Whether a condition reads anything but sizes, each at a place of its own."""
    return any(axes_of(place) for load in loads(condition) for place in load.indices)


def _chosen(value: Expr, conditions: list[Expr]) -> Iterator[tuple[Expr, list[Expr]]]:
    if isinstance(value, Select):
        yield from _chosen(value.then, [*conditions, *conjuncts(value.condition)])
        yield from _chosen(value.otherwise, [*conditions, _opposite(value.condition)])
    elif not isinstance(value, Const):
        yield value, conditions


def _opposite(condition: Expr) -> Expr:
    """What holds where a condition does not."""
    match condition:  # of floats both may be false
        case Binary(op=op, left=left, right=right) if op in _OPPOSITES and left.dtype is DType.I64:
            return binary(_OPPOSITES[op], left, right)
    return unary("not", condition)


_OPPOSITES = {"lt": "ge", "ge": "lt"}


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
    if not isinstance(condition, Binary) or condition.op not in _OPPOSITES:
        return None
    if condition.left.dtype is not DType.I64:
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


_RUNS = (LoopKind.SERIAL, LoopKind.PARALLEL)


def clamp_loop_bounds(nest: LoopNest, limits: Sequence[ValidExtent]) -> LoopNest:
    """The nest with limits on its loops; the same one where no size is dynamic."""
    if not limits and not _has_sizes(nest):
        return nest
    nest, limits, filling = split_borders(nest, limits)
    before = nest
    needed = NeededStatements(DemandAnalysis(nest, limits).guarded_analysis())
    writes = needed.writes.of_changed(batch_register_tiles(needed))
    if writes is not needed.writes:
        needed = NeededStatements(writes)
    nest = writes.nest
    body = hoist_guards(split_guarded_copies(_Limiter(needed).body(nest.body, {}, {})))
    return parallel_profit(replace(nest, body=(*body, *filling)), before, limits)


def _has_sizes(nest: LoopNest) -> bool:
    if not any(item.dtype is DType.I64 and len(item.shape) == 1 for item in nest.inputs):
        return False
    return any(map(_has_size, walk(nest.body)))


def _is_known(condition: Expr, known: Facts, ranges: Ranges) -> bool:
    found = size_condition(condition, ranges)
    return found is not None and holds(found, known)


def _has_size(statement: Stmt) -> bool:
    """Whether a statement is under a condition on a size, or part of what it writes is."""
    if isinstance(statement, If):
        return bool(size_conditions(statement.condition, {}))
    return isinstance(statement, Store | Update) and any(
        isinstance(node, Select) and size_conditions(node.condition, {})
        for value in values_of(statement)
        for node in nodes(value)
    )


class _Limiter:
    """Rewrites a nest from the outside to the inside; `known` are conditions that hold there."""

    def __init__(self, needed: NeededStatements) -> None:
        self.needed = needed
        self.greatest = greatest_of(needed.writes.limits)

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
                for key, item in self.needed.of(statement).items()
                if not holds(item, known) and not holds(item, ended)
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
            case If(condition=condition, body=body):
                facts = strongest([*known.values(), *size_conditions(condition, ranges)])
                inside = self.body(body, facts, ranges, held)
                left = [part for part in conjuncts(condition) if not _is_known(part, known, ranges)]
                made = (If(all_of(*left), inside),) if left else inside
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
        fused = None if parts is None else parts.limited(self.needed.of_body(parts.body))
        if fused is not None:
            return fused.needed()
        rounds = {statement.variable: (statement.start, statement.stop - 1)}
        return strongest(item.weakest(rounds) for item in self._ends(statement).values())

    def _ends(self, loop: For) -> Facts:
        """Conditions that end a loop, and, of a serial one, those that it begins with."""
        lowest = 0 if loop.kind is LoopKind.PARALLEL else -math.inf
        found = {
            key: (item, item.coefficient(loop.variable))
            for key, item in self.needed.of_body(loop.body).items()
        }
        return {key: item for key, (item, by) in found.items() if by and by > lowest}

    def _known_inside(self, let: Let, known: Facts) -> Facts:
        """What is known of the variable that a binding makes."""
        facts = {}
        for key, item in self.needed.of_body(let.body).items():
            outer = outside_of(let, item) if item.coefficient(let.variable) > 0 else None
            if outer is not None and holds(outer, known):
                facts[key] = item
        return facts

    def _loop(self, loop: For, known: Facts, ranges: Ranges, held: bool) -> Body:
        """The loop with a limit, and what is left where its last round is of another form."""
        parts = fused_parts(loop)
        if parts is not None and not held:
            fused = parts.limited(self.needed.of_body(parts.body))
            if fused is not None:
                inner = {**ranges, **parts.ranges()}
                facts = {**known, **fused.facts}
                return fused.rebuilt(self.body(parts.body, facts, inner))
        variable = loop.variable
        inner = {**ranges, variable: (loop.start, loop.stop - 1)}
        limits = self._ends(loop)
        facts = {**known, **limits}
        if not limits:
            return (replace(loop, body=self.body(loop.body, facts, inner, held)),)
        ends = [item for item in limits.values() if item.coefficient(variable) > 0]
        starts = [item for item in limits.values() if item.coefficient(variable) < 0]
        begins = _joined("max", (item.first_round(variable) for item in starts))
        limit = _joined("min", (item.rounds(variable) for item in ends))
        limited = replace(loop, limit=limit, begins=begins)
        serial = loop.kind is LoopKind.SERIAL
        if serial and (rows := self._rows_that_end_apart(loop, inner)):
            return self._parts(limited, rows, facts, inner, held)
        full = self._whole(loop, inner) if serial else None
        if full is None:
            body = self.body(loop.body, facts, inner, held)
            return (replace(limited, body=body),)
        whole, exact = full
        folded = self.body(loop.body, {**facts, **whole}, inner, held)
        if exact:
            return (replace(limited, body=folded),)
        highest = (item.strictest(self._bound_inside(loop)) for item in whole.values())
        rounds = _joined("min", (item.rounds(variable) for item in highest))
        assert rounds is not None
        main = replace(limited, limit=rounds, body=folded)
        start, at_most = integer(loop.start), integer(loop.stop - 1)
        first = start if begins is None else binary("max", begins, start)
        first = binary("min", binary("max", rounds, first), at_most)
        some = [item.to_expr() for item in limits.values()]
        left = all_of(binary("lt", rounds, integer(loop.stop)), *some)
        rest = self._partial(loop.body, whole, facts, inner, held)
        return main, Let(variable, first, (If(left, rest),))

    def _partial(self, body: Body, whole: Facts, facts: Facts, ranges: Ranges, held: bool) -> Body:
        """A round in which conditions that hold in whole ones hold in part.

        Where one unrolled loop goes over all that they tell apart, it is a loop to where they end.
        """
        loop = body[0]
        if len(body) > 1 or not isinstance(loop, For) or loop.kind is not LoopKind.UNROLLED:
            return self.body(body, facts, ranges, held)
        variable, inside = loop.variable, self._bound_inside(loop)
        for item in whole.values():
            if item.coefficient(variable) <= 0 or item.strictest(inside) != item:
                return self.body(body, facts, ranges, held)
        limit = _joined("min", (item.rounds(variable) for item in whole.values()))
        inner = {**ranges, variable: (loop.start, loop.stop - 1)}
        made = self.body(loop.body, {**facts, **whole}, inner, held)
        return (replace(loop, kind=LoopKind.SERIAL, limit=limit, body=made),)

    def _rows_that_end_apart(self, loop: For, ranges: Ranges) -> Facts:
        """Conditions of selects in an innermost loop whose unrolled rows have different rounds.

        So it is below a diagonal, k - i < sizes[0]. Empty where all rows end in the same round.
        """
        if not _is_innermost(loop):
            return {}
        inside, ends = self._bound_inside(loop), self.needed.of_body(loop.body)
        found: Facts = {}
        apart = False
        for item in self._select_conditions(loop, {**ranges, **inside}):
            factor, low = item.coefficient(loop.variable), item.weakest(inside)
            if factor and low.key in ends and ends[low.key].constant >= low.constant:
                found[item.key] = item
                apart |= any(item.coefficient(name) * factor < 0 for name in inside)
        return found if apart else {}

    def _parts(self, loop: For, rows: Facts, facts: Facts, ranges: Ranges, held: bool) -> Body:
        """The rounds in which all of these conditions hold, and those before and after them."""
        variable, inside = loop.variable, self._bound_inside(loop)
        strict = [item.strictest(inside) for item in rows.values()]
        starts = (item.first_round(variable) for item in strict if item.coefficient(variable) < 0)
        ends = (item.rounds(variable) for item in strict if item.coefficient(variable) > 0)
        first, last = _joined("max", starts), _joined("min", ends)
        some = self.body(loop.body, facts, ranges, held)
        all_rows = self.body(loop.body, {**facts, **rows}, ranges, held)
        begins, limit = _both("max", loop.begins, first), _both("min", loop.limit, last)
        parts = [replace(loop, begins=begins, limit=limit, body=all_rows)]
        if first is not None:
            early = _both("min", loop.limit, first)
            parts.insert(0, replace(loop, limit=early, body=some))
        if last is not None:
            parts.append(replace(loop, begins=_both("max", begins, last), body=some))
        return tuple(parts)

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
        if not _is_innermost(loop):
            return None
        inside = self._bound_inside(loop)
        ends = self.needed.of_body(loop.body)
        found: Facts = {}
        exact = True
        for item in self._select_conditions(loop, {**ranges, **inside}):
            factor = item.coefficient(loop.variable)
            if factor <= 0:
                continue
            low, high = item.weakest(inside), item.strictest(inside)
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
        registers = statement.scope in (Scope.REGISTER, Scope.TILE)
        body = self.body(statement.body, known, ranges, held or registers)
        made = replace(statement, body=body)
        if held or not registers:
            return (made,)
        for item in self.needed.of(statement).values():
            rows = unrolled_rows(self.needed, statement, item)
            if rows is None or not worth_cutting(item, rows) or not holds(item, known):
                continue
            if not is_rare(known, item, self.greatest):
                return tiles_of_rows(made, item, rows, known)
        return (made,)


def _is_innermost(loop: For) -> bool:
    """Whether a loop has no others but unrolled ones inside, and nothing on a condition."""
    return not any(
        isinstance(inner, Let | If) or (isinstance(inner, For) and inner.kind in _RUNS)
        for inner in walk(loop.body)
    )


def _folded(statement: Stmt, known: Facts, ranges: Ranges) -> Stmt:
    if not isinstance(statement, Store | Update):
        return statement
    value = assumed(statement.value, known, ranges)
    return statement if value is statement.value else replace(statement, value=value)


def _joined(op: str, values: Iterable[Expr]) -> Expr | None:
    """The minimum or maximum of values; None of no value."""
    result: Expr | None = None
    for value in dict.fromkeys(values):
        result = value if result is None else binary(op, result, value)
    return result


def _both(op: str, first: Expr | None, second: Expr | None) -> Expr | None:
    return _joined(op, (value for value in (first, second) if value is not None))
