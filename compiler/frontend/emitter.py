"""Emitter: adds moves, joins and cuts of values to a graph under construction."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from tunefarm.compiler.frontend.value import Sizes, Value
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array, Attribute, TensorType


class Emitter(ABC):
    """What a graph under construction emits, and the shorthands for nodes that only move elements.

    Constants stay constants, and nothing is emitted for what changes nothing.
    """

    def __init__(self) -> None:
        self.source = ""  # the ONNX node being converted
        self.label = ""  # the same with its operator, as errors say it
        self._viewed: dict[str, Value] = {}  # by a view's name
        self._again: dict[str, Callable[[tuple[int, ...]], Value | None]] = {}

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
    def integers_of(self, sizes: Sizes, dtype: DType = DType.I64) -> Value:
        """Integers that are computed of sizes."""

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
        return value if value.dtype is dtype else self.emit("cast", value, to=str(dtype))

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
        return values[0] if len(values) == 1 else self.emit("concat", *values, axis=axis)

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
