"""The meaning of each scalar operation on NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from compiler.types.dtypes import DType
from compiler.types.tensor_type import Array

_Values: TypeAlias = npt.NDArray[Any]

_erf_of_object = np.frompyfunc(math.erf, 1, 1)


def unary_function(op: str, operand: Array) -> Array:
    """`op(operand)` elementwise; the result has the operand's dtype (bool for isnan)."""
    return _UNARY[op](operand)


def binary_function(op: str, left: Array, right: Array) -> Array:
    """`left op right` elementwise, broadcast; integers wrap and division by zero gives 0."""
    return _BINARY[op](left, right)


def convert(operand: Array, dtype: DType) -> Array:
    """`operand` as `dtype`: floats are truncated toward zero, anything but 0 is true."""
    return operand.astype(dtype.numpy, copy=False)


def _one(x: _Values) -> _Values:
    return np.ones((), x.dtype)


def _erf(x: _Values) -> _Values:
    return np.asarray(_erf_of_object(x)).astype(x.dtype)


def _sigmoid(x: _Values) -> _Values:
    return np.asarray(_one(x) / (_one(x) + np.exp(-x)))


def _not(x: _Values) -> _Values:
    return np.asarray(np.invert(x))


def _divide(left: _Values, right: _Values) -> _Values:
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


_UNARY: Mapping[str, Callable[[_Values], _Values]] = {
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.asarray(_one(x) / np.sqrt(x)),
    "reciprocal": lambda x: np.asarray(_one(x) / x),
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": _sigmoid,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sign": np.sign,
    "not": _not,
    "isnan": np.isnan,
}

_BINARY: Mapping[str, Callable[[_Values, _Values], _Values]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "fmod": np.fmod,
    "max": np.maximum,
    "min": np.minimum,
    "pow": _power,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
