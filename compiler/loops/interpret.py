"""The meaning of loop nests: a small interpreter, one scalar at a time, for tests.

Each statement and each expression becomes a function of the variables once, however often it runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
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
    Body,
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
_Variables: TypeAlias = dict[str, int]
_Run: TypeAlias = Callable[[_Variables], object]
_Value: TypeAlias = Callable[[_Variables], Scalar]
_Number: TypeAlias = Callable[[_Variables], int]
_Position: TypeAlias = Callable[[_Variables], tuple[int, ...]]
_EXACT: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}
"""Of indices, on integers of Python: none is as large that it wraps."""


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
        _Interpreter(buffers).body(nest.body)({})
    return output


def value_of(expr: Expr, buffers: Mapping[str, Array], env: Mapping[str, int]) -> Scalar:
    """The value of an expression, of these buffers and variables."""
    with np.errstate(all="ignore"):
        return _Interpreter(dict(buffers)).value(expr)(dict(env))


class _Interpreter:
    """Makes functions that read and write `buffers`."""

    def __init__(self, buffers: dict[str, Array]) -> None:
        self.buffers = buffers

    def body(self, statements: Body) -> _Run:
        runs = [self._statement(statement) for statement in statements]

        def run(env: _Variables) -> None:
            for each in runs:
                each(env)

        return runs[0] if len(runs) == 1 else run

    def _statement(self, statement: Stmt) -> _Run:
        match statement:
            case For():
                return self._loop(statement)
            case Let(variable=variable, value=value, body=inner):
                number, run = self._number(value), self.body(inner)
                return lambda env: run({**env, variable: number(env)})
            case If(condition=condition, body=inner, elsewhere=elsewhere):
                run, holds = self.body(inner), self.value(condition)
                return run if elsewhere else lambda env: run(env) if holds(env) else None
            case Allocate():
                return self._allocate(statement)
            case Store(buffer=buffer, indices=indices, value=stored):
                return self._store(buffer, indices, self.value(stored))
            case Update():
                return self._update(statement)
            case Dot():
                return self._dot(statement)
            case Carry(buffer=buffer, indices=indices, update=carried, exclusive=exclusive):
                update = self._update(carried)
                return self._store(buffer, indices, lambda env: update(env)[not exclusive])
            case TileZero() | TileLoad() | TileDot() | TileStore():
                return self._tile(statement)
            case _:
                raise TypeError(f"not a statement: {statement!r}")

    def _loop(self, loop: For) -> _Run:
        run, variable = self.body(loop.body), loop.variable
        begins, limit = (
            None if bound is None else self._number(bound) for bound in (loop.begins, loop.limit)
        )

        def loop_over(env: _Variables) -> None:
            start = loop.start if begins is None else max(loop.start, begins(env))
            stop = loop.stop if limit is None else min(loop.stop, limit(env))
            inner = dict(env)
            for inner[variable] in range(start, stop):
                run(inner)

        return loop_over

    def _allocate(self, statement: Allocate) -> _Run:
        memory, run = statement.memory, self.body(statement.body)

        def allocate(env: _Variables) -> None:
            fresh = np.full(memory.shape, 1, memory.dtype.numpy)
            if memory.dtype.is_float:
                fresh.fill(np.nan)
            self.buffers[memory.name] = fresh
            run(env)
            del self.buffers[memory.name]

        return allocate

    def _store(self, buffer: str, indices: tuple[Expr, ...], value: _Value) -> _Run:
        position = self._position(buffer, indices)

        def store(env: _Variables) -> None:
            stored, place = value(env), position(env)
            self.buffers[buffer][place] = stored

        return store

    def _update(self, statement: Update) -> Callable[[_Variables], tuple[Scalar, Scalar]]:
        """What the place held, and what it holds then."""
        position = self._position(statement.buffer, statement.indices)
        value, combine = self.value(statement.value), COMBINERS[statement.combiner].array

        def update(env: _Variables) -> tuple[Scalar, Scalar]:
            buffer, place = self.buffers[statement.buffer], position(env)
            before: Scalar = buffer[place]
            buffer[place] = combine(before, value(env))
            return before, buffer[place]

        return update

    def _dot(self, statement: Dot) -> _Run:
        position = self._position(statement.buffer, statement.indices)
        left, right = self.value(statement.left), self.value(statement.right)
        variable, count = statement.variable, statement.count

        def dot(env: _Variables) -> None:
            buffer, place, inner = self.buffers[statement.buffer], position(env), dict(env)
            for inner[variable] in range(count):
                factors = left(inner).astype(buffer.dtype), right(inner).astype(buffer.dtype)
                buffer[place] += factors[0] * factors[1]

        return dot

    def _tile(self, statement: TileStmt) -> _Run:
        held = self._held(statement.source if isinstance(statement, TileStore) else statement)
        match statement:
            case TileZero():
                return lambda env: held(env).fill(0)
            case TileLoad(source=source, stride=stride):
                rows = self._rows(source, stride)
                return lambda env: np.copyto(tile := held(env), rows(env, tile.shape))
            case TileStore(source=source, buffer=buffer, indices=indices, stride=stride):
                rows = self._rows(Load(source.dtype, buffer, indices), stride)
                return lambda env: np.copyto(rows(env, (tile := held(env)).shape), tile)
            case TileDot(left=left, right=right):
                return _tile_dot(held, self._held(left), self._held(right), 4 // left.dtype.bytes)

    def _held(self, of: Load | TileZero | TileLoad | TileDot) -> Callable[[_Variables], Array]:
        """The rows and columns of a tile."""
        zero = integer(0)
        position = self._position(of.buffer, (*of.indices, zero, zero))
        return lambda env: self.buffers[of.buffer][position(env)[:-2]]

    def _rows(self, first: Load, stride: int) -> Callable[[_Variables, tuple[int, ...]], Array]:
        """A view of rows of a buffer, of which an element is the first."""
        position = self._position(first.buffer, first.indices)

        def rows_of(env: _Variables, shape: tuple[int, ...]) -> Array:
            buffer = self.buffers[first.buffer]
            begin = np.ravel_multi_index(position(env), buffer.shape)
            flat = buffer.reshape(-1)[begin:]
            rows, columns = shape
            if (rows - 1) * stride + columns > flat.size:
                raise IndexError(f"rows of {first.buffer} from element {begin} on")
            strides = (stride * buffer.itemsize, buffer.itemsize)
            return np.lib.stride_tricks.as_strided(flat, shape, strides)

        return rows_of

    def _position(self, buffer: str, indices: tuple[Expr, ...]) -> _Position:
        numbers = [self._number(item) for item in indices]

        def position(env: _Variables) -> tuple[int, ...]:
            found, shape = tuple([number(env) for number in numbers]), self.buffers[buffer].shape
            for i, extent in zip(found, shape, strict=True):
                if not 0 <= i < extent:
                    raise IndexError(f"{buffer}{list(found)} of shape {list(shape)}")
            return found

        return position

    def _number(self, expr: Expr) -> _Number:
        """The value of an integer."""
        match expr:
            case Const(value=constant):
                number = int(constant)
                return lambda env: number
            case Index(name=name):
                return operator.itemgetter(name)
            case Binary(op=op, left=left, right=right) if op in _EXACT:
                exact, first, second = _EXACT[op], self._number(left), self._number(right)
                return lambda env: exact(first(env), second(env))
            case _:
                value = self.value(expr)
                return lambda env: int(value(env))

    def value(self, expr: Expr) -> _Value:
        match expr:
            case Const(dtype=dtype, value=constant):
                scalar = dtype.numpy.type(constant)
                return lambda env: scalar
            case Index(name=name):
                return lambda env: np.int64(env[name])
            case Load(buffer=buffer, indices=indices):
                position = self._position(buffer, indices)
                return lambda env: self.buffers[buffer][position(env)]
            case Unary(op=op, operand=operand):
                function, of = UNARY[op].evaluate, self.value(operand)
                return lambda env: function(of(env))[()]
            case Binary(op=op, left=left, right=right):
                function, first, second = BINARY[op].evaluate, self.value(left), self.value(right)
                return lambda env: function(first(env), second(env))[()]
            case Select(condition=condition, then=then, otherwise=otherwise):
                holds, first, second = map(self.value, (condition, then, otherwise))
                return lambda env: first(env) if holds(env) else second(env)
            case Cast(dtype=dtype, operand=operand):
                of = self.value(operand)
                return lambda env: converted(np.asarray(of(env)), dtype)[()]
            case _:
                raise TypeError(f"not an expression: {expr!r}")


def _tile_dot(
    held: Callable[[_Variables], Array],
    left: Callable[[_Variables], Array],
    right: Callable[[_Variables], Array],
    terms: int,
) -> _Run:
    """Sums of so many products at a time."""

    def dot(env: _Variables) -> None:
        total = held(env)
        pairs = right(env).astype(total.dtype)
        by_step = pairs.reshape(len(pairs), -1, terms).swapaxes(1, 2)
        products = np.matmul(left(env).astype(total.dtype), by_step.reshape(-1, total.shape[1]))
        np.add(total, products, out=total)

    return dot
