"""Element types of tensors, in the short names that every representation prints."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

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

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of an element in memory."""
        return _NUMPY[self]

    @property
    def bytes(self) -> int:
        """Size of one element in memory, in bytes."""
        return _BYTES[self]

    @property
    def is_float(self) -> bool:
        return self in (DType.F32, DType.F64)

    @property
    def is_signed(self) -> bool:
        return self in (DType.I8, DType.I16, DType.I32, DType.I64) or self.is_float

    @property
    def is_integer(self) -> bool:
        return not self.is_float and self is not DType.BOOL

    @staticmethod
    def from_numpy(dtype: np.dtype[Any]) -> DType:
        """The element type of a NumPy dtype; `ValueError` when there is none."""
        for candidate, numpy_dtype in _NUMPY.items():
            if numpy_dtype == dtype:
                return candidate
        supported = ", ".join(_NUMPY)
        raise ValueError(f"element type {dtype} is not supported (supported: {supported})")


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
    DType.I8: np.dtype(np.int8),
    DType.I16: np.dtype(np.int16),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
    DType.U8: np.dtype(np.uint8),
    DType.U16: np.dtype(np.uint16),
    DType.U32: np.dtype(np.uint32),
    DType.U64: np.dtype(np.uint64),
    DType.BOOL: np.dtype(np.bool_),
}
_BYTES: dict[DType, int] = {dtype: numpy.itemsize for dtype, numpy in _NUMPY.items()}
