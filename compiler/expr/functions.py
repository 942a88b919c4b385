"""The scalar functions, one row each: all that is known of one is said here and nowhere else.

To add one, add its row: whatever types, evaluates, interprets, prints, emits or checks expressions
looks here. Functions of one operand are in UNARY, those of two (of one type) in BINARY.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.expr import arithmetic, exponentials, logarithms, powers, trigonometry
from tunefarm.compiler.expr.instructions import (
    Emit,
    Instructions,
    by_kind,
    in_f32,
    instruction,
    intrinsic,
    libm,
)
from tunefarm.compiler.types.dtypes import BOOLS, INTEGERS, WIDE, DType
from tunefarm.compiler.types.dtypes import WIDE_FLOATS as FLOATS
from tunefarm.compiler.types.dtypes import WIDE_NUMBERS as NUMBERS
from tunefarm.compiler.types.frozen import frozen

_Values: TypeAlias = npt.NDArray[Any]


@frozen
class Domain:
    """Values that an operand takes without harm: floats in low..high, integers in low..high - 1."""

    floats: tuple[float, float] | None = None
    integers: tuple[int, int] | None = None


@frozen
class Function:
    """A scalar function."""

    operands: frozenset[DType]  # the element types that it takes, the same for all operands
    evaluate: Callable[..., _Values]  # on NumPy arrays and scalars, broadcast
    emit: Emit
    result: DType | None = None  # of the operands' type, unless given
    infix: tuple[str, int] | None = None  # how it is printed between operands, and how tight
    expensive: bool = False  # rather stored than evaluated again
    positive: bool = False  # whatever the operands are
    domains: tuple[Domain | None, ...] = ()  # of the operands, where not all values do
    bitwise: bool = False  # of floats, too: denormal numbers stay what they are

    def problem(self, operand: DType, result: DType) -> str:
        """What is wrong with these types; empty when nothing is."""
        if operand not in self.operands:
            return f"of {operand}"
        return "" if result is (self.result or operand) else f"of {operand} as {result}"


# --- the meaning of functions that NumPy has not, or means otherwise ----------------------------

_erf_of_object = np.frompyfunc(math.erf, 1, 1)


def _one(x: _Values) -> _Values:
    return np.ones((), x.dtype)


def _erf(x: _Values) -> _Values:
    return np.asarray(_erf_of_object(x)).astype(x.dtype)


def _divide(left: _Values, right: _Values) -> _Values:
    """True division of floats; integers are truncated toward zero, and division by zero gives 0."""
    if left.dtype.kind == "f":
        return np.asarray(left / right)
    quotient = left // right
    if left.dtype.kind == "u":
        return np.asarray(quotient)
    # NumPy rounds toward minus infinity: one too low where the signs differ and a rest remains.
    rest = (quotient * right != left) & ((left < 0) != (right < 0)) & (right != 0)
    return np.asarray(quotient + rest.astype(left.dtype))


def _power(left: _Values, right: _Values) -> _Values:
    if left.dtype.kind == "f":
        return np.asarray(np.power(left, right))
    wide = np.power(left.astype(np.float64), right.astype(np.float64))
    return np.asarray(wide.astype(left.dtype))


# --- the rows -----------------------------------------------------------------------------------


def _expensive(
    evaluate: Callable[..., _Values], emit: Emit, *domains: Domain, positive: bool = False
) -> Function:
    """A function of floats that takes many instructions, or a call."""
    return Function(FLOATS, evaluate, emit, expensive=True, positive=positive, domains=domains)


_POSITIVE = Domain((0.25, 1.0))
_INSIDE_ONE = Domain((-0.75, 0.75))

UNARY: Mapping[str, Function] = {
    "neg": Function(
        NUMBERS,
        np.negative,
        by_kind(instruction("fneg"), arithmetic.negate_integer),
        bitwise=True,
    ),
    "abs": Function(
        NUMBERS,
        np.abs,
        by_kind(intrinsic("llvm.fabs"), arithmetic.integer_magnitude),
        positive=True,
        bitwise=True,
    ),
    "sign": Function(NUMBERS, np.sign, arithmetic.sign),
    "not": Function(INTEGERS | BOOLS, np.invert, lambda m, x: m.emit("xor", x, m.constant(-1))),
    "isnan": Function(FLOATS, np.isnan, lambda m, x: m.compare("uno", x, x), result=DType.BOOL),
    "bits": Function(
        frozenset((DType.F32,)),
        lambda x: np.asarray(x).view(np.int32),
        lambda m, x: m.convert("bitcast", x, DType.I32),
        result=DType.I32,
        bitwise=True,
    ),
    "of_bits": Function(
        frozenset((DType.I32,)),
        lambda x: np.asarray(x).view(np.float32),
        lambda m, x: m.convert("bitcast", x, DType.F32),
        result=DType.F32,
        bitwise=True,
    ),
    "bits64": Function(
        frozenset((DType.F64,)),
        lambda x: np.asarray(x).view(np.int64),
        lambda m, x: m.convert("bitcast", x, DType.I64),
        result=DType.I64,
        bitwise=True,
    ),
    "of_bits64": Function(
        frozenset((DType.I64,)),
        lambda x: np.asarray(x).view(np.float64),
        lambda m, x: m.convert("bitcast", x, DType.F64),
        result=DType.F64,
        bitwise=True,
    ),
    "floor": Function(FLOATS, np.floor, intrinsic("llvm.floor")),
    "ceil": Function(FLOATS, np.ceil, intrinsic("llvm.ceil")),
    "round": Function(FLOATS, np.rint, intrinsic("llvm.rint")),
    "sqrt": Function(FLOATS, np.sqrt, intrinsic("llvm.sqrt"), domains=(_POSITIVE,)),
    "rsqrt": Function(
        FLOATS,
        lambda x: np.asarray(_one(x) / np.sqrt(x)),
        arithmetic.reciprocal_root,
        domains=(_POSITIVE,),
    ),
    "reciprocal": Function(
        FLOATS, lambda x: np.asarray(_one(x) / x), arithmetic.reciprocal, domains=(_POSITIVE,)
    ),
    "exp": _expensive(np.exp, exponentials.exp, positive=True),
    "exp_nonpositive": _expensive(
        np.exp,
        in_f32(exponentials.exp_nonpositive, exponentials.exp),
        Domain((-16.0, 0.0)),
        positive=True,
    ),
    "expm1": _expensive(np.expm1, exponentials.exp_minus_one),
    "log": _expensive(np.log, logarithms.log, _POSITIVE),
    "tanh": _expensive(np.tanh, exponentials.tanh),
    "tanh_rational": _expensive(np.tanh, in_f32(exponentials.tanh_rational, exponentials.tanh)),
    "erf": _expensive(_erf, in_f32(exponentials.erf, libm("erf"))),
    "sigmoid": _expensive(
        lambda x: np.asarray(_one(x) / (_one(x) + np.exp(-x))),
        exponentials.sigmoid,
        positive=True,
    ),
    "softplus": _expensive(
        lambda x: np.asarray(np.logaddexp(x, np.zeros((), x.dtype))),
        in_f32(exponentials.softplus, arithmetic.softplus),
        positive=True,
    ),
    "sin": _expensive(np.sin, trigonometry.sin),
    "cos": _expensive(np.cos, trigonometry.cos),
    "tan": _expensive(np.tan, in_f32(trigonometry.tan, libm("tan"))),
    "asin": _expensive(np.arcsin, in_f32(trigonometry.asin, libm("asin")), _INSIDE_ONE),
    "acos": _expensive(np.arccos, in_f32(trigonometry.acos, libm("acos")), _INSIDE_ONE),
    "atan": _expensive(np.arctan, in_f32(trigonometry.atan, libm("atan"))),
    "sinh": _expensive(np.sinh, exponentials.sinh),
    "cosh": _expensive(np.cosh, exponentials.cosh, positive=True),
    "asinh": _expensive(np.arcsinh, in_f32(logarithms.asinh, libm("asinh"))),
    "acosh": _expensive(np.arccosh, in_f32(logarithms.acosh, libm("acosh")), Domain((1.0, 2.0))),
    "atanh": _expensive(np.arctanh, in_f32(logarithms.atanh, libm("atanh")), _INSIDE_ONE),
}

_DIVISION = (None, Domain((0.25, 1.0), (1, 8)))
_SHIFT = (None, Domain(integers=(1, 8)))


def _comparison(evaluate: np.ufunc, relation: str, symbol: str) -> Function:
    def emit(m: Instructions, left: str, right: str) -> str:
        return m.compare(relation, left, right)

    return Function(WIDE, evaluate, emit, DType.BOOL, (symbol, 3))


BINARY: Mapping[str, Function] = {
    "add": Function(
        NUMBERS, np.add, by_kind(instruction("fadd"), instruction("add")), infix=("+", 5)
    ),
    "sub": Function(
        NUMBERS, np.subtract, by_kind(instruction("fsub"), instruction("sub")), infix=("-", 5)
    ),
    "mul": Function(
        NUMBERS, np.multiply, by_kind(instruction("fmul"), instruction("mul")), infix=("*", 6)
    ),
    # div: true division for floats, truncation toward zero for integers. floordiv and mod round
    # toward minus infinity (Python's), fmod truncates (C's).
    "div": Function(
        NUMBERS,
        _divide,
        by_kind(instruction("fdiv"), arithmetic.truncated_quotient),
        infix=("/", 6),
        domains=_DIVISION,
    ),
    "floordiv": Function(
        NUMBERS,
        np.floor_divide,
        by_kind(arithmetic.floor_quotient, arithmetic.integer_floor_quotient),
        infix=("//", 6),
        domains=_DIVISION,
    ),
    "mod": Function(
        NUMBERS,
        np.mod,
        by_kind(arithmetic.float_modulo, arithmetic.integer_modulo),
        infix=("%", 6),
        domains=_DIVISION,
    ),
    "fmod": Function(
        NUMBERS,
        np.fmod,
        by_kind(arithmetic.float_remainder, arithmetic.truncated_remainder),
        domains=_DIVISION,
    ),
    "max": Function(NUMBERS, np.maximum, arithmetic.extreme("llvm.maximum", "gt")),
    "min": Function(NUMBERS, np.minimum, arithmetic.extreme("llvm.minimum", "lt")),
    "pow": Function(
        NUMBERS,
        _power,
        by_kind(powers.power, arithmetic.integer_power),
        expensive=True,
        domains=(_POSITIVE, None),
    ),
    "and": Function(INTEGERS | BOOLS, np.bitwise_and, instruction("and"), infix=("and", 2)),
    "or": Function(INTEGERS | BOOLS, np.bitwise_or, instruction("or"), infix=("or", 1)),
    "xor": Function(INTEGERS | BOOLS, np.bitwise_xor, instruction("xor")),
    "shl": Function(
        INTEGERS, np.left_shift, arithmetic.shift(left=True), infix=("<<", 4), domains=_SHIFT
    ),
    "shr": Function(
        INTEGERS, np.right_shift, arithmetic.shift(left=False), infix=(">>", 4), domains=_SHIFT
    ),
    "eq": _comparison(np.equal, "eq", "=="),
    "ne": _comparison(np.not_equal, "ne", "!="),
    "lt": _comparison(np.less, "lt", "<"),
    "le": _comparison(np.less_equal, "le", "<="),
    "gt": _comparison(np.greater, "gt", ">"),
    "ge": _comparison(np.greater_equal, "ge", ">="),
}
