"""Loads: scalars, and vectors of adjacent, strided or turned elements, under masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from tunefarm.compiler.expr.affine import Affine, Atom
from tunefarm.compiler.expr.instructions import literal, suffix_of, type_of
from tunefarm.compiler.expr.nodes import Load
from tunefarm.compiler.expr.walk import axes_of
from tunefarm.compiler.llvm import scalar_ops
from tunefarm.compiler.llvm.addresses import Addresses
from tunefarm.compiler.llvm.registers import Registers
from tunefarm.compiler.llvm.shuffles import (
    Pieces,
    collect,
    first_lanes,
    pieces_of,
    readers,
    shuffle,
    transpose_block,
)
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.loops.ir import Ahead
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

FAR = 1 << 14  # bytes ahead from where on the second-level cache is near enough
CACHE_LINE = 64  # bytes that one prefetch brings; a power of two divides or repeats it elsewhere


def _stored(dtype: DType) -> DType:
    """The type of an element in memory."""
    return DType.U8 if dtype is DType.BOOL else dtype


@frozen
class Lane:
    """The vectorised loop that surrounds a statement: its variable and the number of elements."""

    variable: str
    width: int


class _Terms(NamedTuple):
    """An index's terms (kept, so that their identity stays theirs) and those not of the lane."""

    terms: tuple[tuple[Atom, int], ...]
    rest: tuple[tuple[Atom, int], ...]
    is_simple: bool  # variables only


class _Elements(NamedTuple):
    """What the lanes read: the smallest place with its terms, and each lane's distance from
    there."""

    first: int
    terms: tuple[tuple[Atom, int], ...]
    offsets: tuple[int, ...]

    def at(self, offset: int) -> Affine:
        """The place so far from the smallest one."""
        return Affine(self.first + offset, self.terms)


