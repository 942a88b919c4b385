"""Words: the factors of a dot product, as many of them in each 32-bit lane as it has terms.

A word holds n adjacent narrow values, 4 of 8 bits or 2 of 16. Packed weights [..., lane, n] are a
vector of words as they lie in memory, and n adjacent values that all lanes share one word, which is
broadcast. Others are rearranged: lanes [..., n, lane], or windows that overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tunefarm.compiler.expr.affine import Affine, affine, affine_range, decide
from tunefarm.compiler.expr.instructions import type_of
from tunefarm.compiler.expr.nodes import Const, Expr, Load, Select
from tunefarm.compiler.expr.packed_fields import PackedField, packed_field, wide_byte
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.kernels.kernel import DensePitch
from tunefarm.compiler.llvm import scalar_ops
from tunefarm.compiler.llvm.addresses import Addresses
from tunefarm.compiler.llvm.byte_tables import BytePermuter
from tunefarm.compiler.llvm.expressions import ExpressionEmitter
from tunefarm.compiler.llvm.loads import Lane
from tunefarm.compiler.llvm.registers import Registers
from tunefarm.compiler.llvm.shuffles import shuffle
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

WORD = DType.U32
MOST_BYTES = 128  # of memory that are loaded at once to be rearranged
_BITS = {1: DType.U8, 2: DType.U16}  # by bytes of a narrow value


@frozen
class Terms:
    """The variable of a dot product, how many terms it has, and how many of them fit a word."""

    variable: str
    count: int
    slots: int


@frozen
class Words:
    """One word, or one for each lane; `clean` says that slots beyond the last term are 0."""

    value: Value
    clean: bool = True


class WordEmitter:
    """Emits words at the writer's current point."""

    def __init__(
        self,
        writer: FunctionWriter,
        addresses: Addresses,
        registers: Registers,
        expressions: ExpressionEmitter,
        permuter: BytePermuter,
    ) -> None:
        self.permuter = permuter
        self.writer = writer
        self.addresses = addresses
        self.registers = registers
        self.expressions = expressions

    def words(self, factor: Expr, terms: Terms, lane: Lane) -> Words:
        """The words of a factor, a scalar where all lanes have the same."""
        if isinstance(factor, Const):
            return Words(self._repeated(factor, terms))
        if isinstance(factor, Select):
            return self._chosen(factor, terms, lane)
        byte = wide_byte(factor)
        if byte is not None:
            return self._wide(byte, terms, lane) or self._term_by_term(factor, terms, lane)
        field = packed_field(factor)
        if field is not None:
            return self._fields(field, terms) or self._term_by_term(factor, terms, lane)
        assert isinstance(factor, Load)
        if self.registers.holds(factor.buffer):
            self.registers.release(factor.buffer)
        form = self.addresses.of(factor)
        moving = {terms.variable, lane.variable}
        loose = (atom for atom, _ in form.terms if not isinstance(atom, str))
        if any(axes_of(atom) & moving for atom in loose):
            return self._term_by_term(factor, terms, lane)
        found: Words | None
        if lane.variable not in axes_of(factor):
            found = self._word(factor, form, terms, lane)
        else:
            found = (
                self._adjacent(factor, form, terms, lane)
                or self._rearranged(factor, form, terms, lane)
                or self._of_rows(factor, form, terms, lane)
            )
        return found or self._term_by_term(factor, terms, lane)

    def cleaned(self, words: Words, terms: Terms) -> Words:
        """With 0 in the slots beyond the last term."""
        if words.clean:
            return words
        bits = 32 // terms.slots * terms.count
        kept = self.expressions.widen(word_of((1 << bits) - 1), words.value.width)
        return Words(scalar_ops.binary(self.writer, "and", words.value, kept))

    def _repeated(self, factor: Const, terms: Terms) -> Value:
        bits = 32 // terms.slots
        pattern = int.from_bytes(np.array(factor.value, factor.dtype.numpy).tobytes(), "little")
        return word_of(sum(pattern << bits * slot for slot in range(terms.count)))

    def _wide(self, load: Load, terms: Terms, lane: Lane) -> Words | None:
        """Adjacent bytes of all lanes as numbers of 16 bits."""
        form, count = self.addresses.of(load), terms.count * lane.width
        loose = (atom for atom, _ in form.terms if not isinstance(atom, str))
        if any(axes_of(atom) & {terms.variable, lane.variable} for atom in loose):
            return None
        steps = form.coefficient(terms.variable), form.coefficient(lane.variable)
        if terms.count != terms.slots or steps != (1, terms.slots) or not self._is_inside(load):
            return None
        start = terms.slots * self.addresses.ranges[lane.variable][0]
        first = _without(form, terms.variable, lane.variable)
        first = Affine(first.constant + start, first.terms)
        bytes = self._load(load, first, count, load.dtype)
        return Words(self.as_words(scalar_ops.cast(self.writer, bytes, DType.I16)))

    def _fields(self, field: PackedField, terms: Terms) -> Words | None:
        """The same bits of each byte of a word, as the bytes of one."""
        amount = affine(field.amount, self.addresses.ranges)
        moved = _without(amount, terms.variable)
        moving = (axes_of(atom) for atom, _ in moved.terms if not isinstance(atom, str))
        if amount.coefficient(terms.variable) != DType.U8.bits or any(
            terms.variable in axes for axes in moving
        ):
            return None
        low, high = affine_range(moved, self.addresses.ranges)
        if low != high or terms.variable in axes_of(field.word):
            return None
        word = self.expressions.value(field.word)
        value, width = Value(word.text, WORD, word.width), word.width
        if low:
            bits = self.expressions.widen(word_of(low), width)
            value = scalar_ops.binary(self.writer, "shr", value, bits)
        if field.bits < DType.U8.bits:
            kept = self.expressions.widen(word_of(((1 << field.bits) - 1) * 0x01010101), width)
            value = scalar_ops.binary(self.writer, "and", value, kept)
        return Words(value, terms.count == terms.slots)

    def _chosen(self, factor: Select, terms: Terms, lane: Lane) -> Words:
        verdict = decide(factor.condition, self.addresses.ranges)
        if verdict is not None:
            return self.words(factor.then if verdict else factor.otherwise, terms, lane)
        sides = (factor.then, factor.otherwise)
        varying = axes_of(factor.condition) & {terms.variable, lane.variable}
        if varying or not isinstance(factor.otherwise, Const) or isinstance(sides[0], Select):
            return self._term_by_term(factor, terms, lane)
        condition = self.expressions.value(factor.condition)
        with self.expressions.under(condition, factor.then):
            then = self.words(factor.then, terms, lane)
        other = self.words(factor.otherwise, terms, lane)
        first, second = self.expressions.common(then.value, other.value)
        name = self.writer.emit(f"select {condition.typed}, {first.typed}, {second.typed}")
        return Words(Value(name, WORD, first.width), then.clean and other.clean)

    def _word(self, load: Load, form: Affine, terms: Terms, lane: Lane) -> Words | None:
        """One word for all lanes, whose terms lie side by side."""
        if terms.count > 1 and form.coefficient(terms.variable) != 1:
            return None
        first = _without(form, terms.variable)
        missing = terms.slots - terms.count
        if not missing:
            return Words(self._load(load, first, 0, WORD))
        if (
            affine_range(first, self.addresses.ranges)[0] >= missing
            and self.expressions.mask is None
        ):
            # What lies before is pushed out, so that the slots beyond the last term are 0.
            before = Affine(first.constant - missing, first.terms)
            value = self.expressions.widen(self._load(load, before, 0, WORD), lane.width)
            bits = self.expressions.widen(word_of(32 // terms.slots * missing), lane.width)
            return Words(scalar_ops.binary(self.writer, "shr", value, bits))
        if not self._has_beyond(load, missing):
            return None
        value = self.expressions.widen(self._load(load, first, 0, WORD), lane.width)
        return self.cleaned(Words(value, False), terms)

    def _adjacent(self, load: Load, form: Affine, terms: Terms, lane: Lane) -> Words | None:
        """A word for each lane, as they lie in memory."""
        along = 1 if terms.count == 1 else form.coefficient(terms.variable)
        if along != 1 or form.coefficient(lane.variable) != terms.slots:
            return None
        missing = terms.slots - terms.count
        if not self._is_inside(load) or (missing and not self._has_beyond(load, missing)):
            return None
        start = terms.slots * self.addresses.ranges[lane.variable][0]
        first = _without(form, terms.variable, lane.variable)
        value = self._load(load, Affine(first.constant + start, first.terms), lane.width, WORD)
        return Words(value, missing == 0)

    def _rearranged(self, load: Load, form: Affine, terms: Terms, lane: Lane) -> Words | None:
        """A word for each lane, from a part of memory that is loaded as a whole."""
        along, across = form.coefficient(lane.variable), form.coefficient(terms.variable)
        if along < 0 or across < 0 or not self._is_inside(load):
            return None
        span = along * (lane.width - 1) + across * (terms.count - 1) + 1
        if span * load.dtype.bytes > MOST_BYTES:
            return None
        start = along * self.addresses.ranges[lane.variable][0]
        rest = _without(form, terms.variable, lane.variable)
        first = Affine(rest.constant + start, rest.terms)
        places = [
            along * i + across * slot if slot < terms.count else None
            for i in range(lane.width)
            for slot in range(terms.slots)
        ]
        permuted = self._permuted(load, first, span, places)
        if permuted is not None:
            return Words(permuted)
        stored = _BITS[load.dtype.bytes]
        if along == 1 and across >= lane.width:
            return None
        whole = 1 << (span - 1).bit_length()
        loaded = whole if self._has_beyond(load, whole - span) else span
        memory = self._load(load, first, loaded, stored)
        none = Value("zeroinitializer", stored, loaded)
        filled = [loaded if place is None else place for place in places]
        return Words(self.as_words(shuffle(self.writer, memory, none, filled)))

    def _permuted(
        self, load: Load, first: Affine, span: int, places: Sequence[int | None]
    ) -> Value | None:
        """Words of the elements at these places from `first` on, 0 where there is none.

        By instructions that are called by name, where the target has some: of many shuffles of
        overlapping loads LLVM makes moves of single bytes.
        """
        size, unit = load.dtype.bytes, 1 if self.permuter.masks_bytes else WORD.bytes
        order = [
            None if place is None else place * size + byte
            for place in places
            for byte in range(size)
        ]
        used = -(-span * size // unit)
        missing = used * unit // size - span
        if max(used * unit, len(order)) > self.permuter.bytes:
            return None
        if missing and not self._has_beyond(load, missing):
            return None
        steps = self.permuter.steps(order, span * size)
        if steps is None:
            return None
        dtype = DType.U8 if unit == 1 else WORD
        memory = self._load(load, first, self.permuter.bytes // unit, dtype, used)
        permuted = self.permuter.permuted(memory, steps)
        words = len(order) // WORD.bytes
        whole = Value(permuted, WORD, self.permuter.bytes // WORD.bytes)
        return whole if words == whole.width else shuffle(self.writer, whole, whole, range(words))

    def _of_rows(self, load: Load, form: Affine, terms: Terms, lane: Lane) -> Words | None:
        """A word for each lane, of terms each of which all lanes have side by side."""
        along, across = form.coefficient(lane.variable), form.coefficient(terms.variable)
        size, width = load.dtype.bytes, lane.width
        if along != 1 or not self._is_inside(load) or width * WORD.bytes > self.permuter.bytes:
            return None
        order = [
            (slot * width + i) * size + byte
            for i in range(width)
            for slot in range(terms.slots)
            for byte in range(size)
        ]
        steps = self.permuter.steps(order, len(order))
        if steps is None:
            return None
        start = self.addresses.ranges[lane.variable][0]
        rest = _without(form, terms.variable, lane.variable)
        stored = _BITS[size]
        rows = [
            self._load(load, Affine(rest.constant + start + across * i, rest.terms), width, stored)
            for i in range(terms.count)
        ]
        none = Value("zeroinitializer", stored, width)
        rows += [none] * (terms.slots - terms.count)
        while len(rows) > 1:
            pairs = zip(rows[::2], rows[1::2], strict=True)
            rows = [shuffle(self.writer, a, b, range(2 * a.width)) for a, b in pairs]
        whole = self.permuter.bytes // size
        if rows[0].width < whole:
            places = [i if i < rows[0].width else None for i in range(whole)]
            rows = [shuffle(self.writer, rows[0], rows[0], places)]
        permuted = Value(
            self.permuter.permuted(rows[0], steps), WORD, self.permuter.bytes // WORD.bytes
        )
        if width == permuted.width:
            return Words(permuted)
        return Words(shuffle(self.writer, permuted, permuted, range(width)))

    def _term_by_term(self, factor: Expr, terms: Terms, lane: Lane) -> Words:
        """Each term on its own, then joined: right for everything."""
        stored = _BITS[factor.dtype.bytes]
        values: list[Value] = []
        for number in range(terms.count):
            term = self.expressions.vector_at(factor, terms.variable, number)
            if factor.dtype.is_float:
                name = self.writer.emit(f"bitcast {term.typed} to {type_of(stored, term.width)}")
                term = Value(name, stored, term.width)
            values.append(Value(term.text, stored, term.width))
        width = lane.width
        none = Value("zeroinitializer", stored, width)
        values += [none] * (terms.slots - terms.count)
        while len(values) > 1:
            size = values[0].width // width  # values of each lane
            order = [
                i * size + j + side * size * width
                for i in range(width)
                for side in (0, 1)
                for j in range(size)
            ]
            pairs = zip(values[::2], values[1::2], strict=True)
            values = [shuffle(self.writer, one, other, order) for one, other in pairs]
        return Words(self.as_words(values[0]))

    def as_words(self, narrow: Value) -> Value:
        """A vector of narrow values, lane by lane, as words."""
        width = narrow.width * narrow.dtype.bytes // WORD.bytes
        name = self.writer.emit(f"bitcast {narrow.typed} to {type_of(WORD, width)}")
        return Value(name, WORD, width)

    # Memory --------------------------------------------------------------------------------------

    def _load(
        self, load: Load, first: Affine, width: int, dtype: DType, span: int | None = None
    ) -> Value:
        """What lies from `first` on as so many values of a type; kept until the next store.

        Of a vector the first `span` values alone are read, and the others are 0.
        """
        simple = all(isinstance(atom, str) for atom, _ in first.terms)
        mask = self.expressions.mask
        keeps = simple and mask is None
        key = ("words", load.buffer, first.constant, first.terms, width, dtype, span)
        if keeps and (known := self.addresses.recall(load.buffer, key)) is not None:
            return known
        if mask is None:
            pointer = self.addresses.pointer(load.buffer, first)
        else:
            pointer = self.addresses.guarded_pointer(load.buffer, first, mask)
        if span is None or span == width:
            align = load.dtype.bytes
            name = self.writer.emit(f"load {type_of(dtype, width)}, ptr {pointer}, align {align}")
            value = Value(name, dtype, width)
            if width and mask is None:
                self.expressions.prefetch_ahead(load, pointer, first)
        else:
            lanes = ", ".join(f"i1 {'true' if i < span else 'false'}" for i in range(width))
            value = self.expressions.masked_load(
                pointer, Value(f"<{lanes}>", DType.BOOL, width), dtype
            )
        if keeps:
            self.addresses.keep(load.buffer, key, value)
        return value

    def _has_beyond(self, load: Load, count: int) -> bool:
        """There are so many elements in memory behind whatever is read."""
        return any(high + count < size for _, high, size in self._within(load))

    def _within(self, load: Load) -> Iterator[tuple[int, int, int]]:
        """The first and the last place within rows, planes and so on, and their sizes.

        What is read may lie elsewhere only where a guard stands before it. Rows with a pitch may be
        shorter than their bounds.
        """
        ranges, stride, form = self.addresses.ranges, 1, Affine(0, ())
        memory = self.addresses.storages[load.buffer].memory
        for item, extent in zip(reversed(load.indices), reversed(memory.shape), strict=True):
            form = form.plus(affine(item, ranges), stride)
            stride *= extent
            if isinstance(memory.pitch, DensePitch):
                return
            if memory.pitch is not None and stride > memory.pitch.column:
                return
            yield *affine_range(form, ranges), stride

    def _is_inside(self, load: Load) -> bool:
        """All lanes read what there is, those that are masked too."""
        return self.expressions.active is None or self.addresses.is_inside(load)


def word_of(bits: int) -> Value:
    """A word that is known."""
    return Value(str(bits - (1 << 32) if bits >> 31 else bits), WORD, 0)


def _without(form: Affine, *variables: str) -> Affine:
    return Affine(form.constant, tuple(term for term in form.terms if term[0] not in variables))


def joined(writer: FunctionWriter, parts: Sequence[Value]) -> Value:
    """Vectors of one width, one behind the other."""
    result = parts[0]
    for part in parts[1:]:
        width = result.width
        rest = part
        if part.width != width:
            order = [i if i < part.width else None for i in range(width)]
            rest = shuffle(writer, part, part, order)
        result = shuffle(writer, result, rest, range(width + part.width))
    return result
