"""Addresses: from a load's indices to a pointer, computed once per loop level.

A flattened index is an affine form. Its terms are added outermost variable first, each in the
header of the body that defines the variable, so that inner loops only add constants. What is
divided into rows and columns of a buffer is one position again: nothing is divided for it.

Rows that have a pitch are a number of elements apart that only the run knows. That number is a
variable of its own, and so is each variable that is multiplied by it (`PitchedRows`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tunefarm.compiler.expr.affine import (
    Affine,
    Atom,
    Ranges,
    affine,
    affine_range,
    expr_range,
    rejoined,
)
from tunefarm.compiler.expr.nodes import Expr, Load, binary, index
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.kernels.kernel import DensePitch, RowPitch
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.loops.ir import Carry, Dot, Memory, Store, TileStore, Update

_Access: TypeAlias = Load | Store | Update | Dot | Carry | TileStore
_Forms: TypeAlias = dict[int, tuple[_Access, Affine, tuple[tuple[str, int], ...]]]
"""By the identity of an access: itself, so that it stays its own, its flattened index, and what of
that varies with unrolled variables."""


class DenseStride(NamedTuple):
    """Of an array that is dense at run time: how far apart the elements of an axis are."""

    pitch: DensePitch
    axis: int


_Stride: TypeAlias = RowPitch | DenseStride
"""A number of elements that only the run knows: from row to row, or along an axis."""


class PitchedRows(NamedTuple):
    """What a term of an address stands for: so many rows as `variable` says, or one where it is
    None."""

    variable: str | None
    pitch: _Stride


class Surrounding:
    """The forms of accesses under what is known of the variables round them, and the surroundings
    within it: by a variable's name, range and form."""

    __slots__ = ("forms", "inner")

    def __init__(self) -> None:
        self.forms: _Forms = {}
        self.inner: dict[tuple[object, ...], Surrounding] = {}

    def within(self, *known: object) -> Surrounding:
        """The one where this is known of a variable, too."""
        found = self.inner.get(known)
        if found is None:
            found = self.inner[known] = Surrounding()
        return found


@dataclass(slots=True)
class Storage:
    """A buffer in this function: its base pointer, and a number that changes with every store.

    What is `read_back` is the result of loops whose number of rounds only a run knows.
    """

    memory: Memory
    pointer: str
    read_back: bool = False
    version: int = 0


