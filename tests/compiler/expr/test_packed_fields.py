"""Bits of words as numbers: which expressions they are, and which are something else."""

from __future__ import annotations

import pytest

from tunefarm.compiler.expr.nodes import Expr, Load, add, binary, cast, const, index, integer, mul
from tunefarm.compiler.expr.packed_fields import PackedField, is_unpacked, packed_field, wide_byte
from tunefarm.compiler.types.dtypes import DType

WORD = Load(DType.I32, "w", (index("k"),))
AMOUNT = add(mul(index("byte"), integer(8)), integer(4))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_field_is_found_in_its_expression(bits: int) -> None:
    field = PackedField(WORD, AMOUNT, bits)
    assert packed_field(field.expression()) == field


def masked(mask: int, dtype: DType = DType.U8) -> Expr:
    moved = binary("shr", WORD, cast(DType.I32, AMOUNT))
    return cast(dtype, binary("and", moved, const(mask, DType.I32)))


@pytest.mark.parametrize(
    "other",
    [
        WORD,
        cast(DType.U8, WORD),
        masked(5),  # bits apart
        masked(0),
        masked(511),
        masked(15, DType.I8),
        cast(DType.U8, binary("shr", WORD, cast(DType.I32, AMOUNT))),
    ],
)
def test_other_expressions_are_none(other: Expr) -> None:
    assert packed_field(other) is None
    assert not is_unpacked(other)


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8])
def test_a_byte_in_memory_as_16_bits_is_unpacked(dtype: DType) -> None:
    byte = Load(dtype, "w", (index("k"),))
    wide = cast(DType.I16, byte)
    assert wide_byte(wide) == byte and is_unpacked(wide)
    for other in (byte, cast(DType.I32, byte), cast(DType.I16, add(byte, byte)), WORD):
        assert wide_byte(other) is None
