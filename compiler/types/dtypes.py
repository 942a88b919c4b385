"""Element types of tensors, in the short names that every representation prints."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

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
        return _BYTES[self]

    @property
    def is_float(self) -> bool:
        return self in _EPSILON

    @property
    def epsilon(self) -> float:
        """The spacing of a float type's numbers at 1."""
        return _EPSILON[self]

    @property
    def is_signed(self) -> bool:
        return self in (DType.I8, DType.I16, DType.I32, DType.I64) or self.is_float

    @property
    def is_integer(self) -> bool:
        return not self.is_float and self is not DType.BOOL

    def holds(self, other: DType) -> bool:
        """Every value of `other` is one of this type, and they are floats or integers both."""
        if self.is_float or other.is_float:
            return self.is_float and other.is_float and self.bytes >= other.bytes
        if not (self.is_integer and other.is_integer):
            return self is other
        wider = self.bytes > other.bytes
        return self is other or (wider and (self.is_signed or not other.is_signed))

    @staticmethod
    def from_numpy(dtype: np.dtype[Any]) -> DType:
        """The element type of a NumPy dtype; `ValueError` when there is none."""
        for candidate, numpy_dtype in _numpy_types().items():
            if numpy_dtype == dtype:
                return candidate
        supported = ", ".join(DType)
        raise ValueError(f"element type {dtype} is not supported (supported: {supported})")


_BYTES: dict[DType, int] = {
    DType.F32: 4,
    DType.F64: 8,
    DType.I8: 1,
    DType.I16: 2,
    DType.I32: 4,
    DType.I64: 8,
    DType.U8: 1,
    DType.U16: 2,
    DType.U32: 4,
    DType.U64: 8,
    DType.BOOL: 1,
}


_EPSILON: dict[DType, float] = {DType.F32: 2.0**-23, DType.F64: 2.0**-52}
_NUMPY_NAMES: dict[DType, str] = {
    DType.F32: "float32",
    DType.F64: "float64",
    DType.I8: "int8",
    DType.I16: "int16",
    DType.I32: "int32",
    DType.I64: "int64",
    DType.U8: "uint8",
    DType.U16: "uint16",
    DType.U32: "uint32",
    DType.U64: "uint64",
    DType.BOOL: "bool",
}


@cache
def _numpy_types() -> dict[DType, np.dtype[Any]]:
    import numpy as np  # late: targets have element types, and the command line's help has targets

    return {dtype: np.dtype(name) for dtype, name in _NUMPY_NAMES.items()}


FLOATS = frozenset((DType.F32, DType.F64))
SIGNED_INTEGERS = frozenset((DType.I8, DType.I16, DType.I32, DType.I64))
UNSIGNED_INTEGERS = frozenset((DType.U8, DType.U16, DType.U32, DType.U64))
INTEGERS = SIGNED_INTEGERS | UNSIGNED_INTEGERS
SIGNED = FLOATS | SIGNED_INTEGERS
NUMBERS = FLOATS | INTEGERS
BOOLS = frozenset((DType.BOOL,))
ALL = NUMBERS | BOOLS
