"""Loads of some lanes of a vector, which read nothing of the others.

On AVX-512 each is kept in a register of its own. LLVM 22 folds a masked load into an operation
under the same mask, for which two things are wrong:

    x = masked.load(p, m); y = select(m, reversed(x), c)     ->     vpermpd (p), i, y {m}

takes lanes for `m` from anywhere in memory, and what was folded may be taken apart again in a loop
with a plain load, which reads behind the end of a buffer. Without AVX-512 a load of more than a
register is taken apart here: LLVM makes a plain load of a half that has no lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.expr.instructions import suffix_of, type_of
from tunefarm.compiler.llvm.shuffles import shuffle
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.types.dtypes import DType

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
    name = writer.intrinsic(
        f"llvm.masked.load.{suffix_of(dtype, mask.width)}.p0",
        type_name,
        [f"ptr align {dtype.bytes} {pointer}", mask.typed, f"{type_name} zeroinitializer"],
    )
    return Value(name, dtype, mask.width)


def _joined(writer: FunctionWriter, parts: Sequence[Value]) -> Value:
    """Vectors of one width one behind the other; behind an odd number of them follows anything."""
    while len(parts) > 1:
        even = [*parts, *parts[-1:]][: len(parts) + len(parts) % 2]
        pairs = zip(even[::2], even[1::2], strict=True)
        parts = [shuffle(writer, one, other, range(2 * one.width)) for one, other in pairs]
    return parts[0]
