"""Unary and binary operations and casts on LLVM values, scalar or vector alike."""

from __future__ import annotations

import re

from compiler.errors import LoweringError
from compiler.llvm.math import float_literal
from compiler.llvm.writer import FunctionWriter, Value, suffix_of, type_of
from compiler.types.dtypes import DType

_FLOAT_INTRINSICS = {
    "abs": "llvm.fabs",
    "sqrt": "llvm.sqrt",
    "floor": "llvm.floor",
    "ceil": "llvm.ceil",
    "round": "llvm.rint",
}
_LIBM = frozenset(
    "exp log tanh erf sin cos tan asin acos atan sinh cosh asinh acosh atanh pow fmod".split()
)
_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGER_BINARY = {name: name for name in ("add", "sub", "mul", "and", "or", "xor")}
_LITERAL = re.compile(r"(?:splat \(i\d+ )?(-?\d+)\)?")
_FLOAT_COMPARE = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}


def constant(value: float, like: Value) -> str:
    """A literal of the same type as `like`."""
    if like.dtype.is_float:
        text = float_literal(float(value), like.dtype)
    elif like.dtype is DType.BOOL:
        text = "true" if value else "false"
    else:
        text = str(int(value))
    return f"splat ({type_of(like.dtype, 0)} {text})" if like.width else text


def unary(writer: FunctionWriter, op: str, x: Value) -> Value:
    """`op(x)`."""
    dtype, width = x.dtype, x.width
    if op == "isnan":
        return Value(writer.emit(f"fcmp uno {x.typed}, {x.text}"), DType.BOOL, width)
    if op == "not":
        ones = constant(1 if dtype is DType.BOOL else -1, x)
        return Value(writer.emit(f"xor {x.typed}, {ones}"), dtype, width)
    if op == "sign":
        return _sign(writer, x)
    if dtype.is_float:
        return Value(_float_unary(writer, op, x), dtype, width)
    if op == "neg":
        return Value(writer.emit(f"sub {x.type} {constant(0, x)}, {x.text}"), dtype, width)
    if op == "abs":
        if not dtype.is_signed:
            return x
        zero = constant(0, x)
        negated = writer.emit(f"sub {x.type} {zero}, {x.text}")
        negative = writer.emit(f"icmp slt {x.typed}, {zero}")
        condition = Value(negative, DType.BOOL, width)
        name = writer.emit(f"select {condition.typed}, {x.type} {negated}, {x.typed}")
        return Value(name, dtype, width)
    if op in ("floor", "ceil", "round"):
        return x
    raise LoweringError(f"operation {op} is not defined for element type {dtype}")


def _float_unary(writer: FunctionWriter, op: str, x: Value) -> str:
    one = constant(1.0, x)
    if op == "neg":
        return writer.emit(f"fneg {x.typed}")
    if op == "reciprocal":
        return writer.emit(f"fdiv {x.type} {one}, {x.text}")
    if op in _FLOAT_INTRINSICS:
        name = f"{_FLOAT_INTRINSICS[op]}.{suffix_of(x.dtype, x.width)}"
        return writer.intrinsic(name, x.type, [x.typed])
    if op == "rsqrt":
        root = writer.intrinsic(f"llvm.sqrt.{suffix_of(x.dtype, x.width)}", x.type, [x.typed])
        return writer.emit(f"fdiv {x.type} {one}, {root}")
    if op == "sigmoid":
        negated = Value(writer.emit(f"fneg {x.typed}"), x.dtype, x.width)
        exponential = _libm(writer, "exp", negated)
        total = writer.emit(f"fadd {x.type} {exponential}, {one}")
        return writer.emit(f"fdiv {x.type} {one}, {total}")
    if op in _LIBM:
        return _libm(writer, op, x)
    raise LoweringError(f"unknown operation {op}")


