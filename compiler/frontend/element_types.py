"""ONNX element types: which of them the compiler has, and what to call the others."""

from __future__ import annotations

from onnx import TensorProto

from tunefarm.compiler.errors import UnsupportedOperatorError
from tunefarm.compiler.types.dtypes import DType

_DTYPES = {dtype.onnx_number: dtype for dtype in DType}


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
    supported = ", ".join(dtype.onnx_name for dtype in DType)
    raise UnsupportedOperatorError(
        f"{what} has the element type {onnx_type_name(number)}, which is not supported",
        hint=f"supported: {supported}",
    )
