"""Demand analysis: for each write of a loop nest with dynamic sizes, when its value is used.

A backward data-flow analysis. It starts at the limits of the output (`FusedKernel.limits`) and at
selects by `index < size`, and follows loads back to the local buffers they read, so that each write
gets the conditions under which something that is needed reads it. Where they do not hold, the write
may be skipped: its value is padding, or the neutral element of a reduction. Halide's bounds
inference asks the same of boxes (Ragan-Kelley et al., PLDI 2013, section 4.2).

A matrix tile is loaded, multiplied and stored as a whole: it is needed where one of its elements
is, and a product is not where one factor is all zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from operator import is_
from typing import TypeAlias

from tunefarm.compiler.expr.affine import Affine, Ranges, affine, affine_range, expr_range
from tunefarm.compiler.expr.combiners import neutral_element
from tunefarm.compiler.expr.nodes import (
    Expr,
    Index,
    Load,
    Select,
    add,
    all_of,
    const,
    index,
    integer,
    mul,
    select,
)
from tunefarm.compiler.expr.parts import conjuncts
from tunefarm.compiler.expr.walk import axes_of, children, substitute, transform
from tunefarm.compiler.kernels.kernel import ValidExtent
from tunefarm.compiler.loops.ir import (
    Allocate,
    Body,
    Carry,
    Dot,
    For,
    If,
    Let,
    LoopNest,
    Memory,
    Stmt,
    Store,
    TileDot,
    TileLoad,
    TileStmt,
    TileStore,
    TileZero,
    Update,
    values_of,
    with_body,
    written,
)
from tunefarm.compiler.loops.known_padding import (
    IndexForms,
    Known,
    Padding,
    SizedValue,
    nodes,
    padding_of,
)
from tunefarm.compiler.loops.size_conditions import (
    Condition,
    Key,
    limit_condition,
    narrowed,
    shared,
    size_condition,
    size_conditions,
    strongest,
)
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen, replace

Write = Store | Update | Dot | Carry | TileStmt

_ROW, _COLUMN = "tile.row", "tile.column"
"""The variables of an element of a tile, next to those of loops: a column has one for each
dimension of memory that a row lies along."""


@frozen
class Place:
    """A write with what is known where it stands: ranges of variables, and which buffers it means.

    Loops that are written twice have a buffer of one name each: `buffers` tells them apart.
    """

    statement: Write
    ranges: Ranges
    buffers: Mapping[str, str]
    rows: tuple[Expr, ...] = ()
    """Where in memory the element of a tile is that is loaded or stored; () if nobody knows."""

    @property
    def indices(self) -> tuple[Expr, ...]:
        """Where it writes: for each element of a tile that is stored, or each tile."""
        return self.rows if isinstance(self.statement, TileStore) else self.statement.indices

    def values(self) -> tuple[Expr, ...]:
        """The expressions that the write evaluates."""
        if isinstance(self.statement, TileLoad):
            known = replace(self.statement.source, indices=self.rows)
            return (known,) if self.rows else ()
        return values_read(self.statement)


_Read: TypeAlias = tuple[Place, Load, tuple[Condition, ...] | None]
"""A load where it is, and the conditions of the selects that it is chosen by; None in an index."""


@frozen
class _Need:
    """One dimension of a buffer is read where factor * index + outer terms keep the condition."""

    dimension: int
    factor: int
    outer: Condition  # over variables outside of the buffer's scope

    @property
    def key(self) -> tuple[int, int, Key]:
        return self.dimension, self.factor, self.outer.key


class DemandAnalysis:
    """The writes of a nest, and the conditions under which their values are used."""

    def __init__(self, nest: LoopNest, limits: Sequence[ValidExtent]) -> None:
        self.nest = nest
        self._limits, self._is_settled = tuple(limits), False
        self.places: dict[int, Place] = {}  # by identity of the statement
        self._outside: dict[str, frozenset[str]] = {}  # of local buffers: variables in scope there
        self._memories = {item.name: item for item in (*nest.inputs, nest.output)}
        self._unknown: set[str] = set()  # buffers of whose tiles no place is known
        self._walk(nest.body, {}, {})
        self._padding: dict[str, tuple[Padding, ...]] | None = None
        self._of_all: dict[str, tuple[Padding, ...]] = {}  # beyond what all their rows have
        self._reads_by_buffer: dict[str, list[_Read]] | None = None
        self._needs: dict[str, list[_Need]] = {}

    @property
    def limits(self) -> tuple[ValidExtent, ...]:
        """Those of the given limits that hold for all that is computed; found when first asked."""
        if not self._is_settled:
            self._is_settled = True
            while self._limits and not all(inside := self._reads_back_inside()):
                self._limits = tuple(compress(self._limits, inside))
                self._needs = {}
        return self._limits

    def guarded_analysis(self) -> DemandAnalysis:
        """The analysis of the nest with `guarded` updates; this one where none of them is."""
        return self.of_changed(self._guarded_body(self.nest.body))

    def of_changed(self, body: Body) -> DemandAnalysis:
        """The analysis of the nest with another body; this one where that is the same."""
        nest = self.nest
        if len(body) == len(nest.body) and all(map(is_, body, nest.body)):
            return self
        return DemandAnalysis(replace(nest, body=body), self._limits)

    def conditions(self, statement: Stmt) -> list[Condition]:
        """When a write's value is used: its target is needed, and it would change the target."""
        place = self.places.get(id(statement))
        if place is None:
            return []
        found = self._target_conditions(place)
        if isinstance(statement, Update):
            neutral = neutral_element(statement.combiner, statement.value.dtype)
            found += _outermost(statement.value, neutral, place.ranges)
        elif isinstance(statement, TileDot):
            found += self._zero_factors(place)
        return found

    def _guarded_body(self, body: Body) -> Body:
        """A body whose updates are `guarded`."""
        made: list[Stmt] = []
        for statement in body:
            if isinstance(statement, For | Let | If | Allocate):
                made.append(with_body(statement, self._guarded_body(statement.body)))
            else:
                made.append(self.guarded(statement))
        return tuple(made)

    def guarded(self, statement: Stmt) -> Stmt:
        """An update with a select for what its operands are known to hold beyond a size."""
        place = self.places.get(id(statement))
        if place is None or not isinstance(statement, Update):
            return statement
        value, ranges, known = statement.value, place.ranges, self._known(place)
        neutral = neutral_element(statement.combiner, value.dtype)
        own = {item.key for item in _outermost(value, neutral, ranges)}
        sized = SizedValue(value, ranges, known)
        found = strongest(
            condition
            for condition in sized.candidates()
            if condition.key not in own and sized.beyond(condition) == neutral
        )
        if not found:
            return statement
        held = all_of(*(condition.to_expr() for condition in found.values()))
        return replace(statement, value=select(held, assumed(value, found, ranges), neutral))

    def reads_of_input(self, name: str) -> Iterator[tuple[Load, list[Condition], Ranges]]:
        """Every load of an input, the conditions under which it matters, and ranges there."""
        for place, load, conditions in self._reads(name):
            yield load, conditions, place.ranges

    # --- what there is --------------------------------------------------------------------------

    def _walk(
        self, body: Body, ranges: Mapping[str, tuple[int, int]], buffers: Mapping[str, str]
    ) -> None:
        for statement in body:
            match statement:
                case For(variable=variable, start=start, stop=stop, body=inner):
                    self._walk(inner, {**ranges, variable: (start, stop - 1)}, buffers)
                case Let(variable=variable, value=value, body=inner):
                    self._walk(inner, {**ranges, variable: expr_range(value, ranges)}, buffers)
                case If(condition=condition, body=inner):
                    self._walk(inner, narrowed(ranges, condition), buffers)
                case Allocate(memory=memory, body=inner):
                    own = f"{memory.name}#{len(self._outside)}"
                    self._outside[own] = frozenset(ranges)
                    self._memories[own] = memory
                    self._walk(inner, ranges, {**buffers, memory.name: own})
                case Store() | Update() | Dot() | Carry() | TileZero() | TileDot():
                    self.places[id(statement)] = Place(statement, ranges, buffers)
                case TileLoad() | TileStore():
                    self.places[id(statement)] = self._tile(statement, ranges, buffers)

    def _tile(
        self, statement: TileLoad | TileStore, ranges: Ranges, buffers: Mapping[str, str]
    ) -> Place:
        """A tile that is loaded or stored, and its rows in memory.

        The memory is unknown where these lie along no dimension of it.
        """
        tile, rows = Load(DType.I64, statement.buffer, statement.indices), statement.source
        if isinstance(statement, TileStore):
            tile, rows = rows, tile
        name = buffers.get(rows.buffer, rows.buffer)
        shape = self._memories[buffers[tile.buffer]].shape[-2:]
        found = _rows_in(self._memories[name], rows.indices, statement.stride, shape, ranges)
        if found is None:
            self._unknown.add(name)
            return Place(statement, ranges, buffers)
        return Place(statement, {**ranges, **found[1]}, buffers, found[0])

    def _known(self, place: Place) -> Known:
        """What is known of the buffers that a statement sees, by the names that it has for them."""
        if self._padding is None:
            self._padding = {}
            self._find_padding(self._padding)
        padding = self._padding
        return {name: padding[own] for name, own in place.buffers.items() if own in padding}

    def _find_padding(self, padding: dict[str, tuple[Padding, ...]]) -> None:
        """Add what local buffers hold beyond a size, in the order in which they are filled."""
        writes: dict[str, list[Place]] = {}
        for place in self.places.values():
            for write in written(place.statement):
                name = place.buffers.get(write.buffer)
                if name is not None and name not in self._unknown:
                    writes.setdefault(name, []).append(place)
        for name, places in writes.items():
            found: list[Padding] | None = None
            of_all: list[Padding] | None = None
            for place in places:
                own: list[Padding] = []
                if isinstance(place.statement, Store):
                    own = padding_of(place.statement, place.ranges, self._known(place))
                found = own if found is None else [item for item in found if item in own]
                weak = [
                    replace(item, outer=self._weakened(item.outer, place, name)) for item in own
                ]
                of_all = weak if of_all is None else [item for item in of_all if item in weak]
            kept = [item for item in found or [] if self._is_outside(item.outer, name)]
            if kept:
                padding[name] = tuple(kept)
            self._of_all[name] = tuple(
                item for item in of_all or [] if self._is_outside(item.outer, name)
            )

    def _weakened(self, condition: Condition, place: Place, buffer: str) -> Condition:
        """What a condition implies for what is inside of a buffer's scope.

        Names of no loop, of a sum within the value that is written, stay: it is not outside then.
        """
        outside = self._outside.get(buffer, frozenset())
        names = (name for name, _ in condition.terms if name in place.ranges)
        return condition.weakest(
            {name: place.ranges[name] for name in names if name not in outside}
        )

    def _is_outside(self, condition: Condition, buffer: str) -> bool:
        return {name for name, _ in condition.terms} <= self._outside[buffer]

    # --- where writes matter --------------------------------------------------------------------

    def _target_conditions(self, place: Place) -> list[Condition]:
        found = self._written(place)
        if isinstance(place.statement, Carry):
            return [item for item in found if ends_later_rounds(item, place.statement)]
        return found

    def _written(self, place: Place) -> list[Condition]:
        """The conditions under which what a write leaves in its target is read."""
        statement, ranges = place.statement, place.ranges
        if isinstance(statement, TileLoad):
            return self._multiplied(place)
        if statement.buffer == self.nest.output.name:
            return _of_any_element(self._output_conditions(place), ranges)
        found: list[Condition | None] = []
        for need in self._needs_of(place.buffers[statement.buffer]):  # none where it is unknown
            if not need.factor:
                found.append(need.outer)
                continue
            form = affine(place.indices[need.dimension], ranges)
            found.append(need.outer.with_form(need.outer.form.plus(form, need.factor)))
        conditions = [condition for condition in found if condition is not None]
        return _of_any_element(conditions, ranges)

    def _multiplied(self, place: Place) -> list[Condition]:
        """The conditions under which what a load leaves in a tile is multiplied.

        A tile holds it until the next round of the loops that both statements are in.
        """
        found: dict[Key, Condition] | None = None
        own = place.buffers[place.statement.buffer]
        for other in self.places.values():
            if not isinstance(other.statement, TileDot):
                continue
            sides = (other.statement.left, other.statement.right)
            if own not in {other.buffers[side.buffer] for side in sides}:
                continue
            conditions = [*self._written(other), *self._zero_factors(other)]
            inside = {name: ends for name, ends in other.ranges.items() if name not in place.ranges}
            known = strongest(condition.weakest(inside) for condition in conditions)
            found = known if found is None else shared(found, known)
        return list((found or {}).values())

    def _zero_factors(self, place: Place) -> list[Condition]:
        """The conditions beyond which a factor of a product of tiles has nothing but zeros."""
        statement, found = place.statement, list[Condition]()
        assert isinstance(statement, TileDot)
        for side in (statement.left, statement.right):
            own = place.buffers[side.buffer]
            loads = [
                other
                for other in self.places.values()
                if isinstance(other.statement, TileLoad)
                and other.buffers[other.statement.buffer] == own
            ]
            if len(loads) == 1 and loads[0].rows:
                found += self._zeros(loads[0], side, place.ranges)
        return found

    def _zeros(self, load: Place, tile: Load, ranges: Ranges) -> list[Condition]:
        """The conditions beyond which the only load of a tile gives zeros, where it is read."""
        names = {
            item.name: value
            for item, value in zip(load.statement.indices, tile.indices, strict=True)
            if isinstance(item, Index)
        }
        (rows,) = (substitute(value, names) for value in load.values())
        assert isinstance(rows, Load)
        inside = {name: ends for name, ends in load.ranges.items() if _is_element(name)}
        self._known(load)
        own = load.buffers.get(rows.buffer, rows.buffer)
        ranges, known = {**ranges, **inside}, {rows.buffer: self._of_all.get(own, ())}
        if not axes_of(rows) <= ranges.keys():
            return []
        zero, sized = const(0, rows.dtype), SizedValue(rows, ranges, known)
        return [
            condition.weakest(inside)
            for condition in sized.candidates()
            if sized.beyond(condition) == zero
        ]

    def _output_conditions(self, place: Place) -> list[Condition]:
        if self.nest.output.name in self._unknown:
            return []
        found = self._within_limits(place.indices, place.ranges)
        return [condition for condition in found if condition is not None]

    def _within_limits(self, indices: Sequence[Expr], ranges: Ranges) -> list[Condition | None]:
        """By limit the condition that an element of the output is within it; None if unknown."""
        shape = self.nest.output.shape
        forms = [affine(item, ranges) for item in indices]
        return [limit_condition(limit, forms, shape, ranges) for limit in self.limits]

    def _reads_back_inside(self) -> list[bool]:
        """By limit whether what is within all of them is computed of nothing outside of it.

        So it is where a recurrence reads the step before: if a step is within the sizes, that is.
        It is not where nobody reads the cells, which the next step does.
        """
        shape, inside = self.nest.output.shape, [True] * len(self.limits)
        for place, load, conditions in self._reads(self.nest.output.name):
            wanted = self._within_limits(load.indices, _inside(load, shape, place.ranges))
            for number, own in enumerate(wanted):
                held = own is not None and any(known.implies(own) for known in conditions)
                inside[number] = inside[number] and held
        return inside

    def _needs_of(self, buffer: str) -> list[_Need]:
        """How far a local buffer is read; [] while that is found out, or where nobody knows."""
        if buffer in self._needs:
            return self._needs[buffer]
        self._needs[buffer] = []
        if buffer in self._unknown:
            return []
        reads = [
            (
                place,
                conditions,
                forms := IndexForms(load.indices, place.ranges),
                [(*forms.along(item), *forms.below_fractions(item)) for item in conditions],
            )
            for place, load, conditions in self._reads(buffer)
        ]
        steps = {
            (dimension, factor, outer.scale, outer.size): None
            for _, _, _, ends in reads
            for items in ends
            for dimension, factor, outer in items
            if factor
        }
        needs: dict[tuple[int, int, Key], _Need] | None = None
        for place, conditions, forms, ends in reads:
            own: dict[tuple[int, int, Key], _Need] = {}
            for condition, items in zip(conditions, ends, strict=True):
                for dimension, factor, outer in (*items, *forms.at_numbers(condition, steps)):
                    outer = self._weakened(outer, place, buffer)
                    if self._is_outside(outer, buffer):
                        need = _Need(dimension, factor, outer)
                        own[need.key] = _stronger(own.get(need.key, need), need)
            if needs is None:
                needs = own
            else:
                needs = {key: _weaker(needs[key], own[key]) for key in needs if key in own}
        self._needs[buffer] = list((needs or {}).values())
        return self._needs[buffer]

    def _reads(self, buffer: str) -> Iterator[tuple[Place, Load, list[Condition]]]:
        """Every load of a buffer, and the conditions under which its value matters."""
        if self._reads_by_buffer is None:
            self._reads_by_buffer = self._find_reads()
        last, own = None, list[Condition]()
        for place, load, path in self._reads_by_buffer.get(buffer, ()):
            if path is None:
                yield place, load, []
                continue
            if place is not last:
                last, own = place, self._target_conditions(place)
            yield place, load, [*own, *path]

    def _find_reads(self) -> dict[str, list[_Read]]:
        """All loads, by the buffer that is read."""
        found: dict[str, list[_Read]] = {}
        for place in self.places.values():
            reads: list[_Read] = [
                (place, *item)
                for value in place.values()
                for item in chosen_loads(value, place.ranges)
            ]
            indices = (item for write in written(place.statement) for item in write.indices)
            reads += [
                (place, node, None)
                for item in indices
                for node in nodes(item)
                if isinstance(node, Load)
            ]
            for read in reads:
                name = read[1].buffer
                found.setdefault(place.buffers.get(name, name), []).append(read)
        return found


