"""ONNX element types: which of them the compiler has, and what to call the others."""

from __future__ import annotations

from onnx import TensorProto

from tunefarm.compiler.errors import UnsupportedOperatorError
from tunefarm.compiler.types.dtypes import DType

_DTYPES: dict[int, DType] = {
    TensorProto.FLOAT: DType.F32,
    TensorProto.DOUBLE: DType.F64,
    TensorProto.FLOAT16: DType.F16,
    TensorProto.BFLOAT16: DType.BF16,
    TensorProto.FLOAT8E4M3FN: DType.F8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ: DType.F8E4M3FNUZ,
    TensorProto.FLOAT8E5M2: DType.F8E5M2,
    TensorProto.FLOAT8E5M2FNUZ: DType.F8E5M2FNUZ,
    TensorProto.FLOAT8E8M0: DType.F8E8M0,
    TensorProto.FLOAT4E2M1: DType.F4E2M1,
    TensorProto.INT2: DType.I2,
    TensorProto.INT4: DType.I4,
    TensorProto.INT8: DType.I8,
    TensorProto.INT16: DType.I16,
    TensorProto.INT32: DType.I32,
    TensorProto.INT64: DType.I64,
    TensorProto.UINT2: DType.U2,
    TensorProto.UINT4: DType.U4,
    TensorProto.UINT8: DType.U8,
    TensorProto.UINT16: DType.U16,
    TensorProto.UINT32: DType.U32,
    TensorProto.UINT64: DType.U64,
    TensorProto.BOOL: DType.BOOL,
    TensorProto.STRING: DType.STRING,
}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}
_SCHEMA_NAMES: dict[DType, str] = {
    dtype: f"tensor({TensorProto.DataType.Name(number).lower()})"
    for number, dtype in _DTYPES.items()
}


def onnx_type_name(number: int) -> str:
    """ONNX's name of an element type in lower case, as in its documentation."""
    names: dict[int, str] = {value: name for name, value in TensorProto.DataType.items()}
    return names.get(number, f"number {number}").lower()


def dtype_of(number: int, what: str) -> DType:
    """The element type with ONNX's number; `what` names the tensor for the error.

    Raises UnsupportedOperatorError for element types that the compiler does not have.
    """
    if number in _DTYPES:
        return _DTYPES[number]
    supported = ", ".join(onnx_type_name(known) for known in _DTYPES)
    raise UnsupportedOperatorError(
        f"{what} has the element type {onnx_type_name(number)}, which is not supported",
        hint=f"supported: {supported}",
    )


def onnx_number(dtype: DType) -> int:
    """ONNX's number of an element type."""
    return _NUMBERS[dtype]


def schema_type_name(dtype: DType) -> str:
    """The name of a tensor type as operator schemas write it: 'tensor(float)'."""
    return _SCHEMA_NAMES[dtype]
