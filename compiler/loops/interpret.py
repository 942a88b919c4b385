"""The meaning of loop nests: a small interpreter, one scalar at a time, for tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from compiler.expr.combiners import COMBINERS
from compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Select,
    Unary,
)
from compiler.loops.ir import Allocate, For, If, Let, LoopNest, Stmt, Store, Update
from compiler.types.dtypes import DType
from compiler.types.tensor_type import Array

Scalar: TypeAlias = Any  # a NumPy scalar of a buffer's element type


def interpret(nest: LoopNest, inputs: Mapping[str, Array]) -> Array:
    """Run a nest over its inputs (packed where it says so); the output starts as NaN or ones.

    Indices out of range raise `IndexError`, also on the negative side; the other side of a select
    is not evaluated. Every loop runs in order, whatever its kind.
    """
    buffers = {memory.name: inputs[memory.name] for memory in nest.inputs}
    output = np.empty(nest.output.shape, nest.output.dtype.numpy)
    output[...] = np.nan if nest.output.dtype.is_float else 1
    buffers[nest.output.name] = output
    with np.errstate(all="ignore"):
        _Interpreter(buffers).run(nest.body, {})
    return output


class _Interpreter:
    def __init__(self, buffers: dict[str, Array]) -> None:
        self.buffers = buffers

    def run(self, body: tuple[Stmt, ...], env: dict[str, int]) -> None:
        for statement in body:
            match statement:
                case For(variable=variable, start=start, stop=stop, body=inner):
                    for value in range(start, stop):
                        self.run(inner, {**env, variable: value})
                case Let(variable=variable, value=value_expr, body=inner):
                    self.run(inner, {**env, variable: int(self.value(value_expr, env))})
                case If(condition=condition, body=inner):
                    if self.value(condition, env):
                        self.run(inner, env)
                case Allocate(memory=memory, body=inner):
                    fresh = np.full(memory.shape, 1, memory.dtype.numpy)
                    if memory.dtype.is_float:
                        fresh.fill(np.nan)
                    self.buffers[memory.name] = fresh
                    self.run(inner, env)
                    del self.buffers[memory.name]
                case Store(buffer=buffer, indices=indices, value=value_expr):
                    position = self._position(buffer, indices, env)
                    self.buffers[buffer][position] = self.value(value_expr, env)
                case Update(buffer=buffer, indices=indices, combiner=combiner, value=value_expr):
                    position = self._position(buffer, indices, env)
                    old = self.buffers[buffer][position]
                    new = self.value(value_expr, env)
                    self.buffers[buffer][position] = COMBINERS[combiner].array(old, new)

    def _position(
        self, buffer: str, indices: tuple[Expr, ...], env: dict[str, int]
    ) -> tuple[int, ...]:
        position = tuple(int(self.value(item, env)) for item in indices)
        shape = self.buffers[buffer].shape
        if any(not 0 <= i < extent for i, extent in zip(position, shape, strict=True)):
            raise IndexError(f"{buffer}{list(position)} of shape {list(shape)}")
        return position

    def value(self, expr: Expr, env: dict[str, int]) -> Scalar:
        match expr:
            case Const(dtype=dtype, value=value):
                return dtype.numpy.type(value)
            case Index(name=name):
                return np.int64(env[name])
            case Load(buffer=buffer, indices=indices):
                element: Scalar = self.buffers[buffer][self._position(buffer, indices, env)]
                return element
            case Unary(op=op, operand=operand):
                return _unary(op, self.value(operand, env))
            case Binary(op=op, left=left, right=right):
                return _binary(op, self.value(left, env), self.value(right, env))
            case Select(condition=condition, then=then, otherwise=otherwise):
                return self.value(then if self.value(condition, env) else otherwise, env)
            case Cast(dtype=dtype, operand=operand):
                return _cast(self.value(operand, env), dtype)
            case _:
                raise TypeError(f"not an expression: {expr!r}")


def _cast(value: Scalar, dtype: DType) -> Scalar:
    return np.asarray(value).astype(dtype.numpy)[()]


_MATH: dict[str, Callable[[float], float]] = {
    "erf": math.erf,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "acosh": np.arccosh,
    "asinh": np.arcsinh,
    "atanh": np.arctanh,
    "round": np.rint,
    "neg": lambda x: -x,
}


def _unary(op: str, x: Scalar) -> Scalar:
    if op == "not":
        return np.logical_not(x) if x.dtype == np.bool_ else np.invert(x)
    if op == "isnan":
        return np.isnan(x)
    function = _MATH.get(op) or getattr(np, op)
    return x.dtype.type(function(x))


def _truncated_division(a: Scalar, b: Scalar) -> Scalar:
    if a.dtype.kind == "f":
        return np.divide(a, b)
    quotient = abs(int(a)) // abs(int(b))
    sign = 1 if (int(a) < 0) == (int(b) < 0) else -1
    return a.dtype.type(sign * quotient)


_BINARY: dict[str, Callable[..., Scalar]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _truncated_division,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "fmod": np.fmod,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
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


def _binary(op: str, a: Scalar, b: Scalar) -> Scalar:
    return _BINARY[op](a, b)
