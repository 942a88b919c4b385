"""Integers that are unpacked where they are multiplied: fields of words, bytes as 16 bits.

A field is an unsigned number of a few bits: u8(word >> amount & mask).
"""

from __future__ import annotations

from tunefarm.compiler.expr.nodes import Binary, Cast, Const, Expr, Load, binary, cast, const
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen

WORD = DType.I32


@frozen
class PackedField:
    """`bits` bits of a word in memory, from the bit `amount`, an index, on."""

    word: Load
    amount: Expr
    bits: int

    def expression(self) -> Expr:
        """The number, a u8."""
        moved = binary("shr", self.word, cast(WORD, self.amount))
        return cast(DType.U8, binary("and", moved, const((1 << self.bits) - 1, WORD)))


def packed_field(expr: Expr) -> PackedField | None:
    """The field that an expression is; None where it is something else."""
    if not isinstance(expr, Cast) or expr.dtype is not DType.U8:
        return None
    masked = expr.operand
    if not isinstance(masked, Binary) or masked.op != "and" or not isinstance(masked.left, Binary):
        return None
    moved, mask = masked.left, masked.right
    if moved.op != "shr" or not isinstance(moved.left, Load) or moved.dtype is not WORD:
        return None
    if not isinstance(mask, Const) or not isinstance(moved.right, Cast):
        return None
    bits = int(mask.value).bit_length()
    if not 0 < bits <= DType.U8.bits or mask.value != (1 << bits) - 1:
        return None
    return PackedField(moved.left, moved.right.operand, bits)


def wide_byte(expr: Expr) -> Load | None:
    """The byte in memory that an i16 is converted from; None where it is something else."""
    if not isinstance(expr, Cast) or expr.dtype is not DType.I16:
        return None
    byte = expr.operand
    return byte if isinstance(byte, Load) and byte.dtype in (DType.I8, DType.U8) else None


def is_unpacked(expr: Expr) -> bool:
    """A field of a word, or a byte as 16 bits."""
    return packed_field(expr) is not None or wide_byte(expr) is not None
