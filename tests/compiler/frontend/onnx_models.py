"""Small ONNX models for the frontend's tests, and an evaluator for the graphs made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tunefarm.compiler.graph.evaluate_graph import evaluate_graph
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.tensor_type import Array

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def tensor(name: str, shape: Sequence[int | str | None] | None, dtype: int = FLOAT) -> Any:
    """A ValueInfoProto."""
    return helper.make_tensor_value_info(name, dtype, shape)


def node(operator: str, inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    """A node whose inputs stand in a text, `_` for one that is left out."""
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(operator, names, output.split(), **attributes)


def nodes_of(text: str) -> list[onnx.NodeProto]:
    """The nodes of a text: `n = Shape x start=1; a b = Split x n axis=0; Add a b`.

    Each is an operator, its inputs as `node` has them, and its attributes; a result without a name
    is y, and the tensor `value` is a list of its elements.
    """
    return [_node_of(line) for line in text.split(";")]


def _node_of(line: str) -> onnx.NodeProto:
    outputs, _, call = line.rpartition(" = ")
    operator, *words = call.split()
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    attributes = {name: _attribute(value) for name, value in pairs.items()}
    if "value" in attributes:
        attributes["value"] = numpy_helper.from_array(_number(attributes["value"]))
    inputs = " ".join(word for word in words if "=" not in word)
    return node(operator, inputs, outputs or "y", **attributes)


def _attribute(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _number(value: Any) -> Array:
    """An array of int64, or of float32."""
    array = np.array(value)
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def _literals(nodes: Iterable[onnx.NodeProto]) -> dict[str, Array]:
    """Inputs that are numbers: `3` and `[1,-1]` are int64, `0.5` and `[1.0,2]` float32."""
    found: dict[str, Array] = {}
    for name in {name for each in nodes for name in each.input}:
        if name[:1].isdigit() or name[:1] in ("-", "["):
            found[name] = _number(json.loads(name))
    return found


untyped = helper.make_empty_tensor_value_info


def model(
    nodes: str | Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] | Mapping[str, Array],
    outputs: Sequence[str | onnx.ValueInfoProto] = ("y",),
    constants: Mapping[str, Array] | None = None,
    *,
    opset: int = 18,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model of nodes, or of a text of them, with their literals.

    Inputs that are given as arrays have their types and shapes, outputs that are names are float
    tensors of unknown shape, and the domains of nodes have version 1 unless another one is given.
    """
    if isinstance(nodes, str):
        nodes = nodes_of(nodes)
    if isinstance(inputs, Mapping):
        inputs = [
            tensor(name, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
            for name, array in inputs.items()
        ]
    constants = {**(constants or {}), **_literals(nodes)}
    graph = helper.make_graph(
        nodes,
        "graph",
        inputs,
        [tensor(port, None) if isinstance(port, str) else port for port in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    versions = {"": opset, **{node.domain: 1 for node in nodes if node.domain}, **(domains or {})}
    opsets = [helper.make_opsetid(name, version) for name, version in versions.items()]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def outputs_of(graph: Graph, inputs: Mapping[str, Array]) -> list[Any]:
    """The graph's outputs in NumPy."""
    values = evaluate_graph(graph, inputs)
    return [values[name] for name in graph.outputs]


def integers(*values: int) -> Array:
    """An int64 vector."""
    return np.array(values, np.int64)
