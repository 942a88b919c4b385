"""Element types of tensors, in the short names that every representation prints."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np


class DType(StrEnum):
    """An element type; its value is the name used in programs, keys and logs."""

    F32 = "f32"
    F64 = "f64"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    BOOL = "bool"

    __hash__ = str.__hash__  # not Enum's, which is Python code that every look-up by type would run

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of an element in memory."""
        return _numpy_types()[self]

    @property
    def bytes(self) -> int:
        """Size of one element in memory, in bytes."""
        return _FACTS[self].bytes

    @property
    def is_float(self) -> bool:
        return _FACTS[self].kind == "float"

    @property
    def is_signed(self) -> bool:
        return _FACTS[self].kind in ("float", "signed")

    @property
    def is_integer(self) -> bool:
        return _FACTS[self].kind in ("signed", "unsigned")

    @property
    def epsilon(self) -> float:
        """The spacing of a float type's numbers at 1; 0 for others, which do not round."""
        return _FACTS[self].epsilon

    def holds(self, other: DType) -> bool:
        """Every value of `other` is one of this type, and both are floats or both integers."""
        own, kind = _FACTS[self].kind, _FACTS[other].kind
        if own == kind:
            return self.bytes >= other.bytes
        return (own, kind) == ("signed", "unsigned") and self.bytes > other.bytes

    @staticmethod
    def from_numpy(dtype: np.dtype[Any]) -> DType:
        """The element type of a NumPy dtype; `ValueError` when there is none."""
        for candidate, numpy_dtype in _numpy_types().items():
            if numpy_dtype == dtype:
                return candidate
        supported = ", ".join(DType)
        raise ValueError(f"element type {dtype} is not supported (supported: {supported})")


class _Facts(NamedTuple):
    kind: str  # float, signed, unsigned or bool
    bytes: int
    numpy: str
    epsilon: float = 0.0


_FACTS: dict[DType, _Facts] = {
    DType.F32: _Facts("float", 4, "float32", 2.0**-23),
    DType.F64: _Facts("float", 8, "float64", 2.0**-52),
    DType.I8: _Facts("signed", 1, "int8"),
    DType.I16: _Facts("signed", 2, "int16"),
    DType.I32: _Facts("signed", 4, "int32"),
    DType.I64: _Facts("signed", 8, "int64"),
    DType.U8: _Facts("unsigned", 1, "uint8"),
    DType.U16: _Facts("unsigned", 2, "uint16"),
    DType.U32: _Facts("unsigned", 4, "uint32"),
    DType.U64: _Facts("unsigned", 8, "uint64"),
    DType.BOOL: _Facts("bool", 1, "bool"),
}


@cache
def _numpy_types() -> dict[DType, np.dtype[Any]]:
    import numpy as np  # late: targets have element types, and the command line's help has targets

    return {dtype: np.dtype(facts.numpy) for dtype, facts in _FACTS.items()}


FLOATS = frozenset(dtype for dtype in DType if dtype.is_float)
INTEGERS = frozenset(dtype for dtype in DType if dtype.is_integer)
SIGNED_INTEGERS = frozenset(dtype for dtype in INTEGERS if dtype.is_signed)
UNSIGNED_INTEGERS = INTEGERS - SIGNED_INTEGERS
SIGNED = FLOATS | SIGNED_INTEGERS
NUMBERS = FLOATS | INTEGERS
BOOLS = frozenset((DType.BOOL,))
ALL = NUMBERS | BOOLS