class Addresses:
    """Knows the variables and buffers of one function and emits pointers into the buffers."""

    def __init__(self, writer: FunctionWriter, value_of: Callable[[Expr], Value]) -> None:
        self.writer = writer
        self.value_of = value_of  # emits what is not affine
        self.ranges: dict[str, tuple[int, int]] = {}
        self.names: dict[str, str] = {}  # loop variable -> SSA name
        self.storages: dict[str, Storage] = {}
        self.lanes: set[str] = set()  # variables that have several values at once
        self._rows: dict[str, PitchedRows] = {}  # by the name of a term
        self._names_of_rows: dict[PitchedRows, str] = {}
        self._versions = 0
        # Flattened forms over symbolic unrolled variables, so that an unrolled instance only adds.
        self.unrolled: dict[str, tuple[int, int]] = {}
        # Ranges, over all unrolled instances, of bound variables that depend on unrolled ones.
        self.spans: dict[str, tuple[int, int]] = {}
        # The same access may stand in several, as in a loop and in the unrolled rest of it.
        self._surrounding = Surrounding()

    def of(self, access: _Access) -> Affine:
        """The flattened index in elements, under the current values of unrolled variables."""
        forms = self._surrounding.forms
        known = forms.get(id(access))
        if known is None:
            form = self._flatten(access, {**self.ranges, **self.spans, **self.unrolled})
            simple = all(isinstance(atom, str) for atom, _ in form.terms)
            if not simple:
                return self._flatten(access, self.ranges)
            varying = tuple(
                (atom, coefficient)
                for atom, coefficient in form.terms
                if isinstance(atom, str) and self._variable_of(atom) in self.unrolled
            )
            fixed = tuple(term for term in form.terms if term not in varying)
            known = forms[id(access)] = (access, Affine(form.constant, fixed), varying)
        _, fixed_form, varying = known
        if not varying:
            return fixed_form
        constant, rows = fixed_form.constant, Affine(0, ())
        for name, coefficient in varying:
            found, variable = self._rows.get(name), self._variable_of(name)
            assert variable is not None
            low, high = self.ranges[variable]
            if low != high:  # what is bound to it has one value, but nobody can tell which
                return self._flatten(access, self.ranges)
            if found is None:
                constant += coefficient * low
            else:
                row = self._term(None, found.pitch)
                rows = rows.plus(Affine(0, ((row, 1),)), coefficient * low)
        if not rows.terms:
            return Affine(constant, fixed_form.terms)
        return Affine(constant, fixed_form.terms).plus(rows)

    def enter(self, variable: str, first: int, last: int, unrolled: bool = False) -> Surrounding:
        """From here on `variable` has one of these values, or each in turn if `unrolled`; what
        `leave` takes back. (No context manager: tiles have thousands of loops.)"""
        outer = self._surrounding
        self._surrounding = outer.within(variable, first, last, unrolled)
        self.ranges[variable] = (first, last)
        if unrolled:
            self.unrolled[variable] = (first, last)
        return outer

    def leave(self, variable: str, outer: Surrounding) -> None:
        """The end of what began with `enter`."""
        del self.ranges[variable]
        self.unrolled.pop(variable, None)
        self._surrounding = outer

    @contextmanager
    def bound(self, variable: str, value: Expr, text: str) -> Iterator[None]:
        """Within, `variable` is the operand `text`, which has this value."""
        outer = self._surrounding
        self.names[variable] = text
        self.ranges[variable] = expr_range(value, self.ranges)
        axes = axes_of(value)
        spans = self.unrolled if axes <= self.unrolled.keys() else self.spans
        if not axes.isdisjoint({*self.unrolled, *self.spans}):
            spans[variable] = expr_range(value, {**self.ranges, **self.spans, **self.unrolled})
        self._surrounding = outer.within(variable, spans.get(variable) or self.ranges[variable])
        try:
            yield
        finally:
            del self.ranges[variable]
            spans.pop(variable, None)
            self._surrounding = outer

    def _flatten(self, access: _Access, ranges: Ranges) -> Affine:
        memory = self.storages[access.buffer].memory
        pitch = memory.pitch
        result = Affine(0, ())
        if isinstance(pitch, DensePitch):
            for axis, item in enumerate(access.indices):
                form = affine(item, ranges)
                if all(number is None for number in pitch.numbers[axis + 1 :]):
                    result = result.plus(form, math.prod(pitch.extents[axis + 1 :]))
                else:
                    result = result.plus(self._pitched(form, DenseStride(pitch, axis)))
            return rejoined(result, ranges)
        stride = 1
        for extent, item in zip(reversed(memory.shape), reversed(access.indices), strict=True):
            form = affine(item, ranges)
            if pitch is not None and pitch.row <= stride < pitch.plane:
                result = result.plus(self._pitched(form, pitch), stride // pitch.row)
            else:
                result = result.plus(form, stride)
            stride *= extent
        return rejoined(result, ranges)

    def is_inside(self, load: Load) -> bool:
        """Whether memory has what is read, wherever the loops are and whatever guards say."""
        memory = self.storages[load.buffer].memory
        if isinstance(memory.pitch, DensePitch):
            return False  # it may end at any size
        spans = (affine_range(affine(item, self.ranges), self.ranges) for item in load.indices)
        return all(
            low >= 0 and high < most for (low, high), most in zip(spans, memory.shape, strict=True)
        )

    def _variable_of(self, name: str) -> str | None:
        """The loop variable of a term, which may be multiplied by a pitch; None of a row alone."""
        found = self._rows.get(name)
        return name if found is None else found.variable

    def _term(self, variable: str | None, pitch: _Stride) -> str:
        """The name of a variable that is multiplied by a pitch, or of the pitch alone."""
        rows = PitchedRows(variable, pitch)
        known = self._names_of_rows.get(rows)
        if known is None:
            known = self._names_of_rows[rows] = f"{variable or ''} rows {len(self._rows)}"
            self._rows[known] = rows
        return known

    def _pitched(self, form: Affine, pitch: _Stride) -> Affine:
        """So many rows in elements. Of lanes, which are no single number, as an expression."""
        row = self._term(None, pitch)
        terms: list[tuple[Atom, int]] = [(row, form.constant)] if form.constant else []
        for atom, coefficient in form.terms:
            if isinstance(atom, str) and atom not in self.lanes:
                terms.append((self._term(atom, pitch), coefficient))
            else:
                value = index(atom) if isinstance(atom, str) else atom
                terms.append((binary("mul", value, index(row)), coefficient))
        return Affine(0, tuple(terms))

    def _row(self, pitch: _Stride, factor: int = 1) -> str:
        """Elements from one row to the next, times a number, as an operand."""
        key = ("row", pitch, factor)
        known = self.writer.bodies[0].cache.get(key)
        if known is None:
            if factor == 1:
                known = (
                    self._row_of(pitch) if isinstance(pitch, RowPitch) else self._stride_of(pitch)
                )
            else:
                known = self.writer.emit_in(0, f"mul nsw i64 {self._row(pitch)}, {factor}")
            self.writer.bodies[0].cache[key] = known
        return known

    def _row_of(self, pitch: RowPitch) -> str:
        """As `RowPitch.columns`, in elements."""

        def emit(operation: str) -> str:
            return self.writer.emit_in(0, operation)

        sizes = self.storages[pitch.sizes].pointer
        place = emit(f"getelementptr inbounds i64, ptr {sizes}, i64 {pitch.number}")
        columns = emit(f"load i64, ptr {place}, align 8")
        columns = emit(f"add nsw i64 {columns}, {pitch.margin + pitch.multiple - 1}")
        if pitch.multiple > 1:
            columns = emit(f"sdiv i64 {columns}, {pitch.multiple}")
            columns = emit(f"mul nsw i64 {columns}, {pitch.multiple}")
        for test, end in (("slt", pitch.extent), ("sgt", 1)):
            within = emit(f"icmp {test} i64 {columns}, {end}")
            columns = emit(f"select i1 {within}, i64 {columns}, i64 {end}")
        return emit(f"mul nsw i64 {columns}, {pitch.column}")

    def _stride_of(self, stride: DenseStride) -> str:
        """The product of what there is of the axes within."""
        pitch, within = stride.pitch, slice(stride.axis + 1, None)
        sizes = self.storages[pitch.sizes].pointer
        factor, value = 1, ""
        for number, extent in zip(pitch.numbers[within], pitch.extents[within], strict=True):
            if number is None:
                factor *= extent
                continue
            place = self.writer.emit_in(0, f"getelementptr inbounds i64, ptr {sizes}, i64 {number}")
            size = self.writer.emit_in(0, f"load i64, ptr {place}, align 8")
            value = self.writer.emit_in(0, f"mul nsw i64 {value}, {size}") if value else size
        return self.writer.emit_in(0, f"mul nsw i64 {value}, {factor}")

    @contextmanager
    def fixed(self, variable: str, value: int) -> Iterator[None]:
        """Within, `variable` has this value and no lane."""
        outer, surrounding = self.ranges[variable], self._surrounding
        self._surrounding = surrounding.within(variable, value)
        self.ranges[variable] = self.unrolled[variable] = (value, value)
        try:
            yield
        finally:
            self.ranges[variable], self._surrounding = outer, surrounding
            del self.unrolled[variable]

    def variable(self, name: str) -> str:
        """The operand text of a loop variable, or of one that is multiplied by a pitch."""
        found = self._rows.get(name)
        if found is not None:
            row, variable = self._row(found.pitch), found.variable
            if variable is None:
                return row
            return self.writer.emit(f"mul i64 {self.variable(variable)}, {row}")
        low, high = self.ranges[name]
        return str(low) if low == high else self.names[name]

    def pointer(self, buffer: str, form: Affine) -> str:
        """A pointer to the element."""
        storage = self.storages[buffer]
        size = storage.memory.dtype.bytes
        pointer = self._base(storage, form.terms, size)
        if form.constant == 0:
            return pointer
        return self.writer.emit(
            f"getelementptr inbounds i8, ptr {pointer}, i64 {form.constant * size}"
        )

    def _base(self, storage: Storage, terms: tuple[tuple[Atom, int], ...], size: int) -> str:
        """The pointer without the constant part."""
        if not terms:
            return storage.pointer
        key = (storage.memory.name, terms)
        loose = [(atom, c) for atom, c in terms if not isinstance(atom, str)]
        known = self.writer.lookup(key) if not loose else None
        if known is not None:
            return known
        pointer = storage.pointer
        levels: dict[int, list[tuple[str, int]]] = {}
        for atom, coefficient in terms:
            if isinstance(atom, str):
                variable = self._variable_of(atom)
                depth = 0 if variable is None else self.writer.depths.get(variable, 0)
                levels.setdefault(depth, []).append((atom, coefficient))
        if levels:  # rows, which differ from tap to tap, come last: the rest is common to them
            moving = sorted(levels)[-1]
            rows = [term for term in levels.get(0, ()) if self._variable_of(term[0]) is None]
            if rows and moving:
                levels[0] = [term for term in levels[0] if term not in rows]
                levels[moving] = [*levels[moving], *rows]
        prefix: tuple[tuple[str, int], ...] = ()
        for depth in sorted(levels):
            for name, coefficient in levels[depth]:
                prefix = (*prefix, (name, coefficient))
                prefix_key = ("prefix", storage.memory.name, prefix)
                step = self.writer.bodies[depth].cache.get(prefix_key)
                if step is None:
                    scaled = self._scaled(depth, name, coefficient * size)
                    step = self.writer.emit_in(
                        depth, f"getelementptr inbounds i8, ptr {pointer}, i64 {scaled}"
                    )
                    self.writer.bodies[depth].cache[prefix_key] = step
                pointer = step
        for atom, coefficient in loose:
            value = self.value_of(atom).text
            scaled = self.writer.emit(f"mul i64 {value}, {coefficient * size}")
            pointer = self.writer.emit(f"getelementptr inbounds i8, ptr {pointer}, i64 {scaled}")
        if not loose:
            # An atom that is not affine may change with unrolled variables that its key hides.
            self.writer.bodies[max(levels)].cache[key] = pointer
        return pointer

    def _scaled(self, depth: int, name: str, factor: int) -> str:
        found, variable = self._rows.get(name), self._variable_of(name)
        by = str(factor) if found is None else self._row(found.pitch, factor)
        if variable is None:
            return by
        key = ("scaled", name, factor)
        known = self.writer.bodies[depth].cache.get(key)
        if known is None:
            known = self.writer.emit_in(depth, f"mul nsw i64 {self.names[variable]}, {by}")
            self.writer.bodies[depth].cache[key] = known
        return known

    def guarded_pointer(self, buffer: str, form: Affine, mask: Value) -> str:
        """A pointer to the element if the scalar mask is set, else to the buffer's first one."""
        storage = self.storages[buffer]
        offset = self.offset(form)
        safe = self.writer.emit(f"select {mask.typed}, i64 {offset}, i64 0")
        scaled = self.writer.emit(f"mul i64 {safe}, {storage.memory.dtype.bytes}")
        return self.writer.emit(f"getelementptr inbounds i8, ptr {storage.pointer}, i64 {scaled}")

    def offset(self, form: Affine) -> str:
        """The flattened index as an i64 operand."""
        result = str(form.constant)
        for atom, coefficient in form.terms:
            value = self.variable(atom) if isinstance(atom, str) else self.value_of(atom).text
            term = self.writer.emit(f"mul i64 {value}, {coefficient}")
            result = self.writer.emit(f"add i64 {result}, {term}")
        return result

    # Loads that were made already ----------------------------------------------------------------

    def recall(self, buffer: str, key: tuple[object, ...]) -> Value | None:
        """An earlier load of the same element, if nothing was stored to the buffer since."""
        return self.writer.lookup_value((self.storages[buffer].version, key))

    def keep(self, buffer: str, key: object, value: Value) -> None:
        """Remember a load until the next store to the buffer."""
        self.writer.bodies[-1].values[self.storages[buffer].version, key] = value

    def written(self, buffer: str) -> None:
        """Note a store to the buffer: what was loaded from it before is stale."""
        self._versions += 1
        self.storages[buffer].version = self._versions

    def remember(self, key: object, value: Value) -> None:
        """Remember a value for as long as the current body lasts."""
        self.writer.bodies[-1].values[key] = value

    def forget_values(self) -> None:
        """Drop the current body's remembered values."""
        self.writer.bodies[-1].values.clear()
