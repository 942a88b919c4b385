"""The meaning of loop nests: a small interpreter, one scalar at a time, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tunefarm.compiler.expr.combiners import COMBINERS
from tunefarm.compiler.expr.functions import BINARY, UNARY
from tunefarm.compiler.expr.nodes import (
    Binary,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Select,
    Unary,
    integer,
)
from tunefarm.compiler.loops.ir import (
    Allocate,
    Carry,
    Dot,
    For,
    If,
    Let,
    LoopNest,
    Stmt,
    Store,
    TileDot,
    TileLoad,
    TileStmt,
    TileStore,
    TileZero,
    Update,
)
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.tensor_type import Array

Scalar: TypeAlias = Any  # a NumPy scalar of a buffer's element type


def interpret(nest: LoopNest, inputs: Mapping[str, Array]) -> Array:
    """Run a nest over its inputs (packed where it reads them so); the output starts as NaN or ones.

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


def value_of(expr: Expr, buffers: Mapping[str, Array], env: Mapping[str, int]) -> Scalar:
    """The value of an expression, of these buffers and variables."""
    with np.errstate(all="ignore"):
        return _Interpreter(dict(buffers)).value(expr, dict(env))


class _Interpreter:
    def __init__(self, buffers: dict[str, Array]) -> None:
        self.buffers = buffers

    def run(self, body: tuple[Stmt, ...], env: dict[str, int]) -> None:
        for statement in body:
            match statement:
                case For(variable=variable, start=start, stop=stop, body=inner):
                    if statement.limit is not None:
                        stop = min(stop, int(self.value(statement.limit, env)))
                    if statement.begins is not None:
                        start = max(start, int(self.value(statement.begins, env)))
                    for value in range(start, stop):
                        self.run(inner, {**env, variable: value})
                case Let(variable=variable, value=value_expr, body=inner):
                    self.run(inner, {**env, variable: int(self.value(value_expr, env))})
                case If(condition=condition, body=inner, elsewhere=elsewhere):
                    if elsewhere or self.value(condition, env):
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
                case Update():
                    self._update(statement, env)
                case Dot():
                    self._dot(statement, env)
                case TileZero() | TileLoad() | TileDot() | TileStore():
                    self._tile(statement, env)
                case Carry(buffer=buffer, indices=indices, update=update, exclusive=exclusive):
                    before, after = self._update(update, env)
                    position = self._position(buffer, indices, env)
                    self.buffers[buffer][position] = before if exclusive else after

    def _update(self, statement: Update, env: dict[str, int]) -> tuple[Scalar, Scalar]:
        """Run the update; what it found, and what it left."""
        buffer = self.buffers[statement.buffer]
        position = self._position(statement.buffer, statement.indices, env)
        before: Scalar = buffer[position]
        combine = COMBINERS[statement.combiner].array
        buffer[position] = combine(before, self.value(statement.value, env))
        return before, buffer[position]

    def _dot(self, statement: Dot, env: dict[str, int]) -> None:
        buffer = self.buffers[statement.buffer]
        position = self._position(statement.buffer, statement.indices, env)
        for value in range(statement.count):
            inner = {**env, statement.variable: value}
            left, right = (self.value(side, inner) for side in (statement.left, statement.right))
            buffer[position] += left.astype(buffer.dtype) * right.astype(buffer.dtype)

    def _tile(self, statement: TileStmt, env: dict[str, int]) -> None:
        match statement:
            case TileZero(buffer=buffer, indices=indices):
                self._held(buffer, indices, env)[...] = 0
            case TileLoad(source=source, stride=stride):
                tile = self._held(statement.buffer, statement.indices, env)
                tile[...] = self._rows(source, stride, tile.shape, env)
            case TileStore(source=source, stride=stride):
                tile = self._held(source.buffer, source.indices, env)
                target = Load(source.dtype, statement.buffer, statement.indices)
                self._rows(target, stride, tile.shape, env)[...] = tile
            case TileDot(left=left, right=right):
                total = self._held(statement.buffer, statement.indices, env)
                factors = self._held(left.buffer, left.indices, env).astype(total.dtype)
                pairs = self._held(right.buffer, right.indices, env).astype(total.dtype)
                terms = 4 // left.dtype.bytes
                by_step = pairs.reshape(len(pairs), -1, terms).swapaxes(1, 2)
                products = np.matmul(factors, by_step.reshape(-1, total.shape[1]))
                np.add(total, products, out=total)

    def _held(self, buffer: str, indices: tuple[Expr, ...], env: dict[str, int]) -> Array:
        """The rows and columns of a tile."""
        zero = integer(0)
        held: Array = self.buffers[buffer][self._position(buffer, (*indices, zero, zero), env)[:-2]]
        return held

    def _rows(self, first: Load, stride: int, shape: tuple[int, ...], env: dict[str, int]) -> Array:
        """A view of rows of a buffer, of which an element is the first."""
        buffer = self.buffers[first.buffer]
        begin = np.ravel_multi_index(self._position(first.buffer, first.indices, env), buffer.shape)
        flat = buffer.reshape(-1)[begin:]
        rows, columns = shape
        if (rows - 1) * stride + columns > flat.size:
            raise IndexError(f"rows of {first.buffer} from element {begin} on")
        strides = (stride * buffer.itemsize, buffer.itemsize)
        return np.lib.stride_tricks.as_strided(flat, shape, strides)

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
                return UNARY[op].evaluate(self.value(operand, env))[()]
            case Binary(op=op, left=left, right=right):
                return BINARY[op].evaluate(self.value(left, env), self.value(right, env))[()]
            case Select(condition=condition, then=then, otherwise=otherwise):
                return self.value(then if self.value(condition, env) else otherwise, env)
            case Cast(dtype=dtype, operand=operand):
                return converted(np.asarray(self.value(operand, env)), dtype)[()]
            case _:
                raise TypeError(f"not an expression: {expr!r}")
