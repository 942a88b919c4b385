"""Products with packed weights by sums of integers: data in three digits of base 256.

    x[k] = unit[chunk of k] * (d2[k] * 65536 + d1[k] * 256 + d0[k])         -128 <= d < 128
    y[n] = sum over chunks of unit * scale[n] * (sum over k of d2 * u[k, n] * 65536 + ...)

The unit of a chunk is a power of two, about 2^-22 of its largest |x|: rounding to whole units is
about what a sum in f32 rounds. All sums over a chunk are exact, and dot products of bytes: of a
matrix of weights few instructions are left for each byte that is read. Weights are unsigned, as
they are packed; what that adds, half of their range times the sum of x, is taken off again.

The unit of a chunk that does not only hold finite data is NaN, and so are then all sums. No unit
is less than 2^-126.

With one digit instead of three, data is rounded to 8 bits for good, which is a precision of its
own: symmetric, with the unit max |x| / 127 of the chunk, |d0| <= 127. Its sums are exact too.
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.expr.nodes import (
    Expr,
    Load,
    add,
    binary,
    cast,
    const,
    index,
    integer,
    mul,
    select,
    sub,
    unary,
)
from tunefarm.compiler.expr.packed_fields import PackedField
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.stage import Axis, Stage
from tunefarm.compiler.kernels.weight_words import WORD, WordProduct, product_term, word_product
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

DIGITS = 3  # that keep what f32 does
ROUNDED = 1  # digits of data that is rounded to 8 bits
BYTES = WORD.bytes  # of a word: as many terms has a dot product
_LONGEST = 128  # terms of a chunk, if it can be cut so: one unit is for all of them
_BASE = 256
_MANTISSA = 23
_INFINITE = 255  # the exponent of what is not finite
_LEAST = 22  # the smallest exponent that the reverse of the unit exists for
_ROUND = 3 << 22  # added, a float of at most 2^22 is rounded, and its last bits are the integer
_NAN = 0x7FC00000
_LARGEST = 127.0  # of data rounded to 8 bits, in units
_LEAST_MAGNITUDE = 2.0**-118  # of a chunk that is rounded to 8 bits: its unit is no denormal


@frozen
class DigitForm:
    """A product with packed weights, and the terms of a chunk, which shares a unit and a scale.

    Data has so many `digits`: DIGITS, or ROUNDED where it is rounded to 8 bits.
    """

    product: WordProduct
    chunk: int
    digits: int = DIGITS

    @property
    def rounds(self) -> bool:
        """Whether data is rounded to 8 bits."""
        return self.digits == ROUNDED

    @property
    def chunks(self) -> int:
        """How many chunks a sum has."""
        return self.product.inner // self.chunk

    @property
    def in_byte(self) -> int:
        """Weights of a byte."""
        return DType.U8.bits // self.product.bits

    @property
    def in_word(self) -> int:
        """Weights of a word."""
        return WORD.bits // self.product.bits


def digit_form(kernel: FusedKernel, digits: int = DIGITS) -> DigitForm | None:
    """The form of the kernel's anchor with so many digits; None where there is none."""
    product = word_product(kernel)
    if product is None:
        return None
    in_word = WORD.bits // product.bits
    words = product.block // in_word
    fitting = [
        count * in_word
        for count in range(1, words + 1)
        if words % count == 0 and _fits(product.bits, count * in_word, digits)
    ]
    short = [chunk for chunk in fitting if chunk <= _LONGEST]
    if not fitting:
        return None
    return DigitForm(product, max(short) if short else min(fitting), digits)


def _fits(bits: int, chunk: int, digits: int) -> bool:
    """The sums over a chunk are i32, those of two digits joined where there are several."""
    joined = _BASE + 1 if digits > 1 else 1
    return ((1 << bits) - 1) * 128 * joined * chunk < 1 << 31


def apply_limb_dot(kernel: FusedKernel, digits: int = DIGITS) -> FusedKernel:
    """The same kernel with its product summed up in integers; `ScheduleError` for another one.

    Before the anchor there are then the stages `exponents`, `units` (of data in whole units),
    `digits`, `low` and `high` (what is taken off the limb products), `unit` (of each chunk) and
    `parts` (the sums). With one digit there are no `units` and no `high`, and `reverse` is what
    data of a chunk is multiplied with.
    """
    if digits not in (ROUNDED, DIGITS):
        raise ScheduleError(f"data has {ROUNDED} or {DIGITS} digits, not {digits}")
    form = digit_form(kernel, digits)
    if form is None:
        raise ScheduleError("split-integer dot products need a product with packed weights")
    anchor = form.product.stage
    taken = {stage.name for stage in kernel.stages} | {item.name for item in kernel.inputs}
    made = _stages(form)
    if not taken.isdisjoint(stage.name for stage in made[:-1]):
        raise ScheduleError("the kernel has stages of digits already")
    position = [stage.name for stage in kernel.stages].index(anchor.name)
    stages = (*kernel.stages[:position], *made, *kernel.stages[position + 1 :])
    return replace(kernel, stages=stages)


