"""Dot products of narrow factors: each target's instructions for them, and a form for any target.

| factors  | x86                              | AArch64              | otherwise         |
| -------- | -------------------------------- | -------------------- | ----------------- |
| u8, i8   | vpdpbusd (AVX512-VNNI, AVX-VNNI) | usdot (i8mm)         | pairs of i16, in  |
| i8, i8   | vpdpbssd (AVX-VNNI-INT8),        | sdot (dotprod)       | vpmaddwd on x86,  |
|          | vpmaddubsw (AVX2)                |                      | exactly           |
| u8, u8   | vpdpbuud (AVX-VNNI-INT8)         | udot (dotprod)       |                   |
| i16, i16 | vpmaddwd                         |                      | term by term      |
| bf16     | vdpbf16ps (AVX512-BF16)          | bfdot (bf16)         | two multiply-adds |

Where only other signs have an instruction, one factor's are changed, and the sum is corrected.
vpmaddubsw saturates: it serves where the unsigned factors are fields of at most 7 bits, or the
sizes of signed ones. vdpbf16ps and bfdot count denormals as 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tunefarm.compiler.expr.instructions import literal, suffix_of, type_of
from tunefarm.compiler.expr.packed_fields import packed_field
from tunefarm.compiler.llvm import scalar_ops
from tunefarm.compiler.llvm.addresses import Addresses
from tunefarm.compiler.llvm.byte_tables import BytePermuter
from tunefarm.compiler.llvm.dot_words import WORD, Terms, WordEmitter, joined, word_of
from tunefarm.compiler.llvm.expressions import ExpressionEmitter
from tunefarm.compiler.llvm.loads import Lane
from tunefarm.compiler.llvm.registers import Registers
from tunefarm.compiler.llvm.shuffles import shuffle
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.loops.ir import Dot
from tunefarm.compiler.target import Target
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

_SIGNS = 0x80808080  # of the bytes of a word
_ALL_WIDTHS = (16, 8, 4)
_KEPT_IN_ORDER = 8  # words, at most, of 16-bit sums that are added as they are written: with AVX2

_Emit: TypeAlias = Callable[[Value, Value, Value], Value]


@frozen
class _Form:
    """How products are added: `emit(sums, left words, right words)`, for vectors of `widths`."""

    widths: tuple[int, ...]
    emit: _Emit


@frozen
class _ShortSum:
    """`base` with products added that are in `words` of two 16-bit sums, of so many `terms`.

    Their unsigned factors have `bits` bits.
    """

    base: Value
    words: Value
    terms: int
    bits: int


def _most_terms(bits: int) -> int:
    """Pairs of products that fit 16 bits, of factors of so many bits and signed bytes."""
    return ((1 << 15) - 1) // (2 * ((1 << bits) - 1) << 7)


class DotEmitter:
    """Emits dot products at the writer's current point."""

    def __init__(
        self,
        writer: FunctionWriter,
        addresses: Addresses,
        registers: Registers,
        expressions: ExpressionEmitter,
        target: Target,
    ) -> None:
        self.writer = writer
        self.addresses = addresses
        self.expressions = expressions
        self.target = target
        self.x86 = target.triple.startswith("x86_64")
        self.features = frozenset(target.features)
        permuter = BytePermuter(writer, target)
        self.word_emitter = WordEmitter(writer, addresses, registers, expressions, permuter)
        self._forms: dict[tuple[DType, DType, DType, bool, int], _Form | None] = {}
        self._short_sums: dict[str, _ShortSum] = {}

    def sum(self, statement: Dot, old: Value, lane: Lane | None) -> Value:
        """`old` with the products of the statement added."""
        left, right, variable = statement.left, statement.right, statement.variable
        field = packed_field(left)
        short = field.bits if field is not None and field.bits < DType.U8.bits else 0
        types = (left.dtype, right.dtype, old.dtype, statement.widened, short)
        if types not in self._forms:
            self._forms[types] = self._form(*types)
        form, slots = self._forms[types], WORD.bytes // left.dtype.bytes
        outer = self.addresses.enter(variable, 0, statement.count - 1)
        self.addresses.lanes.add(variable)
        try:
            if lane is None or form is None or statement.count > slots:
                return self._term_by_term(statement, old)
            terms = Terms(variable, statement.count, slots)
            sides = [self.word_emitter.words(side, terms, lane) for side in (left, right)]
        finally:
            self.addresses.lanes.remove(variable)
            self.addresses.leave(variable, outer)
        if old.dtype.is_float:  # NaN times 0 would not be 0
            sides = [self.word_emitter.cleaned(side, terms) for side in sides]
        elif not any(side.clean for side in sides):
            sides[0] = self.word_emitter.cleaned(sides[0], terms)
        words = [self.expressions.widen(side.value, old.width) for side in sides]
        return self._in_pieces(form, old, *words)

    def _term_by_term(self, statement: Dot, old: Value) -> Value:
        """One product after the other, in the type of the sum."""
        for number in range(statement.count):
            left, right = (
                scalar_ops.cast(
                    self.writer,
                    self.expressions.vector_at(side, statement.variable, number),
                    old.dtype,
                )
                for side in (statement.left, statement.right)
            )
            old = self._multiply_add(left, right, old)
        return old

    def _multiply_add(self, left: Value, right: Value, old: Value) -> Value:
        if old.dtype.is_float and self.target.has_fma:
            name = f"llvm.fma.{suffix_of(old.dtype, old.width)}"
            operands = [left.typed, right.typed, old.typed]
            return Value(self.writer.intrinsic(name, old.type, operands), old.dtype, old.width)
        product = scalar_ops.binary(self.writer, "mul", left, right)
        return scalar_ops.binary(self.writer, "add", old, product)

    def _in_pieces(self, form: _Form, old: Value, left: Value, right: Value) -> Value:
        """Vectors of any width by those that the form has."""
        if old.width in form.widths:
            return form.emit(old, left, right)
        results: list[Value] = []
        first = 0
        while first < old.width:
            rest = old.width - first
            width = min((w for w in form.widths if w >= rest), default=max(form.widths))
            order = [first + i if i < rest else None for i in range(width)]
            parts = [shuffle(self.writer, side, side, order) for side in (old, left, right)]
            part = form.emit(*parts)
            if width > rest:
                part = shuffle(self.writer, part, part, range(rest))
            results.append(part)
            first += width
        return joined(self.writer, results)

    # Which form ----------------------------------------------------------------------------------

    def _form(
        self, left: DType, right: DType, total: DType, widened: bool, short: int
    ) -> _Form | None:
        """The form for factors and sums of these types; None: term by term.

        Left factors are numbers of `short` bits, if that is not 0.
        """
        if total is DType.F32 and left is right is DType.BF16:
            native = None if widened else self._bfloat_form()
            return native or _Form(_ALL_WIDTHS, self._multiply_adds)
        if total is not DType.I32 or left.bytes != right.bytes:
            return None
        if left is right is DType.I16:
            return _Form(self._pair_widths(), self._add_pairs) if self.x86 else None
        if not {left, right} <= {DType.U8, DType.I8}:
            return None
        signs = (left.is_signed or (short > 0 and not self.x86), right.is_signed)
        native = None if widened else self._bytes_form(signs)
        if native is None and signs == (True, True) and not widened and "avx2" in self.features:
            return _Form(self._pair_widths(), self._add_signed)
        if native is None and short and signs == (False, True) and "avx2" in self.features:
            return _Form(self._pair_widths(), lambda old, a, b: self._add_short(old, a, b, short))
        return native or _Form(
            self._pair_widths() if self.x86 else (4,),
            lambda old, a, b: self._add_halves(old, a, b, signs),
        )

    def _bfloat_form(self) -> _Form | None:
        if self.x86 and "avx512bf16" in self.features:
            return self._native("llvm.x86.avx512bf16.dpbf16ps.{bits}", _ALL_WIDTHS, "bfloat")
        if not self.x86 and "bf16" in self.features:
            return self._native("llvm.aarch64.neon.bfdot.v4f32.v8bf16", (4,), "bfloat")
        return None

    def _bytes_form(self, signs: tuple[bool, bool]) -> _Form | None:
        if not self.x86:
            return self._neon_form(signs)
        same = {(True, True): "ss", (False, False): "uu"}.get(signs)
        if same and "avxvnniint8" in self.features:
            return self._native(f"llvm.x86.avx2.vpdpb{same}d.{{bits}}", (8, 4), "i8")
        wide = {"avx512vnni", "avx512f"} <= self.features and self.target.vector_bytes >= 64
        short = {"avx512vnni", "avx512vl"} <= self.features or "avxvnni" in self.features
        widths = (16,) * wide + (8, 4) * short
        if not widths:
            return None
        return self._mixed(self._native("llvm.x86.avx512.vpdpbusd.{bits}", widths, "i8"), signs)

    def _neon_form(self, signs: tuple[bool, bool]) -> _Form | None:
        name = {(True, True): "sdot", (False, False): "udot"}.get(signs)
        if name and "dotprod" in self.features:
            return self._native(f"llvm.aarch64.neon.{name}.v4i32.v16i8", (4,), "i8")
        if "i8mm" in self.features:
            mixed = self._native("llvm.aarch64.neon.usdot.v4i32.v16i8", (4,), "i8")
            return self._mixed(mixed, signs)
        if "dotprod" not in self.features:
            return None
        signed = self._native("llvm.aarch64.neon.sdot.v4i32.v16i8", (4,), "i8")
        first = signs[0]  # (a - 128) b + 128 b where a is unsigned
        return _Form(
            (4,),
            lambda old, a, b: self._shifted(signed, old, b if first else a, a if first else b),
        )

    def _pair_widths(self) -> tuple[int, ...]:
        if "avx512bw" in self.features and self.target.vector_bytes >= 64:
            return (16, 8, 4)
        return (8, 4) if "avx2" in self.features else (4,)

    # Emission ------------------------------------------------------------------------------------

    def _native(self, name: str, widths: tuple[int, ...], element: str) -> _Form:
        """One call of an intrinsic on the sums, the left and the right factors."""
        slots = 2 if element == "bfloat" else 4

        def emit(old: Value, left: Value, right: Value) -> Value:
            narrow = f"<{slots * old.width} x {element}>"
            factors = [self._as(side, narrow) for side in (left, right)]
            called = name.format(bits=8 * old.width * old.dtype.bytes)
            text = self.writer.intrinsic(called, old.type, [old.typed, *factors])
            return Value(text, old.dtype, old.width)

        return _Form(widths, emit)

    def _mixed(self, form: _Form, signs: tuple[bool, bool]) -> _Form:
        """By an instruction whose left factors are unsigned and whose right ones are signed."""
        if signs == (False, True):
            return form
        if signs == (True, False):
            return _Form(form.widths, lambda old, left, right: form.emit(old, right, left))
        if signs == (True, True):  # (a + 128) b - 128 b
            return _Form(form.widths, lambda old, a, b: self._shifted(form, old, a, b))
        swapped = _Form(form.widths, lambda old, a, b: form.emit(old, b, a))  # a (b - 128) + 128 a
        return _Form(form.widths, lambda old, a, b: self._shifted(swapped, old, a, b))

    def _shifted(self, form: _Form, old: Value, changed: Value, kept: Value) -> Value:
        """By a form whose first factors have other signs: 128 more or less, and what that adds."""
        offset = self.expressions.widen(word_of(_SIGNS), old.width)
        own = ("other signs", changed.text, old.width)
        other = self.writer.lookup_value(own)
        if other is None:
            other = scalar_ops.binary(self.writer, "xor", changed, offset)
            self.addresses.remember(own, other)
        total = form.emit(old, other, kept)
        key = ("offset", kept.text, offset.text, old.width)
        added = self.writer.lookup_value(key)
        if added is None:
            zero = Value(literal(0, old.dtype, old.width), old.dtype, old.width)
            added = form.emit(zero, offset, kept)
            self.addresses.remember(key, added)
        return scalar_ops.binary(self.writer, "sub", total, added)

    def _add_halves(self, old: Value, left: Value, right: Value, signs: tuple[bool, bool]) -> Value:
        """The even and the odd bytes as 16-bit numbers, whose products are added in pairs."""
        halves = [self._halves(side, sign) for side, sign in zip((left, right), signs, strict=True)]
        for one, other in zip(*halves, strict=True):
            old = self._add_pairs(old, one, other)
        return old

    def _add_signed(self, old: Value, left: Value, right: Value) -> Value:
        """The left bytes' sizes times the right bytes, whose bits are turned where the left ones
        are negative: -b - 1 for b, no two products of which exceed 16 bits. The sizes of negative
        bytes, which the turning took away, are added."""
        size, turned, taken = self._signed_parts(left, old)
        other = scalar_ops.binary(self.writer, "xor", right, turned)
        total = self._add_short(old, size, other, DType.U8.bits)
        return scalar_ops.binary(self.writer, "sub", total, taken)

    def _signed_parts(self, words: Value, sums: Value) -> tuple[Value, Value, Value]:
        """Of signed bytes their sizes, all bits of negative ones, and less these ones' sizes."""
        keys = [("signed", words.text, words.width, part) for part in range(3)]
        known = [self.writer.lookup_value(key) for key in keys]
        if all(known):
            size, turned, taken = known
            assert size is not None and turned is not None and taken is not None
            return size, turned, taken
        width = 4 * words.width
        bytes = type_of(DType.I8, width)
        narrow = self._as(words, bytes)
        sizes = self.writer.intrinsic(
            f"llvm.abs.{suffix_of(DType.I8, width)}", bytes, [narrow, "i1 false"]
        )
        negative = self.writer.emit(f"ashr {narrow}, splat (i8 7)")
        size, turned = (
            Value(self.writer.emit(f"bitcast {bytes} {part} to {words.type}"), WORD, words.width)
            for part in (sizes, negative)
        )
        zero = Value(literal(0, sums.dtype, sums.width), sums.dtype, sums.width)
        taken = self._add_short(zero, size, turned, DType.U8.bits)
        for key, value in zip(keys, (size, turned, taken), strict=True):
            self.addresses.remember(key, value)
        return size, turned, taken

    def _add_short(self, old: Value, left: Value, right: Value, bits: int) -> Value:
        """Bytes whose products, two at once, fit 16 bits; these are added in pairs.

        Where `old` is such a sum, products are added in 16 bits as long as they fit, and then in
        pairs: what was added to give `old` is of no use then, and LLVM drops it. Left to itself it
        adds in another order, too, which needs more registers than AVX2 has.
        """
        width = old.width
        bytes, pairs = type_of(DType.I8, 4 * width), type_of(DType.I16, 2 * width)
        name = {16: "avx512.pmaddubs.w.512", 8: "avx2.pmadd.ub.sw", 4: "ssse3.pmadd.ub.sw.128"}
        factors = [self._as(side, bytes) for side in (left, right)]
        products = self.writer.intrinsic(f"llvm.x86.{name[width]}", pairs, factors)
        words = Value(self.writer.emit(f"bitcast {pairs} {products} to {left.type}"), WORD, width)
        base, terms = old, 1
        before = self._short_sums.get(old.text)
        if before is not None and before.bits == bits and before.terms < _most_terms(bits):
            base, terms = before.base, before.terms + 1
            sums = [self._as(side, pairs) for side in (before.words, words)]
            added = self.writer.emit(f"add {sums[0]}, {sums[1].removeprefix(pairs)}")
            if width <= _KEPT_IN_ORDER:
                added = self.writer.emit(f'call {pairs} asm sideeffect "", "=x,0"({pairs} {added})')
            words = Value(self.writer.emit(f"bitcast {pairs} {added} to {left.type}"), WORD, width)
        ones = self.expressions.widen(word_of(0x00010001), width)
        total = self._add_pairs(base, words, ones)
        self._short_sums[total.text] = _ShortSum(base, words, terms, bits)
        return total

    def _halves(self, words: Value, signed: bool) -> tuple[Value, Value]:
        """Words of the even bytes and of the odd ones, as numbers of 16 bits."""
        key = ("halves", words.text, words.width, signed)
        if (even := self.writer.lookup_value((key, 0))) is not None:
            odd = self.writer.lookup_value((key, 1))
            assert odd is not None
            return even, odd
        pairs = type_of(DType.I16, 2 * words.width)
        narrow, eight = self._as(words, pairs), "splat (i16 8)"
        if signed:
            lower = self.writer.emit(f"shl {narrow}, {eight}")
            parts = [f"ashr {pairs} {lower}, {eight}", f"ashr {narrow}, {eight}"]
        else:
            parts = [f"and {narrow}, splat (i16 255)", f"lshr {narrow}, {eight}"]
        made: list[Value] = []
        for part in parts:
            text = self.writer.emit(f"bitcast {pairs} {self.writer.emit(part)} to {words.type}")
            made.append(Value(text, WORD, words.width))
            self.addresses.remember((key, len(made) - 1), made[-1])
        return made[0], made[1]

    def _add_pairs(self, old: Value, left: Value, right: Value) -> Value:
        """Words of two 16-bit numbers: both products, in 32 bits."""
        width = old.width
        pairs = type_of(DType.I16, 2 * width)
        if self.x86:
            name = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}[width]
            factors = [self._as(side, pairs) for side in (left, right)]
            text = self.writer.intrinsic(f"llvm.x86.{name}", old.type, factors)
            return scalar_ops.binary(self.writer, "add", old, Value(text, old.dtype, width))
        wide = type_of(DType.I32, 2 * width)
        one, other = (
            self.writer.emit(f"sext {self._as(side, pairs)} to {wide}") for side in (left, right)
        )
        product = Value(self.writer.emit(f"mul {wide} {one}, {other}"), DType.I32, 2 * width)
        for first in (0, 1):
            part = shuffle(self.writer, product, product, range(first, 2 * width, 2))
            old = scalar_ops.binary(self.writer, "add", old, part)
        return old

    def _multiply_adds(self, old: Value, left: Value, right: Value) -> Value:
        """The lower and the upper halves of words, bf16, as f32."""
        sides = [self._floats(words) for words in (left, right)]
        for one, other in zip(*sides, strict=True):
            old = self._multiply_add(one, other, old)
        return old

    def _floats(self, words: Value) -> tuple[Value, Value]:
        key = ("floats", words.text, words.width)
        if (low := self.writer.lookup_value((key, 0))) is not None:
            high = self.writer.lookup_value((key, 1))
            assert high is not None
            return low, high
        made: list[Value] = []
        floats = type_of(DType.F32, words.width)
        for part in ("shl {}, splat (i32 16)", "and {}, splat (i32 -65536)"):
            bits = self.writer.emit(part.format(words.typed))
            text = self.writer.emit(f"bitcast {words.type} {bits} to {floats}")
            made.append(Value(text, DType.F32, words.width))
            self.addresses.remember((key, len(made) - 1), made[-1])
        return made[0], made[1]

    def _as(self, words: Value, type: str) -> str:
        """Words as an operand of another type of as many bits."""
        return f"{type} {self.writer.emit(f'bitcast {words.typed} to {type}')}"
