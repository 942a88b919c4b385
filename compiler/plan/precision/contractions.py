"""The contractions of a graph, by identities that do not hang on names.

A value's identity is a hash of what computes it: its operator, attributes and operands, down to
inputs (by position) and constants (by contents). Extents of inputs are no part of it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import attributes_to_json
from tunefarm.compiler.operators.registry import Pattern, multiplications, operator
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, bytes_of

IDENTITY_CHARACTERS = 16

QUANTISABLE = ("conv", "matmul")
"""The operators that have a form of u8 and i8 operands."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """A contraction of f32 operands.

    `value` is its result, `data` and `weight` are its operands by name; `identity` and
    `data_identity` stand for `value` and `data` in plans and calibrations. `quantisable`: its
    weight is constant, and there is an int8 form of its operator. `work` counts multiplications.
    """

    identity: str
    value: str
    source: str
    operator: str
    data: str
    weight: str
    data_identity: str
    quantisable: bool
    work: int

    @property
    def label(self) -> str:
        """What people know it by: the ONNX node's name, or the value's."""
        return self.source or self.value


def identities(graph: Graph) -> dict[str, str]:
    """The identity of every value of the graph, by name."""
    found = {"": ""}
    for position, name in enumerate(graph.inputs):
        found[name] = _digest(["input", position, graph.types[name].dtype.value])
    for name, array in graph.constants.items():
        found[name] = _digest(["constant", str(array.dtype), list(array.shape), _contents(array)])
    for node in graph.nodes:
        operands = [found[name] for name in node.inputs]
        found[node.output] = _digest([node.operator, attributes_to_json(node.attributes), operands])
    return found


def contractions(graph: Graph) -> tuple[Contraction, ...]:
    """Every contraction of f32 operands, in the graph's order."""
    names = identities(graph)
    return tuple(
        Contraction(
            identity=names[node.output],
            value=node.output,
            source=node.source,
            operator=node.operator,
            data=node.inputs[0],
            weight=node.inputs[1],
            data_identity=names[node.inputs[0]],
            quantisable=_is_quantisable(graph, node),
            work=multiplications(node, graph.types),
        )
        for node in graph.nodes
        if is_contraction(graph, node)
    )


def is_contraction(graph: Graph, node: Node) -> bool:
    """Whether the node sums products of f32 operands."""
    if operator(node.operator).pattern is not Pattern.CONTRACTION:
        return False
    return all(graph.types[name].dtype is DType.F32 for name in node.inputs if name)


def _is_quantisable(graph: Graph, node: Node) -> bool:
    data, *others = node.inputs
    known = all(name in graph.constants for name in others if name)
    return node.operator in QUANTISABLE and known and data not in graph.constants


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:IDENTITY_CHARACTERS]


def _contents(array: Array) -> str:
    return hashlib.sha256(bytes_of(array)).hexdigest()