def with_rounded_data(kernel: FusedKernel) -> FusedKernel:
    """What a kernel with one digit computes: its product as floats, of data rounded to 8 bits.

    The stage `rounded` has the data as f32, [rows, terms]. `ScheduleError` for a kernel that has no
    such form.
    """
    form = digit_form(kernel, ROUNDED)
    if form is None:
        raise ScheduleError("data is rounded of products with packed weights")
    product, (*rows, _) = form.product, form.product.stage.axes
    row, k = _row(rows), index("k")
    chunk = binary("floordiv", k, integer(form.chunk))
    exponents, reverse, _, _, unit = _rounded(form, rows)
    data = cast(DType.F32, Load(product.data.dtype, product.data.buffer, (*row, k)))
    whole = _in_units(data, Load(DType.F32, reverse.name, (*row, chunk)))
    number = mul(cast(DType.F32, whole), Load(DType.F32, unit.name, (*row, chunk)))
    rounded = Stage("rounded", (*rows, Axis("k", product.inner)), (), "", number)
    term = product_term(replace(product, data=Load(DType.F32, "rounded", (*row, k))))
    anchor = replace(product.stage, body=term)
    position = [stage.name for stage in kernel.stages].index(anchor.name)
    made = (exponents, reverse, unit, rounded, anchor)
    stages = (*kernel.stages[:position], *made, *kernel.stages[position + 1 :])
    return replace(kernel, stages=stages)


def _stages(form: DigitForm) -> tuple[Stage, ...]:
    *rows, _ = form.product.stage.axes
    split = _rounded if form.rounds else _split
    return *split(form, rows), _parts(form, rows), _total(form)


def _split(form: DigitForm, rows: list[Axis]) -> tuple[Stage, ...]:
    """Data in three digits: whole units of a chunk, whose unit is a power of two."""
    row, chunks, terms = _row(rows), *_chunked(form)
    c, t, g = index("chunk"), index("term"), index("digit")
    reverse = _power(sub(_word(2 * 127 + _LEAST - 1), _exponent(row)))
    units = Stage("units", (*rows, chunks, terms), (), "", _whole(form, row, reverse))
    unit = Load(WORD, "units", (*row, c, t))
    place = cast(WORD, mul(g, integer(8)))
    below = binary("and", _word(0x8080), sub(binary("shl", _word(1), place), _word(1)))
    digit = cast(DType.I8, binary("shr", add(unit, below), place))
    digits = Stage("digits", (*rows, Axis("digit", DIGITS), chunks, terms), (), "", digit)
    half = _word(1 << (form.product.bits - 1))
    last = cast(WORD, Load(DType.I8, "digits", (*row, integer(DIGITS - 1), c, t)))
    rest = sub(unit, binary("shl", last, _word(16)))
    low = Stage("low", (*rows, chunks), (terms,), "sum", mul(half, rest))
    high = Stage("high", (*rows, chunks), (terms,), "sum", mul(half, last))
    greatest = _exponent(row)
    finite = binary("lt", greatest, _word(_INFINITE))
    power = select(finite, _power(sub(greatest, _word(_LEAST - 1))), _nan())
    each = Stage("unit", (*rows, chunks), (), "", power)
    return _exponents(form, rows), units, digits, low, high, each


def _rounded(form: DigitForm, rows: list[Axis]) -> tuple[Stage, ...]:
    """Data in one digit: rounded to 255 values round 0, the largest of a chunk being 127 units."""
    row, chunks, terms = _row(rows), *_chunked(form)
    c, t = index("chunk"), index("term")
    largest = Load(WORD, "exponents", (*row, c))
    least = const(_LEAST_MAGNITUDE, DType.F32)
    magnitude = binary("max", unary("of_bits", largest), least)
    reverse = binary("div", const(_LARGEST, DType.F32), magnitude)
    reverses = Stage("reverse", (*rows, chunks), (), "", reverse)
    whole = _whole(form, row, Load(DType.F32, "reverse", (*row, c)))
    axes = (*rows, Axis("digit", ROUNDED), chunks, terms)
    digits = Stage("digits", axes, (), "", cast(DType.I8, whole))
    digit = cast(WORD, Load(DType.I8, "digits", (*row, integer(0), c, t)))
    half = _word(1 << (form.product.bits - 1))
    low = Stage("low", (*rows, chunks), (terms,), "sum", mul(half, digit))
    finite = binary("lt", largest, _word(_INFINITE << _MANTISSA))
    unit = select(finite, mul(magnitude, const(1.0 / _LARGEST, DType.F32)), _nan())
    each = Stage("unit", (*rows, chunks), (), "", unit)
    return _exponents(form, rows), reverses, digits, low, each


def _row(rows: list[Axis]) -> tuple[Expr, ...]:
    return tuple(index(axis.name) for axis in rows)


def _chunked(form: DigitForm) -> tuple[Axis, Axis]:
    """The chunks of a row, and the terms of a chunk."""
    return Axis("chunk", form.chunks), Axis("term", form.chunk)


