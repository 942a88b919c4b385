"""Element types of tensors, in the short names that every representation prints."""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tunefarm.compiler.errors import TunefarmError

if TYPE_CHECKING:
    import numpy as np


class DType(StrEnum):
    """An element type; its value is the name used in programs, keys and logs."""

    F32 = "f32"
    F64 = "f64"
    F16 = "f16"
    BF16 = "bf16"
    F8E4M3FN = "f8e4m3fn"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2FNUZ = "f8e5m2fnuz"
    F8E8M0 = "f8e8m0"
    F4E2M1 = "f4e2m1"
    I2 = "i2"
    I4 = "i4"
    I8 = "i8"
    I16 = "i16"
    I32 = "i32"
    I64 = "i64"
    U2 = "u2"
    U4 = "u4"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    BOOL = "bool"
    STRING = "string"
    """Text, as a string's id (`tunefarm.compiler.types.structure.StringTable`); in models that are
    being imported alone, whose graphs have numbers of the type i64 instead."""

    __hash__ = str.__hash__  # not Enum's, which is Python code that every look-up by type would run

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of an element in memory; some are of the package ml_dtypes."""
        known = _numpy_types()
        return known[self] if self in known else _numpy_extensions()[self]

    @property
    def onnx_number(self) -> int:
        """ONNX's number of the type."""
        return _FACTS[self].number

    @property
    def onnx_name(self) -> str:
        """ONNX's name of the type in lower case, as in its documentation."""
        return _FACTS[self].name

    @property
    def bits(self) -> int:
        """Bits that tell an element from others."""
        return _FACTS[self].bits

    @property
    def bytes(self) -> int:
        """Size of one element in memory, in bytes: those of fewer bits have one each."""
        return _BYTES[self]

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point type, of any width."""
        return _FACTS[self].kind == "float"

    @property
    def is_signed(self) -> bool:
        """Whether it holds negative numbers."""
        return _FACTS[self].kind in ("float", "signed")

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer, signed or not."""
        return _FACTS[self].kind in ("signed", "unsigned")

    @property
    def epsilon(self) -> float:
        """The spacing of a float type's numbers at 1; 0 for others, which do not round."""
        return _FACTS[self].epsilon

    @property
    def wide(self) -> DType:
        """The type that arithmetic on its elements is done in: f32 for 16-bit floats.

        Results are rounded to the narrow type where they are stored. Types that only store numbers
        have no arithmetic.
        """
        return DType.F32 if self in (DType.F16, DType.BF16) else self

    @property
    def largest(self) -> float:
        """The largest number of a float type."""
        taken = 2 if self is DType.F8E4M3FN else 1  # all digits set is its NaN
        return (2 - taken * self.epsilon) * 2.0 ** _FACTS[self].exponents[1]

    @property
    def limits(self) -> tuple[int, int]:
        """The minimum and maximum of an integer type."""
        if self.is_signed:
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1

    def holds(self, other: DType) -> bool:
        """Every value of `other` is one of this type, and both are floats or both integers."""
        own, kind = _FACTS[self].kind, _FACTS[other].kind
        if self is other:
            return True
        if own == kind == "float":
            return self.bits > other.bits and _spans(self, other)
        if own == kind:
            return self.bits >= other.bits
        return (own, kind) == ("signed", "unsigned") and self.bits > other.bits

    def has(self, value: int | float | bool) -> bool:
        """Whether a number is one of its elements: floats round, integers and bools do not."""
        if self.is_float or isinstance(value, bool):
            return True
        if self is DType.BOOL:
            return value in (0, 1)
        low, high = (0, 2**63 - 1) if self is DType.STRING else self.limits
        return value == int(value) and low <= value <= high

    @staticmethod
    def from_numpy(dtype: np.dtype[Any]) -> DType:
        """The element type of a NumPy dtype, objects being strings; else `ValueError`."""
        if dtype.kind in "OSU":
            return DType.STRING
        known = _numpy_extensions() if dtype.type.__module__ == "ml_dtypes" else _numpy_types()
        for candidate, numpy_dtype in known.items():
            if numpy_dtype == dtype:
                return candidate
        supported = ", ".join(DType)
        raise ValueError(f"element type {dtype} is not supported (supported: {supported})")


class _Facts(NamedTuple):
    number: int  # of ONNX, as its name
    name: str
    kind: str  # float, signed, unsigned, bool or string
    bits: int
    numpy: str
    epsilon: float = 0.0
    exponents: tuple[int, int] = (0, 0)  # of a float's smallest number, and of the largest


