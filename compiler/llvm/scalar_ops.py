"""Scalar functions, casts and literals on LLVM values, scalar or vector alike."""

from __future__ import annotations

import re
from struct import pack, unpack

from compiler.errors import LoweringError
from compiler.expr.functions import BINARY, UNARY
from compiler.llvm.writer import FunctionWriter, Value, suffix_of, type_of
from compiler.types.dtypes import DType

_LITERAL = re.compile(r"(?:splat \(i\d+ )?(-?\d+)\)?")


def literal(value: float, dtype: DType, width: int = 0) -> str:
    """A literal with exactly this value (a float rounded to `dtype`), for every element."""
    if dtype.is_float:
        if dtype is DType.F32 and abs(value) < 3.5e38:
            value = float(unpack("<f", pack("<f", value))[0])
        text = f"0x{unpack('<Q', pack('<d', value))[0]:016X}"
    elif dtype is DType.BOOL:
        text = "true" if value else "false"
    else:
        text = str(int(value))
    return f"splat ({type_of(dtype, 0)} {text})" if width else text


class InstructionWriter:
    """Writes the instructions of scalar functions (compiler.expr.instructions)."""

    __slots__ = ("_type", "_width", "_writer", "dtype")

    def __init__(self, writer: FunctionWriter, dtype: DType, width: int) -> None:
        self.dtype = dtype
        self._writer = writer
        self._width = width
        self._type = type_of(dtype, width)

    @property
    def has_fma(self) -> bool:
        return self._writer.has_fma

    def of(self, dtype: DType) -> InstructionWriter:
        return InstructionWriter(self._writer, dtype, self._width)

    def constant(self, value: float) -> str:
        return literal(value, self.dtype, self._width)

    def literal(self, operand: str) -> int | None:
        found = _LITERAL.fullmatch(operand)
        return int(found[1]) if found else None

    def is_computed(self, operand: str) -> bool:
        return operand.startswith("%")

    def emit(self, name: str, *operands: str) -> str:
        return self._writer.emit(f"{name} {self._type} {', '.join(operands)}")

    def compare(self, predicate: str, left: str, right: str) -> str:
        name = "fcmp" if self.dtype.is_float else "icmp"
        return self._writer.emit(f"{name} {predicate} {self._type} {left}, {right}")

    def select(self, condition: str, then: str, otherwise: str) -> str:
        truth, type = type_of(DType.BOOL, self._width), self._type
        return self._writer.emit(f"select {truth} {condition}, {type} {then}, {type} {otherwise}")

    def convert(self, name: str, operand: str, to: DType) -> str:
        return self._writer.emit(f"{name} {self._type} {operand} to {type_of(to, self._width)}")

    def call(self, name: str, *operands: str, flags: str = "") -> str:
        typed = [f"{self._type} {operand}" for operand in operands]
        mangled = f"{name}.{suffix_of(self.dtype, self._width)}"
        return self._writer.intrinsic(mangled, self._type, typed, flags)

    def libm(self, name: str, *operands: str) -> str:
        writer, scalar = self._writer, type_of(self.dtype, 0)
        name = f"{name}f" if self.dtype is DType.F32 else name
        if not self._width:
            return writer.intrinsic(name, scalar, [f"{scalar} {operand}" for operand in operands])
        result = "poison"
        for i in range(self._width):
            elements = [
                f"{scalar} {writer.emit(f'extractelement {self._type} {operand}, i64 {i}')}"
                for operand in operands
            ]
            element = writer.intrinsic(name, scalar, elements)
            result = writer.emit(
                f"insertelement {self._type} {result}, {scalar} {element}, i64 {i}"
            )
        return result


def unary(writer: FunctionWriter, op: str, x: Value) -> Value:
    """`op(x)`."""
    function, dtype, width = UNARY[op], x.dtype, x.width
    if dtype not in function.operands:
        raise _undefined(op, dtype)
    text = function.emit(InstructionWriter(writer, dtype, width), x.text)
    return Value(text, function.result or dtype, width)


def binary(writer: FunctionWriter, op: str, a: Value, b: Value) -> Value:
    """`a op b`; both operands have one type and width."""
    function, dtype, width = BINARY[op], a.dtype, a.width
    if dtype not in function.operands:
        raise _undefined(op, dtype)
    text = function.emit(InstructionWriter(writer, dtype, width), a.text, b.text)
    return Value(text, function.result or dtype, width)


def _undefined(op: str, dtype: DType) -> LoweringError:
    return LoweringError(f"operation {op} is not defined for element type {dtype}")


def cast(writer: FunctionWriter, x: Value, to: DType) -> Value:
    """`x` converted to `to`."""
    if x.dtype is to:
        return x
    target = type_of(to, x.width)
    if to is DType.BOOL:
        compare = "fcmp une" if x.dtype.is_float else "icmp ne"
        return Value(
            writer.emit(f"{compare} {x.typed}, {literal(0, x.dtype, x.width)}"), to, x.width
        )
    if x.dtype.is_float and to.is_float:
        operation = "fpext" if to is DType.F64 else "fptrunc"
    elif to.is_float:
        signed = x.dtype.is_signed
        operation = "sitofp" if signed else "uitofp"
    elif x.dtype.is_float:
        return _float_to_integer(writer, x, to)
    else:
        before, after = (1 if x.dtype is DType.BOOL else x.dtype.bytes * 8), to.bytes * 8
        if before == after:
            return Value(x.text, to, x.width)
        widen = "sext" if x.dtype.is_signed else "zext"
        operation = "trunc" if before > after else widen
    return Value(writer.emit(f"{operation} {x.typed} to {target}"), to, x.width)


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