def assumed(expr: Expr, known: Mapping[Key, Condition], ranges: Ranges) -> Expr:
    """The expression where these conditions hold: selects by them are what they choose."""

    def holds(part: Expr) -> bool:
        condition = size_condition(part, ranges)
        best = None if condition is None else known.get(condition.key)
        return condition is not None and best is not None and best.implies(condition)

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Select):
            return None
        parts = conjuncts(node.condition)
        left = [part for part in parts if not holds(part)]
        if len(left) == len(parts):
            return None
        then = transform(node.then, visit)
        if not left:
            return then
        return select(all_of(*left), then, transform(node.otherwise, visit))

    return transform(expr, visit)


def _outermost(value: Expr, neutral: Expr, ranges: Ranges) -> list[Condition]:
    """The conditions outside of which a value is neutral, from its outermost selects."""
    found: list[Condition] = []
    while isinstance(value, Select) and value.otherwise == neutral:
        found += size_conditions(value.condition, ranges)
        value = value.then
    return found


def _inside(load: Load, shape: Sequence[int], ranges: Ranges) -> Ranges:
    """The ranges of variables where an element is read that is there, which no other load is."""
    found = dict(ranges)
    for item, extent in zip(load.indices, shape, strict=True):
        match affine(item, ranges):
            case Affine(constant=offset, terms=((str() as name, 1),)) if name in found:
                low, high = found[name]
                found[name] = max(low, -offset), min(high, extent - 1 - offset)
    return found