def _libm(writer: FunctionWriter, op: str, *operands: Value) -> str:
    """Call the C library's function, once per element."""
    dtype, width = operands[0].dtype, operands[0].width
    name = f"{op}f" if dtype is DType.F32 else op
    scalar = type_of(dtype, 0)
    if not width:
        return writer.intrinsic(name, scalar, [operand.typed for operand in operands])
    vector = type_of(dtype, width)
    result = "poison"
    for i in range(width):
        elements = [
            f"{scalar} {writer.emit(f'extractelement {operand.typed}, i64 {i}')}"
            for operand in operands
        ]
        element = writer.intrinsic(name, scalar, elements)
        result = writer.emit(f"insertelement {vector} {result}, {scalar} {element}, i64 {i}")
    return result


def _sign(writer: FunctionWriter, x: Value) -> Value:
    zero, one = constant(0, x), constant(1, x)
    condition = type_of(DType.BOOL, x.width)
    compare = "fcmp ogt" if x.dtype.is_float else "icmp sgt" if x.dtype.is_signed else "icmp ugt"
    positive = writer.emit(f"{compare} {x.typed}, {zero}")
    if not x.dtype.is_signed:
        name = writer.emit(f"select {condition} {positive}, {x.type} {one}, {x.type} {zero}")
        return Value(name, x.dtype, x.width)
    less = "fcmp olt" if x.dtype.is_float else "icmp slt"
    negative = writer.emit(f"{less} {x.typed}, {zero}")
    # NaN is neither positive nor negative and stays what it is.
    otherwise = x.text if x.dtype.is_float else zero
    below = writer.emit(
        f"select {condition} {negative}, {x.type} {constant(-1, x)}, {x.type} {otherwise}"
    )
    name = writer.emit(f"select {condition} {positive}, {x.type} {one}, {x.type} {below}")
    return Value(name, x.dtype, x.width)


def binary(writer: FunctionWriter, op: str, a: Value, b: Value) -> Value:
    """`a op b`; both operands have one type and width."""
    dtype, width = a.dtype, a.width
    if op in _FLOAT_COMPARE:
        return Value(_compare(writer, op, a, b), DType.BOOL, width)
    if dtype is DType.BOOL:
        mapped = {"max": "or", "min": "and", "add": "or", "mul": "and"}.get(op, op)
        if mapped not in ("and", "or", "xor"):
            raise LoweringError(f"operation {op} is not defined for element type bool")
        return Value(writer.emit(f"{mapped} {a.typed}, {b.text}"), dtype, width)
    if op in ("max", "min"):
        return Value(_extreme(writer, op, a, b), dtype, width)
    if dtype.is_float:
        return Value(_float_binary(writer, op, a, b), dtype, width)
    return Value(_integer_binary(writer, op, a, b), dtype, width)


def _compare(writer: FunctionWriter, op: str, a: Value, b: Value) -> str:
    if a.dtype.is_float:
        return writer.emit(f"fcmp {_FLOAT_COMPARE[op]} {a.typed}, {b.text}")
    predicate = op if op in ("eq", "ne") else f"{'s' if a.dtype.is_signed else 'u'}{op}"
    return writer.emit(f"icmp {predicate} {a.typed}, {b.text}")


def _extreme(writer: FunctionWriter, op: str, a: Value, b: Value) -> str:
    """max or min; a NaN on either side stays.

    Against a literal, compare and select do: a CPU has one instruction for that.
    """
    if a.dtype.is_float and a.text.startswith("%") and b.text.startswith("%"):
        name = f"llvm.{op}imum.{suffix_of(a.dtype, a.width)}"
        return writer.intrinsic(name, a.type, [a.typed, b.typed], flags="nsz ")
    greater = "gt" if op == "max" else "lt"
    if a.dtype.is_float and not a.text.startswith("%"):
        a, b = b, a
    if a.dtype.is_float:
        condition = writer.emit(f"fcmp o{greater} {b.typed}, {a.text}")
    else:
        sign = "s" if a.dtype.is_signed else "u"
        condition = writer.emit(f"icmp {sign}{greater} {b.typed}, {a.text}")
    flag = Value(condition, DType.BOOL, a.width)
    return writer.emit(f"select {flag.typed}, {b.typed}, {a.typed}")


