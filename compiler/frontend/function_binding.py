"""Binds operators that no converter covers to the functions registered for them by name."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import NoReturn, TypeAlias, cast

import numpy as np
import onnx

from tunefarm.compiler.errors import ImportModelError, ShapeError, TunefarmError
from tunefarm.compiler.foreign_functions import ELEMENT_TYPES, RegisteredFunction, find_function
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.run_time_sizes import symbols_text
from tunefarm.compiler.operators.function import ABSENT, type_text
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.open_axes import bound_shape
from tunefarm.compiler.types.padded_shape import PaddedShape, is_unpadded, true_shape
from tunefarm.compiler.types.sizes import (
    Dimension,
    Size,
    bounds_of,
    divide,
    remainder,
)
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

# --- RuleSize: a dynamic size, as a function's type rule sees it ---------------------------------
#
# It adds, multiplies and divides as numbers do, so that rules written for numbers work as they
# are. What cannot be told before a run, such as whether it is 4, raises `UnknownSizeError`: a rule
# that went on with a guess would give a wrong shape.


class UnknownSizeError(Exception):
    """A rule asks what is not known before a run: `question` is "whether n is 4", of a `size`."""

    def __init__(self, question: str, size: Dimension) -> None:
        super().__init__(question)
        self.question, self.size = question, size


_Other: TypeAlias = "RuleSize | int"


class RuleSize:
    """A dimension that is no number; what comes out as one is an `int`."""

    __slots__ = ("size",)

    def __init__(self, size: Size) -> None:
        self.size = size

    # --- arithmetic -----------------------------------------------------------------------------

    def __add__(self, other: object) -> _Other:
        return _combined(operator.add, self, other)

    def __radd__(self, other: object) -> _Other:
        return _combined(operator.add, other, self)

    def __sub__(self, other: object) -> _Other:
        return _combined(operator.sub, self, other)

    def __rsub__(self, other: object) -> _Other:
        return _combined(operator.sub, other, self)

    def __mul__(self, other: object) -> _Other:
        return _combined(operator.mul, self, other)

    def __rmul__(self, other: object) -> _Other:
        return _combined(operator.mul, other, self)

    def __floordiv__(self, other: object) -> _Other:
        return _divided(divide, self, other)

    def __rfloordiv__(self, other: object) -> _Other:
        return _divided(divide, other, self)

    def __mod__(self, other: object) -> _Other:
        return _divided(remainder, self, other)

    def __rmod__(self, other: object) -> _Other:
        return _divided(remainder, other, self)

    def __divmod__(self, other: object) -> tuple[_Other, _Other]:
        return self // other, self % other

    def __rdivmod__(self, other: object) -> tuple[_Other, _Other]:
        return other // self, other % self

    def __neg__(self) -> _Other:
        return self * -1

    def __pos__(self) -> RuleSize:
        return self

    def __pow__(self, other: object) -> _Other:
        exponent = _dimension(other)
        if not isinstance(exponent, int) or not 0 <= exponent <= 8:
            self._refuse(f"what {self} ** {other} is")
        return prod([self] * exponent) if exponent else 1

    # --- comparisons, where bounds tell ---------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not _is_integer(other):
            return NotImplemented
        low, high = bounds_of(self.size - _dimension(other))
        if low <= 0 <= high and low != high:
            self._refuse(f"whether {self} is {other}")
        return low == high == 0

    def __hash__(self) -> int:
        return hash(self.size)

    def __lt__(self, other: object) -> bool:
        return self._is_less(self.size, _dimension(other), f"{self} < {other}")

    def __le__(self, other: object) -> bool:
        return not self._is_less(_dimension(other), self.size, f"{self} <= {other}")

    def __gt__(self, other: object) -> bool:
        return self._is_less(_dimension(other), self.size, f"{self} > {other}")

    def __ge__(self, other: object) -> bool:
        return not self._is_less(self.size, _dimension(other), f"{self} >= {other}")

    def __bool__(self) -> bool:
        return self != 0

    def _is_less(self, left: Dimension, right: Dimension, question: str) -> bool:
        low, high = bounds_of(left - right)
        if low < 0 <= high:
            self._refuse(f"whether {question}")
        return high < 0

    # --- what needs a number --------------------------------------------------------------------

    def __index__(self) -> int:
        raise UnknownSizeError(f"which number {self} is", self.size)

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __truediv__(self, other: object) -> float:
        self._refuse(f"what {self} / {other} is (that of // is known)")

    def __rtruediv__(self, other: object) -> float:
        self._refuse(f"what {other} / {self} is (that of // is known)")

    def __str__(self) -> str:
        return str(self.size)

    __repr__ = __str__

    def _refuse(self, question: str) -> NoReturn:
        raise UnknownSizeError(question, self.size)


def rule_type(dtype: DType, shape: Sequence[Dimension]) -> TensorType:
    """A type as a rule sees it."""
    seen = (RuleSize(size) if isinstance(size, Size) else size for size in shape)
    # The rule computes with these as with numbers, and hands them on.
    return TensorType(dtype, cast("tuple[int, ...]", tuple(seen)))


def dimension_of(given: object) -> Dimension:
    """A dimension that a rule gave, which is never less than 0.

    Raises `TypeError` for what is no dimension, `ValueError` for one that may be less than 0.
    """
    dimension = _dimension(given)
    if bounds_of(dimension)[0] < 0:
        raise ValueError(f"may be less than 0: {dimension}")
    return dimension


def _dimension(value: object) -> Dimension:
    return value.size if isinstance(value, RuleSize) else operator.index(cast("int", value))


def _result(dimension: Dimension) -> _Other:
    return RuleSize(dimension) if isinstance(dimension, Size) else dimension


def _combined(
    function: Callable[[Dimension, Dimension], Dimension], left: object, right: object
) -> _Other:
    if not (_is_integer(left) and _is_integer(right)):
        return NotImplemented  # type: ignore[no-any-return]  # what operators return, and lists ask
    return _result(function(_dimension(left), _dimension(right)))


def _divided(
    function: Callable[[Dimension, Dimension], Dimension], left: object, right: object
) -> _Other:
    """Quotients and remainders, by numbers below 0 too."""
    if not (_is_integer(left) and _is_integer(right)):
        return NotImplemented  # type: ignore[no-any-return]
    divisor = _dimension(right)
    if isinstance(divisor, Size) and divisor.bounds[0] < 1:
        raise UnknownSizeError(f"that the divisor {divisor} is not less than 1", divisor)
    if isinstance(divisor, int) and divisor < 1:
        if divisor == 0:
            raise ZeroDivisionError("division by zero")
        sign = 1 if function is divide else -1
        return _result(function(_dimension(left) * -1, -divisor) * sign)
    return _result(function(_dimension(left), divisor))


def _is_integer(value: object) -> bool:
    return hasattr(value, "__index__")


def function_for(domain: str, operator: str) -> RegisteredFunction | None:
    """The function registered for an operator; those of ONNX itself have the domain ai.onnx."""
    return find_function(f"{domain or 'ai.onnx'}::{operator}")


def bind(node: OnnxNode, function: RegisteredFunction, graph: GraphBuilder) -> Sequence[Value]:
    """Call a function that replaces a node: its results, whose types its rule gives.

    Raises ImportModelError for attributes that functions are not handed, and when the rule raises
    or gives something else than types; ShapeError where it needs a size that is not known before
    run time, or gives one that may be less than 0.
    """
    attributes = _attributes(node)
    given = [node.optional(position) for position in range(len(node.inputs))]
    values = [None if value is None else graph.readable(value) for value in given]
    called = [None if value is None else _Called(value.dtype, value.dims) for value in values]
    results = _results(node, function, called, attributes, graph)
    if len(node.outputs) > len(results):
        raise node.invalid(
            f"it has {len(node.outputs)} outputs, and function {function.name} gives {len(results)}"
        )
    types = [item for item in (*called, *results) if item is not None]
    for item in types:
        if item.dtype not in ELEMENT_TYPES:
            raise node.unsupported(f"a tensor of {item.dtype} that a function takes or gives")
    sizes = dict.fromkeys(size for item in types for size in item.sizes)
    vector, places = graph.vector_of(list(sizes)) if sizes else (graph.integers((0,)), ())
    numbers = dict(zip(sizes, places, strict=True))
    common: dict[str, Attribute] = {
        "name": function.name,
        "version": function.version,
        "symbol": function.symbol,
        "context": function.context.hex(),
        "arguments": json.dumps(attributes, sort_keys=True),
        "operands": tuple(ABSENT if item is None else item.text(numbers) for item in called),
        "results": tuple(item.text(numbers) for item in results),
        "call": graph.fresh_number(),
    }
    wanted = range(len(node.outputs))
    if all(is_unpadded(axis) for item in types for axis in item.dims):
        return [graph.emit("function", *values, **common, number=number) for number in wanted]
    operands = (*values, vector)
    return [
        graph.with_dims(
            graph.append("function", operands, {**common, "number": number}), results[number].dims
        )
        for number in wanted
    ]


@frozen
class _Called:
    """What a function takes or gives: `dims` are what is there of its axes."""

    dtype: DType
    dims: PaddedShape

    @property
    def shape(self) -> tuple[Dimension, ...]:
        """The true shape."""
        return true_shape(self.dims)

    @property
    def sizes(self) -> list[Size]:
        """The dynamic sizes."""
        return [true for axis in self.dims for true, _ in axis if isinstance(true, Size)]

    def text(self, numbers: Mapping[Size, int]) -> str:
        """The attribute that says it, sizes by their numbers in the vector of sizes."""
        axes = tuple(
            tuple((~numbers[t] if isinstance(t, Size) else t, extent) for t, extent in axis)
            for axis in self.dims
        )
        return type_text(TensorType(self.dtype, bound_shape(axes)), axes)


def _attributes(node: OnnxNode) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {}
    for name, value in node.attributes.items():
        if isinstance(value, np.ndarray | onnx.GraphProto):
            raise node.unsupported(f"a tensor or a graph as the attribute {name} of a function")
        attributes[name] = value
    return attributes


def _results(
    node: OnnxNode,
    function: RegisteredFunction,
    operands: Sequence[_Called | None],
    attributes: dict[str, Attribute],
    graph: GraphBuilder,
) -> list[_Called]:
    rule = f"the type rule of function {function.name}"
    seen = [None if item is None else rule_type(item.dtype, item.shape) for item in operands]
    try:
        results = list(function.types(seen, attributes))
    except TunefarmError:
        raise
    except UnknownSizeError as error:
        description, fix = symbols_text([(((error.size, 1),),)], "")
        raise ShapeError(
            f"{node.label}: {rule} needs to know {error.question}{description}",
            hint=f"use only sums, products and quotients (//, %) of sizes, or {fix}",
        ) from error
    except Exception as error:  # it is not ours
        raise ImportModelError(
            f"{node.label}: {rule} failed: {type(error).__name__}: {error}"
        ) from error
    if not results or not all(isinstance(result, TensorType) for result in results):
        raise ImportModelError(
            f"{node.label}: {rule} gives {results!r}",
            hint="it has to return a list of TensorType, one for each result",
        )
    return [_given(result, f"{node.label}: {rule}") for result in results]


def _given(result: TensorType, rule: str) -> _Called:
    """A result's type as a rule gave it. Raises ImportModelError for a shape that is none."""
    try:
        shape = [dimension_of(size) for size in result.shape]
    except TypeError:
        raise ImportModelError(
            f"{rule} gives the shape {result.shape!r}",
            hint="a shape is a tuple of integers and of sizes that it was given",
        ) from None
    except ValueError as error:
        given: Sequence[object] = result.shape
        dims: PaddedShape = tuple(((size.size, 1),) for size in given if isinstance(size, RuleSize))
        description, _ = symbols_text([dims], str(error))
        raise ShapeError(
            f"{rule} gives a size that {error}{description}",
            hint="give bounds within which it is not, with --shape" if description else "",
        ) from None
    return _Called(result.dtype, tuple(((size, bounds_of(size)[1]),) for size in shape))
