"""Binds operators that no converter covers to the functions registered for them by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from tunefarm.compiler.errors import ImportModelError, ShapeError, TunefarmError
from tunefarm.compiler.foreign_functions import ELEMENT_TYPES, RegisteredFunction, find_function
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.rule_sizes import (
    RuleSize,
    UnknownSizeError,
    dimension_of,
    rule_type,
)
from tunefarm.compiler.frontend.run_time_sizes import symbols_text
from tunefarm.compiler.operators.function import ABSENT, type_text
from tunefarm.compiler.types.dims import Dims, is_unpadded, true_shape
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.open_axes import bound_shape
from tunefarm.compiler.types.sizes import Dimension, Size, bounds_of
from tunefarm.compiler.types.tensor_type import Attribute, TensorType


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


@dataclass(frozen=True, slots=True)
class _Called:
    """What a function takes or gives: `dims` are what is there of its axes."""

    dtype: DType
    dims: Dims

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
        dims: Dims = tuple(((size.size, 1),) for size in given if isinstance(size, RuleSize))
        description, _ = symbols_text([dims], str(error))
        raise ShapeError(
            f"{rule} gives a size that {error}{description}",
            hint="give bounds within which it is not, with --shape" if description else "",
        ) from None
    return _Called(result.dtype, tuple(((size, bounds_of(size)[1]),) for size in shape))
