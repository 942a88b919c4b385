"""Scalar functions and casts on LLVM values, scalar or vector alike."""

from __future__ import annotations

from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.expr import narrow_floats
from tunefarm.compiler.expr.functions import BINARY, UNARY
from tunefarm.compiler.expr.instructions import Instructions, suffix_of, type_of
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.types.dtypes import DType


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
    if _is_narrow(x.dtype) or _is_narrow(to):
        return _cast_narrow(writer, x, to)
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


def _is_narrow(dtype: DType) -> bool:
    """A type that LLVM's conversions do not know: a float, or an integer, that is only stored."""
    return dtype.bits <= 16 if dtype.is_float else 1 < dtype.bits < 8


def _cast_narrow(writer: FunctionWriter, x: Value, to: DType) -> Value:
    """A conversion from or to a type that is only stored, by way of one that is computed with."""
    m = Instructions(writer, x.dtype, x.width)
    if x.dtype.is_float and _is_narrow(x.dtype):
        return cast(writer, Value(narrow_floats.to_f32(m, x.text), DType.F32, x.width), to)
    if _is_narrow(x.dtype):
        return cast(writer, _integer_of_bits(m, x), to)
    if to.is_integer:
        byte = cast(writer, x, DType.I8 if to.is_signed else DType.U8)
        bits = Instructions(writer, byte.dtype, x.width)
        lowest = bits.emit("and", byte.text, bits.constant((1 << to.bits) - 1))
        return Value(lowest, to, x.width)
    if x.dtype is DType.F64:
        x = Value(narrow_floats.f32_of_f64(m, x.text), DType.F32, x.width)
    x = cast(writer, x, DType.F32)
    return Value(
        narrow_floats.from_f32(Instructions(writer, DType.F32, x.width), x.text, to), to, x.width
    )


def _integer_of_bits(m: Instructions, x: Value) -> Value:
    """An integer of fewer than 8 bits, the lowest of a byte, as one of 8."""
    byte = DType.I8 if x.dtype.is_signed else DType.U8
    bits, unused = m.of(byte), m.of(byte).constant(8 - x.dtype.bits)
    shift = "ashr" if x.dtype.is_signed else "lshr"
    return Value(bits.emit(shift, bits.emit("shl", x.text, unused), unused), byte, x.width)


SMALL = 2.0**31 - 128
"""Floats up to here are 32-bit integers when truncated."""


def cast_small(writer: FunctionWriter, x: Value, to: DType) -> Value:
    """A float that is no larger than `SMALL` as an integer; NaN as one or another."""
    m = Instructions(writer, x.dtype, x.width)
    name = m.of(DType.I32).emit("freeze", m.convert("fptosi", x.text, DType.I32))
    return cast(writer, Value(name, DType.I32, x.width), to)


_ROUNDED = {16: "avx512.mask.cvtps2dq.512", 8: "avx.cvt.ps2dq.256", 4: "sse2.cvtps2dq"}
"""x86's conversions of vectors of f32 that round to the nearest integer, by width."""


def rounded(writer: FunctionWriter, x: Value) -> Value:
    """A vector of small f32, as wide as an instruction of the target, as its nearest integers."""
    result, operands = type_of(DType.I32, x.width), [x.typed]
    if x.width == 16:
        operands += [f"{result} zeroinitializer", "i16 -1", "i32 4"]
    name = writer.intrinsic(f"llvm.x86.{_ROUNDED[x.width]}", result, operands)
    return Value(name, DType.I32, x.width)


def _float_to_integer(writer: FunctionWriter, x: Value, to: DType) -> Value:
    """Truncate toward zero; what does not fit saturates at the range of i32, i64 or u64."""
    if to is DType.U64:
        wide, kind = DType.U64, "fptoui"
    else:
        wide, kind = (DType.I64 if to in (DType.I64, DType.U32) else DType.I32), "fptosi"
    if not x.width or wide is DType.U64:
        wide_type = type_of(wide, x.width)
        name = writer.intrinsic(
            f"llvm.{kind}.sat.{suffix_of(wide, x.width)}.{suffix_of(x.dtype, x.width)}",
            wide_type,
            [x.typed],
        )
        return cast(writer, Value(name, wide, x.width), to)
    m = Instructions(writer, x.dtype, x.width)
    if wide is DType.I32 or writer.has_avx512:
        return cast(writer, Value(_saturated(m, x.text, wide), wide, x.width), to)
    # Most CPUs convert vectors of floats to 32 bits only, which are enough for most of them.
    narrow = Value(m.convert("fptosi", x.text, DType.I32), DType.I32, x.width)
    usual = m.of(DType.I32).convert("sext", m.of(DType.I32).emit("freeze", narrow.text), wide)
    beyond = m.compare("uge", m.call("llvm.fabs", x.text), m.constant(2.0**31))
    name = m.of(wide).rarely(beyond, usual, lambda: _saturated(m, x.text, wide))
    return cast(writer, Value(name, wide, x.width), to)


def _saturated(m: Instructions, x: str, to: DType) -> str:
    """A vector of floats as signed integers: LLVM takes its elements one by one otherwise."""
    integers, end = m.of(to), 2.0 ** (8 * to.bytes - 1)
    digits = 24 if m.dtype is DType.F32 else 53
    last = end - max(1.0, end / 2**digits)  # the largest float that is an integer of that type
    low, high = m.constant(-end), m.constant(last)
    inside = m.select(m.compare("gt", low, x), low, x)
    inside = m.select(m.compare("lt", high, inside), high, inside)
    result = integers.emit("freeze", m.convert("fptosi", inside, to))
    largest = integers.constant((1 << (8 * to.bytes - 1)) - 1)
    result = integers.select(m.compare("ge", x, m.constant(end)), largest, result)
    return integers.select(m.compare("uno", x, x), integers.constant(0), result)
