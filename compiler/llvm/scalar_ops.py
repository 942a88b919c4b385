"""Scalar functions and casts on LLVM values, scalar or vector alike."""

from __future__ import annotations

from compiler.errors import LoweringError
from compiler.expr.functions import BINARY, UNARY
from compiler.expr.instructions import Instructions, suffix_of, type_of
from compiler.llvm.writer import FunctionWriter, Value
from compiler.types.dtypes import DType


def unary(writer: FunctionWriter, op: str, x: Value) -> Value:
    """`op(x)`."""
    function, dtype, width = UNARY[op], x.dtype, x.width
    if dtype not in function.operands:
        raise _undefined(op, dtype)
    text = function.emit(Instructions(writer, dtype, width), x.text)
    return Value(text, function.result or dtype, width)


def binary(writer: FunctionWriter, op: str, a: Value, b: Value) -> Value:
    """`a op b`; both operands have one type and width."""
    function, dtype, width = BINARY[op], a.dtype, a.width
    if dtype not in function.operands:
        raise _undefined(op, dtype)
    text = function.emit(Instructions(writer, dtype, width), a.text, b.text)
    return Value(text, function.result or dtype, width)


def _undefined(op: str, dtype: DType) -> LoweringError:
    return LoweringError(f"operation {op} is not defined for element type {dtype}")


def cast(writer: FunctionWriter, x: Value, to: DType) -> Value:
    """`x` converted to `to`."""
    if x.dtype is to:
        return x
    m = Instructions(writer, x.dtype, x.width)
    if to is DType.BOOL:
        predicate = "une" if x.dtype.is_float else "ne"
        return Value(m.compare(predicate, x.text, m.constant(0)), to, x.width)
    if x.dtype.is_float and to.is_float:
        operation = "fpext" if to is DType.F64 else "fptrunc"
    elif to.is_float:
        operation = "sitofp" if x.dtype.is_signed else "uitofp"
    elif x.dtype.is_float:
        return _float_to_integer(writer, x, to)
    else:
        before, after = (1 if x.dtype is DType.BOOL else x.dtype.bytes * 8), to.bytes * 8
        if before == after:
            return Value(x.text, to, x.width)
        widen = "sext" if x.dtype.is_signed else "zext"
        operation = "trunc" if before > after else widen
    return Value(m.convert(operation, x.text, to), to, x.width)


def _float_to_integer(writer: FunctionWriter, x: Value, to: DType) -> Value:
    """Truncate toward zero; what does not fit saturates at the range of i32, i64 or u64."""
    if to is DType.U64:
        wide, kind = DType.U64, "fptoui"
    else:
        wide, kind = (DType.I32 if to is DType.I32 else DType.I64), "fptosi"
    wide_type = type_of(wide, x.width)
    name = writer.intrinsic(
        f"llvm.{kind}.sat.{suffix_of(wide, x.width)}.{suffix_of(x.dtype, x.width)}",
        wide_type,
        [x.typed],
    )
    return cast(writer, Value(name, wide, x.width), to)
