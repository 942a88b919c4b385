"""Tensor expressions: scalar expressions over loads, and stages that fill a tensor with one.

Index arithmetic and value arithmetic share one expression language; an index is an `i64`
expression over `Index` nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from tunefarm.compiler.expr.functions import BINARY, UNARY
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen


@frozen
class Expr:
    """Base of scalar expressions; `dtype` is the element type of its value."""

    dtype: DType


@frozen
class Const(Expr):
    """A literal."""

    value: int | float | bool


@frozen
class Index(Expr):
    """The value of an axis (or, in loops, of a loop variable), an i64."""

    name: str


@frozen
class Load(Expr):
    """An element of a buffer or of another stage's result."""

    buffer: str
    indices: tuple[Expr, ...]


@frozen
class Unary(Expr):
    """A function of one operand, a row of UNARY."""

    op: str
    operand: Expr


@frozen
class Binary(Expr):
    """A function of two operands of one type, a row of BINARY."""

    op: str
    left: Expr
    right: Expr


@frozen
class Select(Expr):
    """`then` where `condition` holds, else `otherwise`; the side not taken is not evaluated."""

    condition: Expr
    then: Expr
    otherwise: Expr


@frozen
class Cast(Expr):
    """Conversion to `dtype` (float to integer truncates toward zero; anything to bool is != 0)."""

    operand: Expr


def const(value: int | float | bool, dtype: DType) -> Const:
    """A literal of `dtype`; the value is stored as a Python bool, int or float accordingly.

    Raises ValueError for a number that its elements cannot be.
    """
    if not dtype.has(value):
        raise ValueError(f"{value} is no {dtype}")
    if dtype is DType.BOOL:
        return Const(dtype, bool(value))
    return Const(dtype, float(value) if dtype.is_float else int(value))


def integer(value: int) -> Const:
    """An i64 literal, as used in indices."""
    return Const(DType.I64, value)


def index(name: str) -> Index:
    """The value of axis `name`."""
    return Index(DType.I64, name)


def unary(op: str, operand: Expr) -> Expr:
    """`op(operand)`."""
    return Unary(UNARY[op].result or operand.dtype, op, operand)


def binary(op: str, left: Expr, right: Expr) -> Expr:
    """`left op right`; folds integer literals and neutral elements so that indices stay small."""
    if left.dtype is not right.dtype:
        raise TypeError(f"{op}: operands have types {left.dtype} and {right.dtype}")
    if left.dtype is DType.I64:
        folded = _fold_index(op, left, right)
        if folded is not None:
            return folded
    return Binary(BINARY[op].result or left.dtype, op, left, right)


def _fold_index(op: str, left: Expr, right: Expr) -> Expr | None:
    if isinstance(right, Const):
        b = int(right.value)
        if isinstance(left, Const) and op in _EXACT and (b or op in ("add", "sub", "mul")):
            return integer(_EXACT[op](int(left.value), b))
        if b == _NEUTRAL.get(op):
            return left
        if (b == 0 and op == "mul") or (b == 1 and op == "mod"):
            return integer(0)
    elif isinstance(left, Const) and op in ("add", "mul"):
        if left.value == _NEUTRAL[op]:
            return right
        if left.value == 0:
            return integer(0)
    return None


_EXACT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
}
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "floordiv": 1}  # on the right


def add(left: Expr, right: Expr) -> Expr:
    """left + right."""
    return binary("add", left, right)


def sub(left: Expr, right: Expr) -> Expr:
    """left - right."""
    return binary("sub", left, right)


def mul(left: Expr, right: Expr) -> Expr:
    """left * right."""
    return binary("mul", left, right)


def select(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    """`then` where `condition` (bool) holds, else `otherwise`."""
    return Select(then.dtype, condition, then, otherwise)


def cast(dtype: DType, operand: Expr) -> Expr:
    """`operand` converted to `dtype`."""
    return operand if operand.dtype is dtype else Cast(dtype, operand)


def stored_as(dtype: DType, operand: Expr) -> Expr:
    """`operand`, of the wide type of `dtype`, rounded to what is stored.

    Where it only is what was stored elsewhere, or one of such values, nothing is converted.
    """
    found = _as_stored(dtype, operand, {})
    return cast(dtype, operand) if found is None else found


def _as_stored(dtype: DType, expr: Expr, known: dict[int, Expr | None]) -> Expr | None:
    """The expression without a conversion of its own; None where there is none."""
    if expr.dtype is dtype:
        return expr
    if isinstance(expr, Const):
        return const(expr.value, dtype)
    if isinstance(expr, Cast):
        return expr.operand if expr.operand.dtype is dtype and expr.dtype.holds(dtype) else None
    if not isinstance(expr, Select):
        return None
    if id(expr) not in known:
        then = _as_stored(dtype, expr.then, known)
        otherwise = None if then is None else _as_stored(dtype, expr.otherwise, known)
        if then is None or otherwise is None:
            known[id(expr)] = None
        else:
            known[id(expr)] = select(expr.condition, then, otherwise)
    return known[id(expr)]


def all_of(*conditions: Expr) -> Expr:
    """The conjunction of bool expressions; true when there are none."""
    if not conditions:
        return Const(DType.BOOL, True)
    result = conditions[0]
    for condition in conditions[1:]:
        result = Binary(DType.BOOL, "and", result, condition)
    return result
