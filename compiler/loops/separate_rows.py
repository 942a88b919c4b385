"""Pass: no row of the output is written beyond its pitch, where the next row begins.

unrolled for w in 0..14:                 unrolled for w in 0..14:
  vector for c in 0..8:            ->      if w.o * 14 + w < sizes[5] + 2:
    y[h, w.o * 14 + w, c] = …                vector for c in 0..8:
                                               y[h, w.o * 14 + w, c] = …

The last tile of a row may be larger than what is left of it. What it writes behind that is nobody's
where rows lie at their bounds, and the next row's where they lie closer (`RowPitch`). A write that
loops and conditions around it keep within the pitch stays as it is: nearly all of them do.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import field

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.affine import Affine, Atom, affine, affine_range, expr_range
from tunefarm.compiler.expr.nodes import (
    Binary,
    Const,
    Expr,
    Load,
    add,
    all_of,
    binary,
    index,
    integer,
    mul,
    sub,
    unary,
)
from tunefarm.compiler.expr.walk import axes_of, substitute
from tunefarm.compiler.kernels.kernel import RowPitch
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    For,
    If,
    Let,
    LoopKind,
    LoopNest,
    Memory,
    Stmt,
    TileLoad,
    TileStore,
    walk,
    with_body,
    written,
)
from tunefarm.compiler.loops.loop_ranges import RangeMap
from tunefarm.compiler.loops.size_conditions import Condition, rounds_known, size_conditions
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen, replace


def separate_rows(nest: LoopNest) -> LoopNest:
    """The nest whose writes to the output stay in their rows.

    `ScheduleError` where a matrix tile is moved across rows that have a pitch.
    """
    pitches = {m.name: m.pitch for m in (*nest.inputs, nest.output) if m.pitch is not None}
    if pitches:
        _check_tiles(nest, pitches)
    pitch = nest.output.pitch
    if not isinstance(pitch, RowPitch):
        return nest
    rows = _Rows(nest.output, pitch)
    return replace(nest, body=rows.body(nest.body, {}, ()))


def _check_tiles(nest: LoopNest, pitches: Container[str]) -> None:
    for statement in walk(nest.body):
        if isinstance(statement, TileLoad):
            buffer = statement.source.buffer
        elif isinstance(statement, TileStore):
            buffer = statement.buffer
        else:
            continue
        if buffer in pitches:
            raise ScheduleError(f"rows of {buffer} are apart in memory, and no matrix tile")


@frozen
class _Rows:
    output: Memory
    pitch: RowPitch
    divisors: dict[str, int] = field(default_factory=dict)
    """Of what is bound to variables."""
    most: dict[str, Affine] = field(default_factory=dict)
    """What the least of two values that is bound to a variable is at most: that of the two which
    is no number."""

    def body(self, body: Body, ranges: RangeMap, known: tuple[Condition, ...]) -> Body:
        made = (self._statement(statement, ranges, known) for statement in body)
        return tuple(statement for one in made for statement in one)

    def _statement(self, statement: Stmt, ranges: RangeMap, known: tuple[Condition, ...]) -> Body:
        match statement:
            case For(variable=variable, start=start, stop=stop, body=body):
                inner: RangeMap = {**ranges, variable: (start, stop - 1)}
                facts = (*known, *rounds_known(variable, statement.limit, ranges))
                if statement.kind is LoopKind.VECTORISED:
                    return self._vector(statement, inner, facts)
                return _unswitched(statement, self.body(body, inner, facts))
            case Let(variable=variable, value=value, body=body):
                inner = {**ranges, variable: expr_range(value, ranges)}
                self._note(variable, value, ranges)
                return (with_body(statement, self.body(body, inner, known)),)
            case If(condition=condition, body=body):
                facts = (*known, *size_conditions(condition, ranges))
                return (with_body(statement, self.body(body, ranges, facts)),)
            case Allocate(body=body):
                return (with_body(statement, self.body(body, ranges, known)),)
        guard = self._guard(statement, ranges, known)
        return (statement,) if guard is None else (If(guard, (statement,)),)

    def _vector(self, loop: For, ranges: RangeMap, known: tuple[Condition, ...]) -> Body:
        """A vectorised loop: the guard of all its lanes stands before it; where the last one is not
        in the row, those that are there are a mask, or run one after the other."""
        guards = [
            guard
            for statement in walk(loop.body)
            if (guard := self._guard(statement, ranges, known)) is not None
        ]
        if not guards:
            return (loop,)
        inside = {s.variable for s in walk(loop.body) if isinstance(s, For | Let)}
        serial = replace(loop, kind=LoopKind.SERIAL)
        lanes = replace(serial, body=self.body(loop.body, ranges, known))
        if len(loop.body) > 1 or any(axes_of(guard) & inside for guard in guards):
            return (lanes,)
        (guard,) = guards
        if loop.variable not in axes_of(guard):
            return (If(guard, (loop,)),)
        if not _rises(guard, loop.variable, ranges):
            return (lanes,)
        first, last = (
            substitute(guard, {loop.variable: integer(lane)}) for lane in (0, loop.stop - 1)
        )
        masked, rest = _masked(loop, guard), unary("not", last)
        if masked is None:
            return If(last, (loop,)), If(rest, (lanes,))
        return If(last, (loop,)), If(all_of(first, rest), (masked,))

    def _guard(self, statement: Stmt, ranges: RangeMap, known: Sequence[Condition]) -> Expr | None:
        """What keeps the writes of a statement in their row; None where all is known to do so."""
        for write in written(statement):
            if write.buffer == self.output.name:
                place = self._place(write.indices, ranges)
                if not self._is_within(place, ranges, known):
                    return self._condition(place, ranges)
        return None

    def _place(self, indices: Sequence[Expr], ranges: RangeMap) -> Affine:
        """The number of an element within its row."""
        place, step = Affine(0, ()), 1
        for extent, item in zip(reversed(self.output.shape), reversed(indices), strict=True):
            if step < self.pitch.row:
                place = place.plus(affine(item, ranges), step)
            step *= extent
        return place

    @property
    def _size(self) -> Load:
        return Load(DType.I64, self.pitch.sizes, (integer(self.pitch.number),))

    def _is_within(self, place: Affine, ranges: RangeMap, known: Sequence[Condition]) -> bool:
        column, room = self.pitch.column, self.pitch.column * self.pitch.margin
        for name, by in place.terms:
            if isinstance(name, str) and by > 0 and (most := self.most.get(name)) is not None:
                higher = place.plus(Affine(0, ((name, by),)), -1).plus(most, by)
                if self._is_within(higher, ranges, known):
                    return True
        sizes = Affine(0, ((self._size, column),))
        if affine_range(place.plus(sizes, -1), ranges)[1] < room:
            return True
        for fact in known:
            if fact.size != self._size or fact.scale < 1 or column % fact.scale:
                continue
            whole = fact.times(column // fact.scale)
            if affine_range(place.plus(whole.form, -1), ranges)[1] <= room:
                return True
            if column == 1 and self._is_in_same_unit(place, whole.form, ranges):
                return True
        return False

    def _is_in_same_unit(self, place: Affine, below: Affine, ranges: RangeMap) -> bool:
        """Whether an element is within the multiple of columns that a sum below the size ends in,
        which is within the pitch as a whole."""
        unit = self.pitch.multiple
        if any(by * self._divisor_of(atom) % unit for atom, by in below.terms):
            return False
        first = below.constant + self.pitch.margin
        begin = Affine(first - first % unit, below.terms)
        return affine_range(place.plus(begin, -1), ranges)[1] < unit

    def _note(self, variable: str, value: Expr, ranges: RangeMap) -> None:
        """Note what is known of a value that is bound to a variable."""
        self.divisors[variable] = self._divisor(value, ranges)
        self.most.pop(variable, None)
        match value:
            case Binary(op="min", left=left, right=Const()):
                self.most[variable] = affine(left, ranges)

    def _divisor(self, value: Expr, ranges: RangeMap) -> int:
        """What divides a value; 0 divides nothing but 0."""
        if isinstance(value, Binary) and value.op in ("min", "max"):
            sides = (self._divisor(side, ranges) for side in (value.left, value.right))
            return math.gcd(*sides)
        form = affine(value, ranges)
        return math.gcd(form.constant, *(by * self._divisor_of(atom) for atom, by in form.terms))

    def _divisor_of(self, atom: Atom) -> int:
        return self.divisors.get(atom, 1) if isinstance(atom, str) else 1

    def _condition(self, place: Affine, ranges: RangeMap) -> Expr:
        """An element is within the pitch: its column is, or what the pitch is a multiple of, where
        that is known."""
        column, unit = self.pitch.column, self.pitch.multiple
        end = add(self._size, integer(self.pitch.margin + unit - 1))
        if unit > 1:
            end, column = binary("floordiv", end, integer(unit)), column * unit
        units = [
            (atom, by) for atom, by in place.terms if by * self._divisor_of(atom) % column == 0
        ]
        rest = tuple(term for term in place.terms if term not in units)
        offset = place.constant % column
        low, high = affine_range(Affine(offset, rest), ranges)
        if low >= 0 and high < column:
            place = Affine(place.constant - offset, tuple(units))
            if all(by % column == 0 for _, by in units):
                terms = tuple((atom, by // column) for atom, by in units)
                place, column = Affine(place.constant // column, terms), 1
        return binary("lt", place.to_expr(), mul(end, integer(column)))


def _unswitched(loop: For, body: Body) -> Body:
    """The loop with another body; where that is guarded forms of one statement, and the loop is
    unrolled, the guards that no round changes are tested once for all rounds."""
    if loop.kind is LoopKind.UNROLLED and len(loop.body) == 1:
        forms = [item for item in body if isinstance(item, If)]
        guards = (axes_of(item.condition) for item in forms)
        if len(forms) == len(body) and not any(loop.variable in axes for axes in guards):
            return tuple(replace(i, body=(with_body(loop, i.body),)) for i in forms)
    return (with_body(loop, body),)


def _masked(loop: For, guard: Expr) -> For | None:
    """The loop whose lanes write while a guard holds, which it does in the first one; None where
    it is about more than their number."""
    if not isinstance(guard, Binary) or loop.start:
        return None
    place = affine(guard.left, {})
    if place.coefficient(loop.variable) != 1:
        return None
    before = place.plus(Affine(0, ((loop.variable, 1),)), -1).to_expr()
    if loop.variable in axes_of(before):
        return None
    count = binary("max", sub(guard.right, before), integer(1))
    return replace(loop, body=(If(binary("lt", index(loop.variable), count), loop.body),))


def _rises(guard: Expr, variable: str, ranges: RangeMap) -> bool:
    """Whether the place that a guard compares grows with a variable."""
    return isinstance(guard, Binary) and affine(guard.left, ranges).coefficient(variable) > 0