def _stronger(first: _Need, second: _Need) -> _Need:
    return max(first, second, key=lambda need: need.outer.constant)


def _weaker(first: _Need, second: _Need) -> _Need:
    return min(first, second, key=lambda need: need.outer.constant)


def _rows_in(
    memory: Memory,
    indices: Sequence[Expr],
    stride: int,
    shape: Sequence[int],
    ranges: Ranges,
) -> tuple[tuple[Expr, ...], dict[str, tuple[int, int]]] | None:
    """Where the element of a tile is whose rows begin at these indices, `stride` apart.

    Of its variables the ranges are given, too. None where a row, or all of them together, lie
    along no dimension of the memory, or not in whole ones.
    """
    height, width = shape
    inside, within = {_ROW: (0, height - 1)}, list(indices)
    for dimension in reversed(range(len(memory.shape))):
        extent = min(width, memory.shape[dimension])
        width, rest = divmod(width, extent)
        name = f"{_COLUMN}.{dimension}"
        inside[name] = (0, extent - 1)
        within[dimension] = add(within[dimension], index(name))
        if rest or width == 1:
            break
    if rest or width > 1:
        return None
    size, known = 1, {**ranges, **inside}
    for dimension in reversed(range(len(memory.shape))):
        step, rest = divmod(stride, size)
        moved = list(within)
        moved[dimension] = add(moved[dimension], mul(index(_ROW), integer(step)))
        if not rest and all(
            affine_range(affine(item, known), known)[1] < extent
            for item, extent in zip(moved, memory.shape, strict=True)
        ):
            return tuple(moved), inside
        size *= memory.shape[dimension]
    return None


