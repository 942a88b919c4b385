"""NodeEmitter: what converters write graphs with, dynamic sizes as values among it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from functools import reduce

import numpy as np

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.frontend.run_time_sizes import MOST_SIZES, RunTimeSizes, symbols_text
from tunefarm.compiler.frontend.value import Sizes, Value
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.signature import SIZES, ResultSource
from tunefarm.compiler.types.sizes import Atom, Dimension, Size, Symbol, static_shape, symbols_of
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType


class NodeEmitter(ABC):
    """Shorthands for nodes of a graph under construction: those that only move elements, and those
    that read sizes.

    Constants stay constants, and nothing is emitted for what changes nothing. The sizes of a model
    are those of its inputs, and those it computes; `is_padded` says whether any value is padded, or
    computed of sizes.
    """

    def __init__(self) -> None:
        self.source = ""  # the ONNX node being converted
        self.label = ""  # the same with its operator, as errors say it
        self._viewed: dict[str, Value] = {}  # by a view's name
        self._joined: dict[str, tuple[Value, ...]] = {}  # by a list's name
        self._again: dict[str, Callable[[tuple[int, ...]], Value | None]] = {}
        self.run_time = RunTimeSizes()
        self.is_padded = False
        self._computed: dict[Symbol, Value] = {}
        self._vectors: dict[Dimension, Value] = {}  # of one computed size each
        self._recorded_sizes: dict[str, Sizes] = {}
        self._sizes = Value(SIZES, TensorType(DType.I64, (MOST_SIZES,)))

    @abstractmethod
    def emit(self, operator: str, *inputs: Value | None, **attributes: Attribute) -> Value:
        """Append a node and return its output."""

    @abstractmethod
    def append(
        self, operator: str, inputs: Sequence[Value | None], attributes: dict[str, Attribute]
    ) -> Value:
        """`emit` on operands as they are, whatever their padding holds."""

    @abstractmethod
    def constant(self, array: Array, dtype: DType | None = None) -> Value:
        """A constant value; NumPy dtype as given, or converted to `dtype`."""

    @abstractmethod
    def _fresh(self, hint: str) -> str:
        """A name that no value has."""

    def scalar(self, value: int | float | bool, dtype: DType) -> Value:
        """A constant of shape (). Raises ValueError for a number that its type cannot hold."""
        if not dtype.has(value):
            raise ValueError(f"{value} is no {dtype}")
        return self.constant(np.asarray(value, dtype.numpy))

    def integers(self, values: Sequence[int]) -> Value:
        """A constant i64 vector."""
        return self.constant(np.asarray(values, np.int64).reshape(len(values)))

    def cast(self, value: Value, dtype: DType) -> Value:
        """The value in an element type."""
        if value.dtype is dtype:
            return value
        result = self.emit("cast", value, to=str(dtype))
        if dtype.is_integer and value.name in self._joined:
            self._joined[result.name] = self._joined[value.name]
        return result

    def reshape(self, value: Value, shape: tuple[int, ...]) -> Value:
        """The value under another shape; constants stay constants."""
        if shape == value.shape:
            return value
        constant = value.array if value.padded is None else None
        if constant is not None and math.prod(shape) == constant.size:
            same = self.constant(constant.reshape(shape))
            return replace(same, type=TensorType(value.dtype, shape))  # numbers of words stay such
        if value.sizes is not None and math.prod(shape) == value.sizes.size:
            return self.integers_of(value.sizes.reshape(shape), value.dtype)
        again = self._again.get(value.name)
        made = again(shape) if again is not None and value.padded is None else None
        if made is not None:
            return made
        result = self.emit("reshape", value, shape=shape)
        if value.padded is None:
            self._viewed[result.name] = value
        return result

    def viewed(self, value: Value) -> Value | None:
        """What a value is under another shape; None of one that is padded, or no view."""
        return None if value.padded is not None else self._viewed.get(value.name)

    def on_reshape(self, value: Value, make: Callable[[tuple[int, ...]], Value | None]) -> None:
        """Have the value under another shape be what `make` gives for that, unless it is None."""
        self._again[value.name] = make

    def transpose(self, value: Value, perm: tuple[int, ...]) -> Value:
        """The value with its axes in another order."""
        in_order = perm == tuple(range(value.rank))
        return value if in_order else self.emit("transpose", value, perm=perm)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Values one after the other along an axis."""
        if len(values) == 1:
            return values[0]
        result = self.emit("concat", *values, axis=axis)
        if result.rank == 1 and result.dtype.is_integer:
            self._joined[result.name] = tuple(values)
        return result

    def joined(self, value: Value) -> tuple[Value, ...]:
        """The integers that a list was made of one after the other; none of other values."""
        viewed = self.viewed(value)
        return self._joined.get(value.name, () if viewed is None else (viewed,))

    def part(self, value: Value, axis: int, start: int, size: int) -> Value:
        """`size` positions of an axis from `start` on."""
        if size == value.shape[axis]:
            return value
        shape = (*value.shape[:axis], size, *value.shape[axis + 1 :])
        starts = tuple(start if other == axis else 0 for other in range(value.rank))
        return self.emit("slice", value, starts=starts, steps=(1,) * value.rank, shape=shape)

    def pick(self, value: Value, axis: int, position: int) -> Value:
        """One position of an axis, which goes away."""
        part = self.part(value, axis, position, 1)
        return self.reshape(part, (*part.shape[:axis], *part.shape[axis + 1 :]))

    def fold(self, operator: str, values: Sequence[Value]) -> Value:
        """The values joined pairwise from the left."""
        return reduce(lambda left, right: self.emit(operator, left, right), values)

    # --- sizes ---------------------------------------------------------------------------------

    def computed_symbol(self, symbol: Symbol, count: Value) -> None:
        """A symbol that the graph computes: its value is the i64 scalar `count`.

        It is known after the run where it stands in outputs' shapes, for which it is an output.
        """
        self._computed[symbol] = count
        self.run_time.declare(ResultSource(symbol, f"%size:{symbol.name}", 0))

    def record_sizes(self, value: Value, numbers: Sizes) -> None:
        """Remember what a value that nodes compute is in terms of sizes: integers that are
        `Dimension`s, bools as 1 and 0, floats as `tunefarm.compiler.frontend.size_tables` has
        them."""
        self._recorded_sizes[value.name] = numbers

    def recorded_sizes(self, value: Value) -> Sizes | None:
        """What a value is in terms of sizes, if that was told."""
        return self._recorded_sizes.get(value.name)

    def count_of(self, symbol: Symbol) -> Value:
        """The value of a symbol that the graph computes."""
        return self._computed[symbol]

    @property
    def computed_symbols(self) -> frozenset[Symbol]:
        """The symbols that the graph computes."""
        return frozenset(self._computed)

    def unused_symbol(self, hint: str) -> str:
        """A name like `hint` that no computed symbol has."""
        taken = {symbol.name for symbol in self._computed}
        name, count = hint, 1
        while name in taken:
            count += 1
            name = f"{hint}_{count}"
        return name

    def size(self, size: Dimension, dtype: DType = DType.I64) -> Value:
        """A size as a scalar that nodes can read."""
        if isinstance(size, int):
            return self.scalar(size, dtype)
        vector, number = self.vector_with(size)
        return self.cast(self.reshape(self._slice_of(vector, number, 1), ()), dtype)

    def size_vector(self, sizes: Sequence[Dimension], dtype: DType = DType.I64) -> Value:
        """Sizes as a vector that nodes can read."""
        numbers = static_shape(sizes)
        if numbers is not None:
            return self.cast(self.integers(numbers), dtype)
        if any(symbol in self._computed for size in sizes for symbol in symbols_of(size)):
            return self.concat([self.reshape(self.size(size, dtype), (1,)) for size in sizes], 0)
        number = self.run_time.block(sizes)
        return self.cast(self._slice_of(self._sizes, number, len(sizes)), dtype)

    def integers_of(self, sizes: Sizes, dtype: DType = DType.I64) -> Value:
        """Integers that are computed of sizes; constants where they depend on no symbol."""
        numbers = static_shape(sizes.reshape(-1).tolist())
        if numbers is not None:
            return self.constant(np.array(numbers, dtype.numpy).reshape(sizes.shape))
        self.is_padded = True
        type = TensorType(dtype, sizes.shape)
        return Value(self._fresh("sizes"), type, sizes=sizes)

    def readable(self, value: Value) -> Value:
        """The value as nodes can read it: integers of sizes are taken from the sizes' vector."""
        if value.sizes is None:
            return value
        flat = value.sizes.reshape(-1).tolist()
        return self.reshape(self.size_vector(flat, value.dtype), value.shape)

    def _slice_of(self, vector: Value, first: int, count: int) -> Value:
        if vector.shape == (count,):
            return vector
        return self.append(
            "slice", (vector,), {"starts": (first,), "steps": (1,), "shape": (count,)}
        )

    def vector_with(self, size: Dimension) -> tuple[Value, int]:
        """An i64 vector and the place in it where it has the size."""
        if not any(symbol in self._computed for symbol in symbols_of(size)):
            return self._sizes, self.run_time.number(size)
        if size not in self._vectors:
            self._vectors[size] = self.reshape(self.computed_size(size), (1,))
        return self._vectors[size], 0

    def vector_of(self, sizes: Sequence[Dimension]) -> tuple[Value, tuple[int, ...]]:
        """An i64 vector, and the places in it where it has the sizes."""
        if any(symbol in self._computed for size in sizes for symbol in symbols_of(size)):
            return self.size_vector(sizes), tuple(range(len(sizes)))
        return self._sizes, tuple(map(self.run_time.number, sizes))

    def computed_size(self, size: Dimension) -> Value:
        """A size that depends on what the graph computes, as an i64 scalar."""
        if not isinstance(size, Size):
            return self.scalar(size, DType.I64)
        terms: list[Value] = []
        for atoms, factor in size.terms:
            factors = [self._atom(atom) for atom in atoms]
            if factor != 1 or not factors:
                factors.append(self.scalar(factor, DType.I64))
            terms.append(self.fold("mul", factors))
        return self.fold("add", terms)

    def _atom(self, atom: Atom) -> Value:
        if isinstance(atom, Symbol):
            known_symbol = self._computed.get(atom)
            return self.size(Symbol.of(*astuple(atom))) if known_symbol is None else known_symbol
        operator = {"//": "div", "%": "mod"}.get(atom.name, atom.name)  # divisors are positive
        left, right = (self.computed_size(operand) for operand in atom.operands)
        if operator != "div":
            return self.emit(operator, left, right)
        # Rounded down, where division of integers rounds towards 0.
        return self.emit("div", self.emit("sub", left, self.emit("mod", left, right)), right)

    def refusal(
        self,
        reason: str,
        values: Sequence[Value | None],
        hint: str = "",
        sizes: Sequence[Dimension] = (),
    ) -> ShapeError:
        """The error for what cannot be done with run-time values or dynamic sizes.

        It names the symbols that the reason does, or else all of them.
        """
        dims = [value.dims for value in values if value is not None]
        text, fix = symbols_text([*dims, tuple(((size, 1),) for size in sizes)], reason)
        label = self.label or f"node {self.source!r}"
        return ShapeError(f"{label}: {reason}{text}", hint=hint or fix)
