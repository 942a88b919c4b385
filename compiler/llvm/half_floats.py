"""Arithmetic on f16 itself, on targets that compute in it: AVX512-FP16, and 64-bit Arm's FP16.

f16(f32(a) op f32(b)) is what one instruction on f16 gives, to the bit: f32 has two digits more than
twice those of f16, so that rounding twice is rounding once, for +, -, *, / and roots (Figueroa,
When is double rounding innocuous?, 1995). A product that nothing rounds before it is added makes a
fused multiply-add, which rounds once where f32 would round twice.

Where the factors of a sum in f32 are f16, 64-bit Arm's FMLAL widens, multiplies and adds in one
instruction, as exactly as the conversions and the multiply-add that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tunefarm.compiler.expr.instructions import literal, type_of
from tunefarm.compiler.expr.nodes import Binary, Cast, Const, Expr, Unary
from tunefarm.compiler.llvm.shuffles import shuffle
from tunefarm.compiler.llvm.writer import FunctionWriter, Value
from tunefarm.compiler.types.dtypes import DType

_EXACT_UNARY = ("neg", "abs")
_EXACT_BINARY = {"max": "llvm.maximum", "min": "llvm.minimum"}
_ROUNDED = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_WIDENED = 4  # sums that FMLAL adds to; the instruction reads as many of 8 factors


class HalfEmitter:
    """Emits what is computed in f32 and rounded to f16, in f16, where the result is the same.

    `value` gives the value of an expression, `common` scalars and vectors of one width.
    """

    def __init__(
        self,
        writer: FunctionWriter,
        value: Callable[[Expr], Value],
        common: Callable[..., tuple[Value, ...]],
    ) -> None:
        self._writer, self._value, self._common = writer, value, common

    def rounded(self, expr: Expr) -> Value | None:
        """An expression of f32, rounded to f16; None where only f32 gives the same, or no less."""
        return self._emit(expr) if _is_rounded_once(expr) else None

    def _emit(self, expr: Expr) -> Value:
        match expr:
            case Cast(operand=operand):
                return self._value(operand)
            case Const(value=value):
                return Value(literal(value, DType.F16), DType.F16, 0)
            case Unary(op=op, operand=operand):
                return self._unary(op, self._emit(operand))
            case Binary(op="add", left=Binary(op="mul") as product, right=other):
                return self._fused(product, self._emit(other))
            case Binary(op="add", left=other, right=Binary(op="mul") as product):
                return self._fused(product, self._emit(other))
            case Binary(op="sub", left=Binary(op="mul") as product, right=other):
                return self._fused(product, self._unary("neg", self._emit(other)))
            case Binary(op=op, left=left, right=right):
                return self._binary(op, *self._common(self._emit(left), self._emit(right)))
        raise AssertionError(f"{expr} is not computed in f16")

    def _unary(self, op: str, x: Value) -> Value:
        if op == "neg":
            return self._made(f"fneg {self._half(x)}", x.width)
        return self._called({"abs": "llvm.fabs", "sqrt": "llvm.sqrt"}[op], x)

    def _binary(self, op: str, a: Value, b: Value) -> Value:
        if op in _EXACT_BINARY:
            return self._called(_EXACT_BINARY[op], a, b, flags="nsz ")
        left, right = self._half(a), self._half(b).rsplit(" ", 1)[1]
        return self._made(f"{_ROUNDED[op]} {left}, {right}", a.width)

    def _fused(self, product: Binary, other: Value) -> Value:
        factors = (self._emit(product.left), self._emit(product.right))
        return self._called("llvm.fma", *self._common(*factors, other))

    def _called(self, name: str, *operands: Value, flags: str = "") -> Value:
        width = operands[0].width
        suffix = f"v{width}f16" if width else "f16"
        text = self._writer.intrinsic(
            f"{name}.{suffix}", _type(width), [self._half(x) for x in operands], flags
        )
        return self._bits(text, width)

    def _made(self, operation: str, width: int) -> Value:
        return self._bits(self._writer.emit(operation), width)

    def _half(self, x: Value) -> str:
        """The operand in LLVM's own type."""
        name = self._writer.emit(f"bitcast {x.typed} to {_type(x.width)}")
        return f"{_type(x.width)} {name}"

    def _bits(self, text: str, width: int) -> Value:
        to = type_of(DType.F16, width)
        return Value(self._writer.emit(f"bitcast {_type(width)} {text} to {to}"), DType.F16, width)


def _type(width: int) -> str:
    return f"<{width} x half>" if width else "half"


def _is_exact(expr: Expr) -> bool:
    """Its value is one of f16."""
    match expr:
        case Cast(operand=operand):
            return operand.dtype is DType.F16
        case Const(value=value):
            return bool(np.isfinite(np.float16(value))) and float(np.float16(value)) == value
        case Unary(op=op, operand=operand):
            return op in _EXACT_UNARY and _is_exact(operand)
        case Binary(op=op, left=left, right=right):
            return op in _EXACT_BINARY and _is_exact(left) and _is_exact(right)
    return False


def _is_product(expr: Expr) -> bool:
    """A product of values of f16, as f32: exact."""
    if not isinstance(expr, Binary) or expr.op != "mul":
        return False
    return _is_exact(expr.left) and _is_exact(expr.right)


def _is_rounded_once(expr: Expr) -> bool:
    """One operation, or a product and a sum, on values of f16; then what rounding leaves alone."""
    match expr:
        case Unary(op="sqrt", operand=operand):
            return _is_exact(operand)
        case Unary(op=op, operand=operand):
            return op in _EXACT_UNARY and (_is_exact(operand) or _is_rounded_once(operand))
        case Binary(op=op, left=left, right=right) if op in _EXACT_BINARY:
            return all(_is_exact(side) or _is_rounded_once(side) for side in (left, right))
        case Binary(op=op, left=left, right=right) if op in _ROUNDED:
            if _is_exact(left) and _is_exact(right):
                return True
            if op == "add" and _is_exact(left):
                return _is_product(right)
            return op in ("add", "sub") and _is_product(left) and _is_exact(right)
    return False


def widened_sum(
    writer: FunctionWriter, value: Callable[[Expr], Value], product: tuple[Expr, Expr], old: Value
) -> Value | None:
    """`old` with a product of f16 added, by FMLAL; None where the factors are of other types."""
    if old.dtype is not DType.F32 or old.width != _WIDENED:
        return None
    factors = []
    for side in product:
        if not isinstance(side, Cast) or side.operand.dtype is not DType.F16:
            return None
        factors.append(side.operand)
    half, operands = _type(2 * _WIDENED), [old.typed]
    for factor in factors:
        narrow = value(factor)
        order = [i if i < _WIDENED else None for i in range(2 * _WIDENED)]
        whole = shuffle(writer, narrow, narrow, order)
        operands.append(f"{half} {writer.emit(f'bitcast {whole.typed} to {half}')}")
    text = writer.intrinsic("llvm.aarch64.neon.fmlal.v4f32.v8f16", old.type, operands)
    return Value(text, DType.F32, _WIDENED)