def _is_element(name: str) -> bool:
    """Whether a variable is one of an element of a tile."""
    return name == _ROW or name.startswith(_COLUMN)


def _of_any_element(conditions: Sequence[Condition], ranges: Ranges) -> list[Condition]:
    """The conditions of a tile's elements, as those without which none of them matters."""
    inside = {name: ends for name, ends in ranges.items() if _is_element(name)}
    return [condition.weakest(inside) for condition in conditions]


def ends_later_rounds(condition: Condition, carry: Carry) -> bool:
    """Whether no round matters after one beyond a condition: later ones add to what it carries.

    What has a place of its own in what is carried has no rounds after each other.
    """
    held = {name for item in carry.update.indices for name in axes_of(item)}
    return all(factor > 0 or name in held for name, factor in condition.terms)


def values_read(statement: Write) -> tuple[Expr, ...]:
    """The expressions that a write evaluates, what a scan carries among them."""
    if isinstance(statement, TileZero):
        return ()
    if isinstance(statement, TileLoad | TileStore):
        return (statement.source,)
    if isinstance(statement, TileDot):
        return statement.left, statement.right
    if isinstance(statement, Carry):
        update = statement.update
        return Load(update.value.dtype, update.buffer, update.indices), update.value
    return values_of(statement)


def chosen_loads(value: Expr, ranges: Ranges) -> list[tuple[Load, tuple[Condition, ...]]]:
    """The loads of a value, each with the conditions of the selects that it is chosen by."""
    found: list[tuple[Load, tuple[Condition, ...]]] = []
    seen: set[tuple[int, tuple[Condition, ...]]] = set()
    stack: list[tuple[Expr, tuple[Condition, ...]]] = [(value, ())]
    while stack:
        node, path = stack.pop()
        if (id(node), path) in seen:
            continue
        seen.add((id(node), path))
        if isinstance(node, Load):
            found.append((node, path))
        if isinstance(node, Select):
            own = (*path, *size_conditions(node.condition, ranges))
            stack += [(node.condition, path), (node.otherwise, path), (node.then, own)]
        else:
            stack += [(operand, path) for operand in children(node)]
    return found