def _data(form: DigitForm, row: tuple[Expr, ...], term: Expr) -> Expr:
    """The data of a term of a chunk as f32."""
    load = form.product.data
    place = _at(index("chunk"), form.chunk, term)
    return cast(DType.F32, Load(load.dtype, load.buffer, (*row, place)))


def _exponents(form: DigitForm, rows: list[Axis]) -> Stage:
    """The bits of the largest |x| of each chunk."""
    chunks, terms = _chunked(form)
    data = _data(form, _row(rows), index("term"))
    magnitude = binary("and", unary("bits", data), _word((1 << 31) - 1))
    return Stage("exponents", (*rows, chunks), (terms,), "max", magnitude)


def _whole(form: DigitForm, row: tuple[Expr, ...], reverse: Expr) -> Expr:
    """Data of a term in whole units, rounded to even; `reverse` is 1 / unit."""
    return _in_units(_data(form, row, _interleaved(form, index("term"))), reverse)


def _in_units(data: Expr, reverse: Expr) -> Expr:
    rounded = add(mul(data, reverse), const(float(_ROUND), DType.F32))
    return sub(unary("bits", rounded), _word((150 << _MANTISSA) + (1 << 22)))


def _nan() -> Expr:
    return unary("of_bits", _word(_NAN))


def _exponent(row: tuple[Expr, ...]) -> Expr:
    """The exponent of a chunk's largest number, as the bits have it."""
    greatest = binary("shr", Load(WORD, "exponents", (*row, index("chunk"))), _word(_MANTISSA))
    return binary("max", greatest, _word(_LEAST))


def _at(chunk: Expr, extent: int, term: Expr) -> Expr:
    return add(mul(chunk, integer(extent)), term)


def _interleaved(form: DigitForm, q: Expr) -> Expr:
    """The term whose digit is at `q`: those of the first weights of a word's bytes are together."""
    if form.in_byte == 1:
        return q
    word = mul(binary("floordiv", q, integer(form.in_word)), integer(form.in_word))
    byte = mul(binary("mod", q, integer(BYTES)), integer(form.in_byte))
    field = binary("mod", binary("floordiv", q, integer(BYTES)), integer(form.in_byte))
    return add(add(word, byte), field)


def _parts(form: DigitForm, rows: list[Axis]) -> Stage:
    """The sums of each digit over a chunk."""
    product = form.product
    column = product.stage.axes[-1]
    words = form.chunk // form.in_word
    row = tuple(index(axis.name) for axis in rows)
    c, g, w, f, b = (index(name) for name in ("chunk", "digit", "word", "field", "byte"))
    weight = product.weight
    packed = Load(weight.dtype, weight.buffer, (_at(c, words, w), index(column.name)))
    amount = add(mul(b, integer(8)), mul(f, integer(product.bits)))
    field = PackedField(packed, amount, product.bits).expression()
    q = add(mul(_at(w, form.in_byte, f), integer(BYTES)), b)
    digit = Load(DType.I8, "digits", (*row, g, c, q))
    axes = (*rows, Axis("chunk", form.chunks), Axis("digit", form.digits), column)
    reduced = (Axis("word", words), Axis("field", form.in_byte), Axis("byte", BYTES))
    return Stage("parts", axes, reduced, "sum", mul(cast(WORD, field), cast(WORD, digit)))


def _total(form: DigitForm) -> Stage:
    """The anchor: the chunks' sums, each in its unit and with its scale."""
    product, stage = form.product, form.product.stage
    *row, n = (index(axis.name) for axis in stage.axes)
    c = index("chunk")

    def summed(g: int) -> Expr:
        return Load(WORD, "parts", (*row, c, integer(g), n))

    def taken(name: str) -> Expr:
        return Load(WORD, name, (*row, c))

    if form.rounds:
        total, terms = cast(DType.F32, sub(summed(0), taken("low"))), cast(DType.F32, taken("low"))
    else:
        low = sub(add(summed(0), binary("shl", summed(1), _word(8))), taken("low"))
        total = _joined(low, sub(summed(2), taken("high")))
        terms = _joined(taken("low"), taken("high"))
    block = binary("floordiv", c, integer(product.block // form.chunk))
    if product.zero_point is not None:
        zero = Load(DType.I8, product.zero_point.buffer, (block, n))
        half = const(1.0 / (1 << (product.bits - 1)), DType.F32)
        total = sub(total, mul(mul(terms, half), cast(DType.F32, zero)))
    unit = Load(DType.F32, "unit", (*row, c))
    scale = cast(DType.F32, Load(product.scale.dtype, product.scale.buffer, (block, n)))
    body = mul(unit, mul(total, scale))
    return Stage(stage.name, stage.axes, (Axis("chunk", form.chunks),), "sum", body)


def _joined(low: Expr, high: Expr) -> Expr:
    upper = mul(cast(DType.F32, high), const(float(_BASE * _BASE), DType.F32))
    return add(upper, cast(DType.F32, low))


def _power(exponent: Expr) -> Expr:
    """The power of two with these bits for its exponent."""
    return unary("of_bits", binary("shl", exponent, _word(_MANTISSA)))


def _word(value: int) -> Expr:
    return const(value, WORD)
