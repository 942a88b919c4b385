"""Numbers: tensors to write arithmetic with.

Converters compute scores, places and conditions with them. What is made of constants alone is a
constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Array

_FUNCTIONS: Final[Mapping[str, Callable[..., Array]]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.logical_and,
    "ceil": np.ceil,
    "equal": np.equal,
    "exp": np.exp,
    "floor": np.floor,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "log": np.log,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.mod,
    "mul": np.multiply,
    "neg": np.negative,
    "not": np.logical_not,
    "or": np.logical_or,
    "pow": np.power,
    "sign": np.sign,
    "sqrt": np.sqrt,
    "sub": np.subtract,
    "where": np.where,
}
"""The graph's operators that are used here, and what they do."""


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """A value of a model that is being imported; operands broadcast, and literals take its type."""

    value: Value
    graph: GraphBuilder

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.value.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape as it is stored."""
        return self.value.shape

    def __add__(self, other: Operand) -> Numbers:
        return self.apply("add", other)

    def __sub__(self, other: Operand) -> Numbers:
        return self.apply("sub", other)

    def __mul__(self, other: Operand) -> Numbers:
        return self.apply("mul", other)

    def __rsub__(self, other: Operand) -> Numbers:
        return self._like(other).apply("sub", self)

    def __rmul__(self, other: Operand) -> Numbers:
        return self._like(other).apply("mul", self)

    def __mod__(self, other: Operand) -> Numbers:
        """What division leaves, with the sign of the divisor, which is not 0."""
        return self.apply("mod", other)

    def __truediv__(self, other: Operand) -> Numbers:
        """The quotient: of integers that are not negative, rounded down; no divisor is 0."""
        right = self._like(other)
        left, by = _known(self.value), _known(right.value)
        if left is not None and by is not None:
            quotient = (np.divide if self.dtype.is_float else np.floor_divide)(left, by)
            return Numbers(self.graph.constant(quotient, self.dtype), self.graph)
        return Numbers(self.graph.emit("div", self.value, right.value), self.graph)

    def __neg__(self) -> Numbers:
        return self.apply("neg")

    def __lt__(self, other: Operand) -> Numbers:
        return self.apply("less", other)

    def __le__(self, other: Operand) -> Numbers:
        return self.apply("less_equal", other)

    def __gt__(self, other: Operand) -> Numbers:
        return self.apply("greater", other)

    def __ge__(self, other: Operand) -> Numbers:
        return self.apply("greater_equal", other)

    def __and__(self, other: Numbers) -> Numbers:
        return self.apply("and", other)

    def __or__(self, other: Numbers) -> Numbers:
        return self.apply("or", other)

    def __invert__(self) -> Numbers:
        return self.apply("not")

    def equals(self, other: Operand) -> Numbers:
        """Where both are equal."""
        return self.apply("equal", other)

    def at_least(self, least: Operand) -> Numbers:
        """The greater of both."""
        return self.apply("max", least)

    def at_most(self, most: Operand) -> Numbers:
        """The smaller of both."""
        return self.apply("min", most)

    def choose(self, then: Numbers, otherwise: Operand) -> Numbers:
        """Of a condition: `then` where it holds."""
        return self.apply("where", then, then._like(otherwise))

    def cast(self, dtype: DType) -> Numbers:
        """In another element type."""
        array = _known(self.value)
        if array is not None:
            return Numbers(self.graph.constant(array, dtype), self.graph)
        return Numbers(self.graph.cast(self.value, dtype), self.graph)

    def reshape(self, *shape: int) -> Numbers:
        """Under another shape."""
        return Numbers(self.graph.reshape(self.value, shape), self.graph)

    def part(self, start: int, size: int) -> Numbers:
        """`size` elements of a vector."""
        array = _known(self.value)
        if array is not None:
            return Numbers(self.graph.constant(array[start : start + size]), self.graph)
        return Numbers(self.graph.part(self.value, 0, start, size), self.graph)

    def sum(self, axis: int, *, keep: bool = False) -> Numbers:
        """The sum along an axis, which goes away unless it is kept."""
        array = _known(self.value)
        if array is not None:
            total = array.sum(axis, keepdims=keep)
            return Numbers(self.graph.constant(total, self.dtype), self.graph)
        return self._reduced("reduce_sum", axis, keep)

    def max(self, axis: int, *, keep: bool = False) -> Numbers:
        """The maximum along an axis, which goes away unless it is kept."""
        return self._reduced("reduce_max", axis, keep)

    def _reduced(self, operator: str, axis: int, keep: bool) -> Numbers:
        found = self.graph.emit(operator, self.value, axes=(axis,), keepdims=keep)
        return Numbers(found, self.graph)

    def like(self, values: object) -> Numbers:
        """Constants of the same element type."""
        array: Array = np.asarray(values, self.dtype.numpy)
        return Numbers(self.graph.constant(array), self.graph)

    def _like(self, other: Operand) -> Numbers:
        return other if isinstance(other, Numbers) else self.like(other)

    def apply(self, operator: str, *others: Operand) -> Numbers:
        """A function of each number, and of others, by the graph's name of it."""
        operands = [self.value, *(self._like(other).value for other in others)]
        arrays = [array for value in operands if (array := _known(value)) is not None]
        if len(arrays) == len(operands):
            with np.errstate(all="ignore"):
                return Numbers(self.graph.constant(_FUNCTIONS[operator](*arrays)), self.graph)
        return Numbers(self.graph.emit(operator, *operands), self.graph)


def _known(value: Value) -> Array | None:
    """The contents of a constant, all of which are there."""
    return value.array if value.padded is None else None


Operand: TypeAlias = Numbers | int | float


def vector(value: Value, graph: GraphBuilder, dtype: DType = DType.I64) -> Numbers:
    """A value of any rank as a vector of numbers of a type."""
    value = graph.readable(value)
    return Numbers(graph.reshape(value, (value.type.size,)), graph).cast(dtype)


def integers(values: Sequence[int], graph: GraphBuilder) -> Numbers:
    """Constant integers."""
    return Numbers(graph.integers(values), graph)