def _float_binary(writer: FunctionWriter, op: str, a: Value, b: Value) -> str:
    if op in _FLOAT_BINARY:
        return writer.emit(f"{_FLOAT_BINARY[op]} {a.typed}, {b.text}")
    if op in ("pow", "fmod"):
        return _libm(writer, op, a, b)
    if op == "floordiv":
        quotient = writer.emit(f"fdiv {a.typed}, {b.text}")
        name = f"llvm.floor.{suffix_of(a.dtype, a.width)}"
        return writer.intrinsic(name, a.type, [f"{a.type} {quotient}"])
    if op == "mod":
        return _float_modulo(writer, a, b)
    raise LoweringError(f"operation {op} is not defined for element type {a.dtype}")


def _float_modulo(writer: FunctionWriter, a: Value, b: Value) -> str:
    """The remainder with the divisor's sign."""
    remainder = Value(_libm(writer, "fmod", a, b), a.dtype, a.width)
    condition, zero = type_of(DType.BOOL, a.width), constant(0.0, a)
    below = writer.emit(f"fcmp olt {remainder.typed}, {zero}")
    above = writer.emit(f"fcmp ogt {remainder.typed}, {zero}")
    negative = writer.emit(f"fcmp olt {b.typed}, {zero}")
    positive = writer.emit(f"fcmp ogt {b.typed}, {zero}")
    low = writer.emit(f"and {condition} {below}, {positive}")
    high = writer.emit(f"and {condition} {above}, {negative}")
    differs = writer.emit(f"or {condition} {low}, {high}")
    moved = writer.emit(f"fadd {remainder.typed}, {b.text}")
    return writer.emit(f"select {condition} {differs}, {a.type} {moved}, {remainder.typed}")


def _shift(writer: FunctionWriter, op: str, a: Value, b: Value) -> str:
    """A shift; by the number of bits or more, what is shifted in is all that is left."""
    bits = a.dtype.bytes * 8
    condition = type_of(DType.BOOL, a.width)
    fits = writer.emit(f"icmp ult {b.typed}, {constant(bits, b)}")
    most = constant(bits - 1, b)
    count = writer.emit(f"select {condition} {fits}, {b.typed}, {b.type} {most}")
    if op == "shr" and a.dtype.is_signed:
        return writer.emit(f"ashr {a.typed}, {count}")
    shifted = writer.emit(f"{'shl' if op == 'shl' else 'lshr'} {a.typed}, {count}")
    return writer.emit(f"select {condition} {fits}, {a.type} {shifted}, {a.type} {constant(0, a)}")


def _integer_binary(writer: FunctionWriter, op: str, a: Value, b: Value) -> str:
    signed = a.dtype.is_signed
    if op in _INTEGER_BINARY:
        return writer.emit(f"{_INTEGER_BINARY[op]} {a.typed}, {b.text}")
    if op in ("shl", "shr"):
        return _shift(writer, op, a, b)
    if op == "pow":
        return _integer_power(writer, a, b)
    if op in ("div", "fmod") or (not signed and op in ("floordiv", "mod")):
        kind = "div" if op in ("div", "floordiv") else "rem"
        result = writer.emit(f"{'s' if signed else 'u'}{kind} {a.typed}, {_divisor(writer, a, b)}")
        return _zero_where_undefined(writer, result, b) if kind == "div" else result
    if op in ("floordiv", "mod"):
        return _floor_division(writer, op, a, b)
    raise LoweringError(f"operation {op} is not defined for element type {a.dtype}")


def _is_safe_divisor(b: Value) -> bool:
    """A literal that is neither 0 nor -1."""
    literal = _LITERAL.fullmatch(b.text)
    return literal is not None and int(literal[1]) not in (0, -1)


