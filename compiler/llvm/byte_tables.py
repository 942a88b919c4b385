"""Tables of 256 bytes, or of a few words, looked up for all lanes of a vector at once.

AVX512-VBMI picks from 128 bytes at once (vpermi2b): two of these and a blend by the highest bit.
AVX2, and AVX-512 without that, pick from 16 bytes (vpshufb): a register holds several such slices,
the same 16 indices lie next to each of them, and those of other slices are made to give 0.

AVX-512 picks from 32 words at once (vpermi2ps).
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.expr.instructions import type_of
from tunefarm.compiler.llvm.loads import masked_load
from tunefarm.compiler.llvm.shuffles import shuffle
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

# Bytes of a register in another order: x86's instructions for that, by name.

GROUP = 16  # bytes within which vpshufb moves them
_WORD = 4
_NONE = 0x80  # vpshufb gives 0 for it


@frozen
class Permutation:
    """The words to move first (none: as they are), then for each byte which one it is."""

    words: tuple[int, ...]
    bytes: tuple[int, ...]


class BytePermuter:
    """Permutes registers of `bytes` bytes; 0 where the target has no instructions for that."""

    def __init__(self, writer: FunctionWriter, target: Target) -> None:
        self.writer = writer
        features = set(target.features)
        wide = "avx512bw" in features and target.vector_bytes >= 64
        self.bytes = 64 if wide else 32 if "avx2" in features else 0
        self.masks_bytes = wide
        self.at_once = wide and "avx512vbmi" in features

    def steps(self, order: Sequence[int | None], loaded: int) -> Permutation | None:
        """How to bring the bytes `order` of a register to its front, None being 0.

        Of the register the first `loaded` bytes are known, and the others 0. None where these
        instructions cannot.
        """
        filled = [*order, *[None] * (self.bytes - len(order))]
        if self.at_once:
            if None in filled and loaded == self.bytes:
                return None
            return Permutation((), tuple(loaded if i is None else i for i in filled))
        words: list[int] = []
        bytes: list[int] = []
        for first in range(0, self.bytes, GROUP):
            group = filled[first : first + GROUP]
            read = sorted({i // _WORD for i in group if i is not None})
            if len(read) > GROUP // _WORD:
                return None
            words += [*read, *[0] * (GROUP // _WORD - len(read))]
            bytes += [
                _NONE if i is None else read.index(i // _WORD) * _WORD + i % _WORD for i in group
            ]
        return Permutation(tuple(words), tuple(bytes))

    def permuted(self, value: Value, steps: Permutation) -> str:
        """The register in another order, as a vector of words."""
        wide = self.bytes == 64
        words, narrow = f"<{self.bytes // _WORD} x i32>", f"<{self.bytes} x i8>"
        text, type = value.text, value.type
        if steps.words and steps.words != tuple(range(self.bytes // _WORD)):
            name = "avx512.permvar.si.512" if wide else "avx2.permd"
            text, type = self._call(name, words, self._cast(text, type, words), steps.words), words
        names = "avx512.permvar.qi.512" if self.at_once else "avx512.pshuf.b.512"
        name = names if wide else "avx2.pshuf.b"
        text = self._call(name, narrow, self._cast(text, type, narrow), steps.bytes)
        return self._cast(text, narrow, words)

    def _call(self, name: str, type: str, text: str, table: Sequence[int]) -> str:
        element = type[:-1].split(" x ")[1]
        literal = ", ".join(f"{element} {entry}" for entry in table)
        return self.writer.intrinsic(
            f"llvm.x86.{name}", type, [f"{type} {text}", f"{type} <{literal}>"]
        )

    def _cast(self, text: str, type: str, to: str) -> str:
        return text if type == to else self.writer.emit(f"bitcast {type} {text} to {to}")


ENTRIES = 256
_SLICE = 16
_OUTSIDE = 0x70
"""Added with saturation to 16 and more it sets the highest bit, for which vpshufb gives 0."""


class ByteTables:
    """Looks up vectors of up to `lanes` bytes; 0 where the target has no instructions for that."""

    def __init__(self, writer: FunctionWriter, target: Target) -> None:
        self.writer = writer
        features = set(target.features)
        wide = "avx512bw" in features and target.vector_bytes >= 64
        self.at_once = wide and "avx512vbmi" in features
        self.bytes = 64 if wide else 32 if "avx2" in features else 0
        self.lanes = self.bytes if self.at_once else min(self.bytes, _SLICE)

    def serves(self, lanes: int, in_memory: bool) -> bool:
        """Whether that beats a load for each of the lanes, whose indices may lie `in_memory`.

        With 32 bytes in a register it takes twice as long then (57 and 36 us for 200,000 bytes on
        one Zen 5 core), but for computed indices, which first have to leave it, less (430, 560).
        """
        return lanes <= self.lanes and not (in_memory and self.bytes == 32)

    def looked_up(self, pointer: str, picks: Value, to: DType) -> Value:
        """The entries of the table at `pointer` for a vector of u8."""
        if self.at_once:
            found, width = self._from_halves(pointer, picks), self.bytes
        else:
            found, width = self._from_slices(pointer, picks), _SLICE
        return Value(self._lanes(found, width, range(picks.width)), to, picks.width)

    def _from_halves(self, pointer: str, picks: Value) -> str:
        type = f"<{self.bytes} x i8>"
        index = self._spread(picks, self.bytes)
        halves = []
        for first in (0, ENTRIES // 2):
            parts = [self._load(pointer, first + at) for at in (0, self.bytes)]
            operands = [f"{type} {text}" for text in (parts[0], index, parts[1])]
            halves.append(
                self.writer.intrinsic("llvm.x86.avx512.vpermi2var.qi.512", type, operands)
            )
        upper = self.writer.emit(f"icmp slt {type} {index}, zeroinitializer")
        return self.writer.emit(
            f"select <{self.bytes} x i1> {upper}, {type} {halves[1]}, {type} {halves[0]}"
        )

    def _from_slices(self, pointer: str, picks: Value) -> str:
        type, bytes = f"<{self.bytes} x i8>", self.bytes
        index, total = self._spread(picks, _SLICE), ""
        name = "avx512.pshuf.b.512" if bytes == 64 else "avx2.pshuf.b"
        most = ", ".join([f"i8 {_OUTSIDE}"] * bytes)
        for first in range(0, ENTRIES, bytes):
            own = ", ".join(f"i8 {(first + at) // _SLICE * _SLICE}" for at in range(bytes))
            within = self.writer.emit(f"xor {type} {index}, <{own}>")
            marked = self.writer.intrinsic(
                f"llvm.uadd.sat.v{bytes}i8", type, [f"{type} {within}", f"{type} <{most}>"]
            )
            entries = self._load(pointer, first)
            found = self.writer.intrinsic(
                f"llvm.x86.{name}", type, [f"{type} {entries}", f"{type} {marked}"]
            )
            total = self.writer.emit(f"or {type} {total}, {found}") if total else found
        while bytes > _SLICE:  # the slices' results, one of which is not 0
            half = bytes // 2
            low, high = (self._lanes(total, bytes, range(at, at + half)) for at in (0, half))
            total, bytes = self.writer.emit(f"or <{half} x i8> {low}, {high}"), half
        return total

    def _spread(self, picks: Value, period: int) -> str:
        """The indices once every `period` bytes of a register."""
        lanes = [i % period for i in range(self.bytes)]
        return self._lanes(picks.text, picks.width, [i if i < picks.width else None for i in lanes])

    def _lanes(self, text: str, width: int, lanes: range | list[int | None]) -> str:
        if list(lanes) == list(range(width)):
            return text
        order = ", ".join("i32 poison" if lane is None else f"i32 {lane}" for lane in lanes)
        type = f"<{width} x i8>"
        return self.writer.emit(
            f"shufflevector {type} {text}, {type} poison, <{len(lanes)} x i32> <{order}>"
        )

    def _load(self, pointer: str, first: int) -> str:
        place = self.writer.emit(f"getelementptr inbounds i8, ptr {pointer}, i64 {first}")
        return self.writer.emit(f"load <{self.bytes} x i8>, ptr {place}, align 1")


MOST_WORDS = 64
"""Of a table whose words are picked in registers: beyond, a gathering load takes as long."""
_WORDS = 16  # of a register


class WordTables:
    """Looks up vectors of up to 16 words of 4 bytes in a table of few, with AVX-512."""

    def __init__(self, writer: FunctionWriter) -> None:
        self.writer = writer

    def serves(self, dtype: DType, lanes: int, words: int) -> bool:
        """Whether that beats a gathering load, which takes 18 cycles on a Zen 4, a pick 1 to 2."""
        fits = dtype.bytes == _WORD and lanes <= _WORDS and words <= MOST_WORDS
        return self.writer.has_avx512 and fits

    def looked_up(self, pointer: str, words: int, picks: Value, dtype: DType) -> Value:
        """The words of the table at `pointer` for a vector of i32, all of which are below `words`.

        Nothing behind the table is read.
        """
        every = [i if i < picks.width else None for i in range(_WORDS)]
        index = shuffle(self.writer, picks, picks, every) if picks.width < _WORDS else picks
        registers = [self._register(pointer, first, words) for first in range(0, words, _WORDS)]
        found = self._picked(registers[:2], index)
        if len(registers) > 2:
            low = self.writer.emit(f"icmp ult {index.typed}, splat (i32 {2 * _WORDS})")
            upper = self._picked(registers[2:], index)
            found = f"select <{_WORDS} x i1> {low}, {_FLOATS} {found}, {_FLOATS} {upper}"
            found = self.writer.emit(found)
        if dtype is not DType.F32:
            found = self.writer.emit(f"bitcast {_FLOATS} {found} to {type_of(dtype, _WORDS)}")
        whole = Value(found, dtype, _WORDS)
        if picks.width == _WORDS:
            return whole
        return shuffle(self.writer, whole, whole, range(picks.width))

    def _picked(self, registers: Sequence[Value], index: Value) -> str:
        """The words of one register or two, by the lowest bits of the indices."""
        name = "permvar.sf.512" if len(registers) == 1 else "vpermi2var.ps.512"
        operands = [registers[0].typed, index.typed, *(other.typed for other in registers[1:])]
        return self.writer.intrinsic(f"llvm.x86.avx512.{name}", _FLOATS, operands)

    def _register(self, pointer: str, first: int, words: int) -> Value:
        """A register of the table from there on, the last of which may not be full."""
        if first:
            place = f"getelementptr inbounds i8, ptr {pointer}, i64 {first * _WORD}"
            pointer = self.writer.emit(place)
        if words - first >= _WORDS:
            load = self.writer.emit(f"load {_FLOATS}, ptr {pointer}, align {_WORD}")
            return Value(load, DType.F32, _WORDS)
        lanes = ", ".join(f"i1 {'true' if first + i < words else 'false'}" for i in range(_WORDS))
        return masked_load(self.writer, pointer, Value(f"<{lanes}>", DType.BOOL, _WORDS), DType.F32)


_FLOATS = f"<{_WORDS} x float>"
