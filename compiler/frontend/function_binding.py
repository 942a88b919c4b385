"""Binds operators that no converter covers to the functions registered for them by name."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import onnx

from compiler.errors import ImportModelError, TunefarmError
from compiler.foreign_functions import RegisteredFunction, find_function
from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.frontend.onnx_node import OnnxNode
from compiler.operators.function import type_text
from compiler.types.tensor_type import Attribute, TensorType


def function_for(domain: str, operator: str) -> RegisteredFunction | None:
    """The function registered for an operator; those of ONNX itself have the domain ai.onnx."""
    return find_function(f"{domain or 'ai.onnx'}::{operator}")


def bind(node: OnnxNode, function: RegisteredFunction, graph: GraphBuilder) -> Sequence[Value]:
    """Call a function in the place of a node: its results, whose types its rule gives.

    Raises ImportModelError for attributes that functions are not handed, and when the rule raises
    or gives something else than types.
    """
    attributes = _attributes(node)
    values = [node.optional(position) for position in range(len(node.inputs))]
    operands = [None if value is None else value.type for value in values]
    results = _results(node, function, operands, attributes)
    if len(node.outputs) > len(results):
        raise node.invalid(
            f"it has {len(node.outputs)} outputs, and function {function.name} gives {len(results)}"
        )
    common: dict[str, Attribute] = {
        "name": function.name,
        "version": function.version,
        "symbol": function.symbol,
        "context": function.context.hex(),
        "arguments": json.dumps(attributes, sort_keys=True),
        "operands": tuple(map(type_text, operands)),
        "results": tuple(map(type_text, results)),
        "call": graph.fresh_number(),
    }
    return [
        graph.emit("function", *values, **common, number=number)
        for number in range(len(node.outputs))
    ]


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
    operands: Sequence[TensorType | None],
    attributes: dict[str, Attribute],
) -> list[TensorType]:
    try:
        results = list(function.types(operands, attributes))
    except TunefarmError:
        raise
    except Exception as error:  # it is not ours
        raise ImportModelError(
            f"{node.label}: the type rule of function {function.name} failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not results or not all(isinstance(result, TensorType) for result in results):
        raise ImportModelError(
            f"{node.label}: the type rule of function {function.name} gives {results!r}",
            hint="it has to return a list of TensorType, one for each result",
        )
    return results