def _divisor(writer: FunctionWriter, a: Value, b: Value) -> str:
    """The divisor with one where a CPU traps: for x / 0, and the smallest integer / -1."""
    if _is_safe_divisor(b):
        return b.text
    condition = type_of(DType.BOOL, b.width)
    traps = writer.emit(f"icmp eq {b.typed}, {constant(0, b)}")
    if a.dtype.is_signed:
        smallest = writer.emit(f"icmp eq {a.typed}, {constant(-(1 << (a.dtype.bytes * 8 - 1)), a)}")
        negates = writer.emit(f"icmp eq {b.typed}, {constant(-1, b)}")
        overflows = writer.emit(f"and {condition} {smallest}, {negates}")
        traps = writer.emit(f"or {condition} {traps}, {overflows}")
    return writer.emit(f"select {condition} {traps}, {b.type} {constant(1, b)}, {b.typed}")


def _zero_where_undefined(writer: FunctionWriter, quotient: str, b: Value) -> str:
    """x / 0 is 0, as in the meaning of tensor expressions."""
    if _is_safe_divisor(b):
        return quotient
    condition = type_of(DType.BOOL, b.width)
    zero = writer.emit(f"icmp eq {b.typed}, {constant(0, b)}")
    return writer.emit(f"select {condition} {zero}, {b.type} {constant(0, b)}, {b.type} {quotient}")


def _floor_division(writer: FunctionWriter, op: str, a: Value, b: Value) -> str:
    divisor = _divisor(writer, a, b)
    zero = constant(0, a)
    remainder = writer.emit(f"srem {a.typed}, {divisor}")
    mixed = writer.emit(f"xor {a.type} {remainder}, {divisor}")
    signs_differ = writer.emit(f"icmp slt {a.type} {mixed}, {zero}")
    inexact = writer.emit(f"icmp ne {a.type} {remainder}, {zero}")
    condition = type_of(DType.BOOL, a.width)
    adjust = writer.emit(f"and {condition} {signs_differ}, {inexact}")
    if op == "mod":
        moved = writer.emit(f"add {a.type} {remainder}, {divisor}")
        return writer.emit(f"select {condition} {adjust}, {a.type} {moved}, {a.type} {remainder}")
    quotient = writer.emit(f"sdiv {a.typed}, {divisor}")
    lower = writer.emit(f"sub {a.type} {quotient}, {constant(1, a)}")
    floor = writer.emit(f"select {condition} {adjust}, {a.type} {lower}, {a.type} {quotient}")
    return _zero_where_undefined(writer, floor, b)


def _integer_power(writer: FunctionWriter, a: Value, b: Value) -> str:
    """a**b by squaring over the exponent's low 6 bits: larger powers of |a| > 1 overflow anyway."""
    one, zero = constant(1, a), constant(0, a)
    condition = type_of(DType.BOOL, a.width)
    result, base = one, a.text
    exponent = b.text
    for bit in range(6):
        shifted = writer.emit(f"lshr {b.type} {exponent}, {constant(bit, b)}")
        low = writer.emit(f"and {b.type} {shifted}, {constant(1, b)}")
        is_set = writer.emit(f"icmp ne {b.type} {low}, {constant(0, b)}")
        factor = writer.emit(f"select {condition} {is_set}, {a.type} {base}, {a.type} {one}")
        result = writer.emit(f"mul {a.type} {result}, {factor}")
        base = writer.emit(f"mul {a.type} {base}, {base}")
    if not b.dtype.is_signed:
        return result
    # A negative exponent leaves 1 and -1 as they are and takes everything else to 0.
    negative = writer.emit(f"icmp slt {b.typed}, {constant(0, b)}")
    magnitude = writer.emit(f"mul {a.typed}, {a.text}")
    is_unit = writer.emit(f"icmp eq {a.type} {magnitude}, {one}")
    inverse = writer.emit(f"select {condition} {is_unit}, {a.type} {result}, {a.type} {zero}")
    return writer.emit(f"select {condition} {negative}, {a.type} {inverse}, {a.type} {result}")


def cast(writer: FunctionWriter, x: Value, to: DType) -> Value:
    """`x` converted to `to`."""
    if x.dtype is to:
        return x
    target = type_of(to, x.width)
    if to is DType.BOOL:
        compare = "fcmp une" if x.dtype.is_float else "icmp ne"
        return Value(writer.emit(f"{compare} {x.typed}, {constant(0, x)}"), to, x.width)
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