_FACTS: dict[DType, _Facts] = {
    DType.F32: _Facts(1, "float", "float", 32, "float32", 2.0**-23, (-149, 127)),
    DType.F64: _Facts(11, "double", "float", 64, "float64", 2.0**-52, (-1074, 1023)),
    DType.F16: _Facts(10, "float16", "float", 16, "float16", 2.0**-10, (-24, 15)),
    DType.BF16: _Facts(16, "bfloat16", "float", 16, "bfloat16", 2.0**-7, (-133, 127)),
    DType.F8E4M3FN: _Facts(17, "float8e4m3fn", "float", 8, "float8_e4m3fn", 2.0**-3, (-9, 8)),
    DType.F8E4M3FNUZ: _Facts(
        18, "float8e4m3fnuz", "float", 8, "float8_e4m3fnuz", 2.0**-3, (-10, 7)
    ),
    DType.F8E5M2: _Facts(19, "float8e5m2", "float", 8, "float8_e5m2", 2.0**-2, (-16, 15)),
    DType.F8E5M2FNUZ: _Facts(
        20, "float8e5m2fnuz", "float", 8, "float8_e5m2fnuz", 2.0**-2, (-17, 15)
    ),
    DType.F8E8M0: _Facts(24, "float8e8m0", "float", 8, "float8_e8m0fnu", 1.0, (-127, 127)),
    DType.F4E2M1: _Facts(23, "float4e2m1", "float", 4, "float4_e2m1fn", 0.5, (-1, 2)),
    DType.I2: _Facts(26, "int2", "signed", 2, "int2"),
    DType.I4: _Facts(22, "int4", "signed", 4, "int4"),
    DType.I8: _Facts(3, "int8", "signed", 8, "int8"),
    DType.I16: _Facts(5, "int16", "signed", 16, "int16"),
    DType.I32: _Facts(6, "int32", "signed", 32, "int32"),
    DType.I64: _Facts(7, "int64", "signed", 64, "int64"),
    DType.U2: _Facts(25, "uint2", "unsigned", 2, "uint2"),
    DType.U4: _Facts(21, "uint4", "unsigned", 4, "uint4"),
    DType.U8: _Facts(2, "uint8", "unsigned", 8, "uint8"),
    DType.U16: _Facts(4, "uint16", "unsigned", 16, "uint16"),
    DType.U32: _Facts(12, "uint32", "unsigned", 32, "uint32"),
    DType.U64: _Facts(13, "uint64", "unsigned", 64, "uint64"),
    DType.BOOL: _Facts(9, "bool", "bool", 1, "bool"),
    DType.STRING: _Facts(8, "string", "string", 64, "int64"),  # behind I64, which int64 is
}
_BYTES = {dtype: max(1, facts.bits // 8) for dtype, facts in _FACTS.items()}

_EXTENSIONS = frozenset(
    dtype
    for dtype, facts in _FACTS.items()
    if facts.bits < 8 or (facts.kind == "float" and facts.bits <= 16)
) - {DType.F16, DType.BOOL}
"""Types that NumPy does not have itself."""


def _spans(wide: DType, narrow: DType) -> bool:
    """A float type has the digits and the exponents of another."""
    (low, high), (least, most) = _FACTS[wide].exponents, _FACTS[narrow].exponents
    return low <= least and high >= most and wide.epsilon <= narrow.epsilon


@cache
def _numpy_types() -> dict[DType, np.dtype[Any]]:
    import numpy as np  # late: targets have element types, and the command line's help has targets

    return {
        dtype: np.dtype(facts.numpy) for dtype, facts in _FACTS.items() if dtype not in _EXTENSIONS
    }


@cache
def _numpy_extensions() -> dict[DType, np.dtype[Any]]:
    import numpy as np

    try:
        import ml_dtypes  # late: most models have none of its types
    except ModuleNotFoundError as error:
        raise TunefarmError(
            "elements of types that NumPy has not, such as bf16, need ml_dtypes",
            hint="pip install ml_dtypes",
        ) from error

    return {dtype: np.dtype(getattr(ml_dtypes, _FACTS[dtype].numpy)) for dtype in _EXTENSIONS}


WIDE_FLOATS = frozenset((DType.F32, DType.F64))
"""Floats that scalar functions compute with."""
FLOATS = WIDE_FLOATS | {DType.F16, DType.BF16}
"""Floats that operators compute with, see `DType.wide`."""
INTEGERS = frozenset(dtype for dtype in DType if dtype.is_integer and dtype.bits >= 8)
SIGNED_INTEGERS = frozenset(dtype for dtype in INTEGERS if dtype.is_signed)
UNSIGNED_INTEGERS = INTEGERS - SIGNED_INTEGERS
SIGNED = FLOATS | SIGNED_INTEGERS
NUMBERS = FLOATS | INTEGERS
EIGHT_BIT_FLOATS = frozenset(dtype for dtype in DType if dtype.is_float and dtype.bits == 8)
WIDE_NUMBERS = WIDE_FLOATS | INTEGERS
BOOLS = frozenset((DType.BOOL,))
WIDE = WIDE_NUMBERS | BOOLS
"""What expressions compute with; others are loaded, stored and converted."""
ALL = NUMBERS | BOOLS
"""What operators compute with; others are only stored, and moved about."""