class LoadEmitter:
    """Emits loads. `lane` is the vectorised loop round the statement, None for scalar code.

    Two masks may leave lanes out: `mask`, the condition of a select whose other side may be out of
    range, and `active`, the lanes that the statement itself is for; the first lane always is.
    """

    def __init__(
        self,
        writer: FunctionWriter,
        addresses: Addresses,
        registers: Registers,
        prefetches: Mapping[str, int],
    ) -> None:
        self.writer = writer
        self.registers = registers
        self.addresses = addresses
        self.prefetches = prefetches  # elements ahead, by buffer
        self.copies: dict[str, Ahead] = {}
        self.lane: Lane | None = None
        self.mask: Value | None = None
        self.active: Value | None = None
        self._terms: dict[tuple[int, str], _Terms] = {}

    def widen(self, value: Value, width: int) -> Value:
        """A splat of a scalar; vectors stay."""
        if value.width or not width:
            return value
        if not value.text.startswith("%"):
            return Value(f"splat ({value.typed})", value.dtype, width)
        key = ("splat", value.text, width)
        known = self.writer.lookup_value(key)
        if known is not None:
            return known
        type_name = type_of(value.dtype, width)
        first = self.writer.emit(f"insertelement {type_name} poison, {value.typed}, i64 0")
        lanes = f"<{width} x i32> zeroinitializer"
        splat = self.writer.emit(f"shufflevector {type_name} {first}, {type_name} poison, {lanes}")
        result = Value(splat, value.dtype, width)
        self.addresses.remember(key, result)
        return result

    def common(self, *values: Value) -> tuple[Value, ...]:
        """All scalars, or all vectors of one width."""
        widths = {value.width for value in values}
        if len(widths) == 1:
            return values
        width = max(widths)
        return tuple([self.widen(value, width) for value in values])

    def split(self, form: Affine, lane: str) -> _Terms:
        """The terms without the lane's; the same terms come once per unrolled instance."""
        key = (id(form.terms), lane)
        known = self._terms.get(key)
        if known is None:
            rest = tuple(term for term in form.terms if term[0] != lane)
            simple = all(isinstance(atom, str) for atom, _ in rest)
            known = self._terms[key] = _Terms(form.terms, rest, simple)
        return known

    def load_scalar(self, node: Load, form: Affine) -> Value:
        """One element, from a register if one holds it."""
        held = self.registers.get(node.buffer, form, 0)
        if held is not None:
            return held
        key = (node.buffer, form.constant, form.terms)
        keeps = self.mask is None and self.split(form, "").is_simple
        if keeps and (known := self.addresses.recall(node.buffer, key)) is not None:
            return known
        if self.mask is None:
            pointer = self.addresses.pointer(node.buffer, form)
        else:
            pointer = self.addresses.guarded_pointer(node.buffer, form, self.mask)
        result = self._load_at(pointer, node.dtype)
        if keeps:
            self.addresses.keep(node.buffer, key, result)
            self.registers.keep(node.buffer, form, result)
        return result

    def _load_at(self, pointer: str, dtype: DType) -> Value:
        if dtype is DType.BOOL:
            byte = self.writer.emit(f"load i8, ptr {pointer}, align 1")
            return Value(self.writer.emit(f"icmp ne i8 {byte}, 0"), dtype, 0)
        name = self.writer.emit(f"load {type_of(dtype, 0)}, ptr {pointer}, align {dtype.bytes}")
        return Value(name, dtype, 0)

    def load_contiguous(self, node: Load, form: Affine, lane: Lane) -> Value:
        """Neighbours along the lanes, as one vector."""
        start = self.addresses.ranges[lane.variable][0]
        split = self.split(form, lane.variable)
        first = Affine(form.constant + start, split.rest)
        held = self.registers.get(node.buffer, first, lane.width)
        if held is not None:
            return held
        key = (node.buffer, form.constant, form.terms, lane.width)
        keeps = self.mask is None and split.is_simple
        if keeps and (known := self.addresses.recall(node.buffer, key)) is not None:
            return known
        dtype = _stored(node.dtype)
        if self._may_be_unmapped(node) and self.mask is not None:
            pointer = self.addresses.guarded_pointer(node.buffer, first, self.mask)
            mask = self.active
        else:
            pointer = self.addresses.pointer(node.buffer, first)
            mask = self._lanes_of(node)
        if mask is None:
            result = self._load_vector(node.buffer, pointer, dtype, lane.width)
            if node.dtype is DType.BOOL:
                result = self._truth(result)
            self.prefetch_ahead(node, pointer, form)
            self._prefetch_copied(node, first)
            if keeps:
                self.addresses.keep(node.buffer, key, result)
                self.registers.keep(node.buffer, first, result)
            return result
        result = self.masked_load(pointer, self.widen(mask, lane.width), dtype)
        return self._truth(result) if node.dtype is DType.BOOL else result

    def _truth(self, stored: Value) -> Value:
        """Bools from the bytes that they are stored as."""
        name = self.writer.emit(f"icmp ne {stored.typed}, zeroinitializer")
        return Value(name, DType.BOOL, stored.width)

    def is_part(self, buffer: str, dtype: DType, width: int) -> bool:
        """A vector of an odd width is a part of a register, which a mask loads and stores at once.

        Not of what should stay in registers: nothing promotes what is masked.
        """
        part = width & (width - 1) != 0 and dtype.bytes >= 4 and self.writer.has_avx512
        return part and not self.registers.promotes(buffer)

    def _load_vector(self, buffer: str, pointer: str, dtype: DType, width: int) -> Value:
        if not self.is_part(buffer, dtype, width):
            type_name = type_of(dtype, width)
            name = self.writer.emit(f"load {type_name}, ptr {pointer}, align {dtype.bytes}")
            return Value(name, dtype, width)
        whole = self.masked_load(pointer, first_lanes(width), dtype)
        return shuffle(self.writer, whole, whole, range(width))

    def masked_load(self, pointer: str, mask: Value, dtype: DType) -> Value:
        """A vector of the elements whose mask is set, 0 for the others."""
        return masked_load(self.writer, pointer, mask, dtype)

    def _lanes_of(self, node: Load) -> Value | None:
        """The mask for a vector load: what a select and a masked tile leave of the lanes.

        None where all elements exist, as those of padded rows do.
        """
        if self.mask is None and self.active is None:
            return None
        return None if self.addresses.is_inside(node) else self.both(self.mask, self.active)

    def _may_be_unmapped(self, node: Load) -> bool:
        """Under a condition that all lanes share, it reads what an earlier round of a loop wrote.

        The first round has none before it: a Zen 4 takes 280 ns to load no lane of a page that
        nobody has touched.
        """
        shared = self.mask is not None and not self.mask.width
        read_back = self.addresses.storages[node.buffer].read_back
        return shared and read_back and not self.addresses.is_inside(node)

    def both(self, mask: Value | None, other: Value | None) -> Value | None:
        """The lanes of both masks; None is all of them."""
        if mask is None or other is None:
            return other if mask is None else mask
        return scalar_ops.binary(self.writer, "and", *self.common(mask, other))

    def prefetch_ahead(self, node: Load, pointer: str, place: Affine) -> None:
        """Ask for what lies ahead of a vector of a buffer that streams, once a cache line.

        A barrier may have the same vector loaded again: its line is asked for already.
        """
        if node.buffer not in self.prefetches or place.constant * node.dtype.bytes % CACHE_LINE:
            return
        key = ("prefetch", node.buffer, place)
        if self.writer.lookup(key) is None:
            self.writer.bodies[-1].cache[key] = pointer
            self._prefetch(pointer, self.prefetches[node.buffer] * node.dtype.bytes)

    def _prefetch_copied(self, node: Load, place: Affine) -> None:
        """Ask for what the next copies will be made of, once a cache line of this one."""
        ahead = self.copies.get(node.buffer)
        if ahead is None or place.constant * node.dtype.bytes % CACHE_LINE:
            return
        source = self.addresses.of(ahead.first).plus(place)
        pointer = self.addresses.pointer(ahead.first.buffer, Affine(0, source.terms))
        self._prefetch(pointer, (source.constant + ahead.distance) * ahead.first.dtype.bytes)

    def _prefetch(self, pointer: str, ahead: int) -> None:
        # Not "inbounds": what lies ahead of the last vector is nobody's.
        target = self.writer.emit(f"getelementptr i8, ptr {pointer}, i64 {ahead}")
        level = 3 if ahead < FAR else 2
        self.writer.call("llvm.prefetch.p0", [f"ptr {target}", "i32 0", f"i32 {level}", "i32 1"])

    def load_column(self, node: Load, form: Affine, stride: int) -> Value | None:
        """A column of a block of a local buffer whose rows are vectors of a known width."""
        assert self.lane is not None
        variable, count = self.lane.variable, self.lane.width
        if any(atom != variable for atom, _ in form.terms):
            return None
        first = form.constant + stride * self.addresses.ranges[variable][0]
        return self._column(node, first, stride, count)

    def load_columns(self, node: Load, form: Affine) -> Value | None:
        """Columns of such a block side by side, whose elements the lanes read in turn.

        In the lanes are row 0 of all columns, row 1 of all of them, and so on; columns have 4 or 8
        bytes together, and are transposed like one.
        """
        assert self.lane is not None
        if self.registers.width(node.buffer) < 2:
            return None
        elements = self._elements(node, form)
        if elements is None or elements.terms:
            return None
        offsets, count = elements.offsets, len(elements.offsets)
        beside = next((i for i, offset in enumerate(offsets) if offset != i), count)
        if beside < 2 or beside * node.dtype.bytes not in _TOGETHER or count % beside:
            return None
        stride = offsets[beside] if beside < count else 0
        if stride < 1 or any(
            offset != i // beside * stride + i % beside for i, offset in enumerate(offsets)
        ):
            return None
        return self._column(node, elements.first, stride, count // beside, beside)

    def _column(
        self, node: Load, first: int, stride: int, count: int, beside: int = 1
    ) -> Value | None:
        """What `count` rows, `stride` elements apart, have in columns `beside` each other."""
        width = self.registers.width(node.buffer)
        if width < 2 or stride % width or width % beside or first % width % beside:
            return None
        column = first % width
        begins = [first - column + i * stride for i in range(count)]
        if begins[-1] + width > self.addresses.storages[node.buffer].memory.type.size:
            return None
        rows = [self._row(node, begin, width) for begin in begins]
        key = ("columns", beside, tuple(row.text for row in rows))
        if self.writer.lookup_value((key, 0)) is None:
            held = node.dtype if beside == 1 else _TOGETHER[beside * node.dtype.bytes]
            joined = [self._cast_bits(row, held, width // beside) for row in rows]
            for i, value in enumerate(transpose_block(self.writer, joined)):
                self.addresses.remember(
                    (key, i), self._cast_bits(value, node.dtype, count * beside)
                )
        return self.writer.lookup_value((key, column // beside))

    def _cast_bits(self, value: Value, dtype: DType, width: int) -> Value:
        """The same bits as so many elements of another type."""
        if value.dtype is dtype:
            return value
        name = self.writer.emit(f"bitcast {value.typed} to {type_of(dtype, width)}")
        return Value(name, dtype, width)

    def _row(self, node: Load, begin: int, width: int) -> Value:
        """A vector of a local buffer; memory holds what is not known."""
        known = self.registers.peek(node.buffer, begin, width)
        if known is None:
            pointer = self.addresses.pointer(node.buffer, Affine(begin, ()))
            type_name, align = type_of(node.dtype, width), node.dtype.bytes
            name = self.writer.emit(f"load {type_name}, ptr {pointer}, align {align}")
            known = Value(name, node.dtype, width)
            self.registers.keep(node.buffer, Affine(begin, ()), known)
        return known

    def load_pattern(self, node: Load, form: Affine) -> Value | None:
        """Elements whose distances the lanes alone decide: whole vectors, rearranged.

        None where that is not so, or where one load for each is cheaper.
        """
        assert self.lane is not None
        if self.lane.width < 2 or self.registers.holds(node.buffer):
            return None
        elements = self._elements(node, form)
        pieces = None if elements is None else pieces_of(elements.offsets)
        if elements is None or pieces is None:
            return None
        mask = self.both(self.mask, self.active)
        if mask is not None and any(len(readers(pieces, i)) > 2 for i in range(len(pieces.starts))):
            return None
        vectors = [
            self._load_piece(
                node, Affine(elements.first + at, elements.terms), pieces, number, mask
            )
            for number, at in enumerate(pieces.starts)
        ]
        if node.dtype is not DType.BOOL:
            return collect(self.writer, pieces, vectors)
        return self._truth(collect(self.writer, pieces, vectors))

    def _elements(self, node: Load, form: Affine) -> _Elements | None:
        """Which elements the lanes read, if their distances are known."""
        assert self.lane is not None
        variable, width = self.lane.variable, self.lane.width
        start = self.addresses.ranges[variable][0]
        if not form.divisions:
            stride = form.coefficient(variable)
            places = [form.constant + stride * (start + i) for i in range(width)]
            terms = self.split(form, variable).rest
        else:
            forms: list[Affine] = []
            for i in range(width):
                with self.addresses.fixed(variable, start + i):
                    forms.append(self.addresses.of(node))
                if forms[i].terms != forms[0].terms:
                    return None
            terms, places = forms[0].terms, [form.constant for form in forms]
            if any(not isinstance(atom, str) and variable in axes_of(atom) for atom, _ in terms):
                return None  # a table's element
        first = min(places)
        return _Elements(first, terms, tuple(place - first for place in places))

    def _load_piece(
        self, node: Load, form: Affine, pieces: Pieces, number: int, mask: Value | None
    ) -> Value:
        """A vector that some lanes read elements of, each under its own lane's mask."""
        dtype, width = _stored(node.dtype), pieces.width
        key = (node.buffer, form.constant, form.terms, width)
        keeps = mask is None and all(isinstance(atom, str) for atom, _ in form.terms)
        if keeps and (known := self.addresses.recall(node.buffer, key)) is not None:
            return known
        pointer = self.addresses.pointer(node.buffer, form)
        if mask is not None:
            return self.masked_load(pointer, self._mask_of_piece(mask, pieces, number), dtype)
        name = self.writer.emit(f"load {type_of(dtype, width)}, ptr {pointer}, align {dtype.bytes}")
        self.prefetch_ahead(node, pointer, form)
        result = Value(name, dtype, width)
        if keeps:
            self.addresses.keep(node.buffer, key, result)
        return result

    def _mask_of_piece(self, mask: Value, pieces: Pieces, number: int) -> Value:
        """The elements of a piece that a lane reads whose mask is set."""
        lanes = len(pieces.lanes)
        mask = self.widen(mask, lanes)
        none = Value("zeroinitializer", DType.BOOL, lanes)
        parts = [
            shuffle(self.writer, mask, none, [lanes if lane is None else lane for lane in read])
            for read in readers(pieces, number)
        ]
        return reduce(lambda one, other: scalar_ops.binary(self.writer, "or", one, other), parts)

    def can_gather(self, node: Load) -> bool:
        """Whether the buffer's elements have a gathering load, by 32-bit positions."""
        memory = self.addresses.storages[node.buffer].memory
        return node.dtype.bytes in (4, 8) and memory.type.size < 1 << 31

    def gather(self, node: Load, pointer: str, positions: Value) -> Value:
        """The elements at `positions`, i64, from the pointer on."""
        width, type_name = positions.width, type_of(node.dtype, positions.width)
        narrow = scalar_ops.cast(self.writer, positions, DType.I32)
        pointers = self.writer.emit(
            f"getelementptr inbounds {type_of(node.dtype, 0)}, ptr {pointer}, {narrow.typed}"
        )
        mask = self.both(self.mask, self.active)
        every = Value(literal(True, DType.BOOL, width), DType.BOOL, width)
        mask = every if mask is None else self.widen(mask, width)
        name = self.writer.intrinsic(
            f"llvm.masked.gather.{suffix_of(node.dtype, width)}.v{width}p0",
            type_name,
            [
                f"<{width} x ptr> {pointers}",
                f"i32 {node.dtype.bytes}",
                mask.typed,
                f"{type_name} zeroinitializer",
            ],
        )
        return Value(name, node.dtype, width)

    def load_any_lane(self, node: Load, form: Affine) -> Value:
        """A load whose address is the same for all lanes, needed if any lane's mask is set."""
        assert self.mask is not None
        mask = self.mask
        any_set = self.writer.intrinsic(
            f"llvm.vector.reduce.or.v{mask.width}i1", "i1", [mask.typed]
        )
        self.mask = Value(any_set, DType.BOOL, 0)
        try:
            return self.load_scalar(node, form)
        finally:
            self.mask = mask


_TOGETHER = {4: DType.I32, 8: DType.I64}
"""What neighbours of so many bytes are moved as."""
_LEAST = 16  # bytes of a register
_AVX = 32  # bytes of one without AVX-512
_WORDS = {1: DType.U8, 2: DType.I16}
"""What is loaded of narrow elements, half a register at a time: all CPUs have those."""


def masked_load(writer: FunctionWriter, pointer: str, mask: Value, dtype: DType) -> Value:
    """A vector of the elements whose mask is set, 0 for the others."""
    is_held, width = writer.has_avx512, mask.width
    if not is_held and width * dtype.bytes <= _AVX:
        return _load(writer, pointer, mask, dtype)
    held = _WORDS.get(dtype.bytes, dtype) if is_held else dtype
    most = (64 if is_held and held.bytes >= 4 else _AVX) // held.bytes
    side = most if width > most else max(1 << (width - 1).bit_length(), _LEAST // held.bytes)
    parts = []
    for start in range(0, width, side):
        place = pointer
        if start:
            bytes = start * held.bytes
            place = writer.emit(f"getelementptr i8, ptr {pointer}, i64 {bytes}")
        lanes = mask
        if side != width:
            none = Value("zeroinitializer", DType.BOOL, width)
            every = [min(lane, width) for lane in range(start, start + side)]
            lanes = shuffle(writer, mask, none, every)
        loaded = _load(writer, place, lanes, held)
        if is_held:
            kind = type_of(held, side)
            name = writer.emit(f'call {kind} asm "", "=v,0"({loaded.typed})')
            loaded = Value(name, held, side)
        parts.append(loaded)
    whole = _joined(writer, parts)
    if whole.width != width:
        whole = shuffle(writer, whole, whole, range(width))
    if type_of(held, width) == type_of(dtype, width):
        return Value(whole.text, dtype, width)
    cast = writer.emit(f"bitcast {whole.typed} to {type_of(dtype, width)}")
    return Value(cast, dtype, width)


def _load(writer: FunctionWriter, pointer: str, mask: Value, dtype: DType) -> Value:
    type_name = type_of(dtype, mask.width)
    fits = mask.width * dtype.bytes in (_LEAST, _AVX) and dtype.bytes >= 4
    if writer.has_avx2 and not writer.has_avx512 and fits:
        mask = _hidden(writer, mask, DType.I32 if dtype.bytes == 4 else DType.I64)
    name = writer.intrinsic(
        f"llvm.masked.load.{suffix_of(dtype, mask.width)}.p0",
        type_name,
        [f"ptr align {dtype.bytes} {pointer}", mask.typed, f"{type_name} zeroinitializer"],
    )
    return Value(name, dtype, mask.width)


def _hidden(writer: FunctionWriter, mask: Value, lanes: DType) -> Value:
    """A mask that LLVM knows nothing of: where it finds that no lane is set, as of the last part of
    a row, LLVM 22 loads all of them, past the end of the memory."""
    kind = type_of(lanes, mask.width)
    wide = writer.emit(f"sext {mask.typed} to {kind}")
    wide = writer.emit(f'call {kind} asm "", "=x,0"({kind} {wide})')
    return Value(writer.emit(f"icmp slt {kind} {wide}, zeroinitializer"), DType.BOOL, mask.width)


def _joined(writer: FunctionWriter, parts: Sequence[Value]) -> Value:
    """Vectors of one width one behind the other; behind an odd number of them follows anything."""
    while len(parts) > 1:
        even = [*parts, *parts[-1:]][: len(parts) + len(parts) % 2]
        pairs = zip(even[::2], even[1::2], strict=True)
        parts = [shuffle(writer, one, other, range(2 * one.width)) for one, other in pairs]
    return parts[0]
