"""The contractions of a graph, by identities that do not hang on names; and its recurrences.

A value's identity is a hash of what computes it: its operator, attributes and operands, down to
inputs (by position) and constants (by contents). Extents of inputs are no part of it.
"""

from __future__ import annotations

import hashlib
import json

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import attributes_to_json
from tunefarm.compiler.operators.recurrence import CANDIDATE, RECURRENCE, SCALES
from tunefarm.compiler.operators.registry import Pattern, multiplications, operator
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import is_unpadded, size_of
from tunefarm.compiler.types.precision import Precision
from tunefarm.compiler.types.signature import SIZES
from tunefarm.compiler.types.tensor_type import Array, bytes_of

IDENTITY_CHARACTERS = 16

RECURRENT = "recurrence"
BATCH_AXIS = 3
"""Of a recurrence's result."""
QUANTISABLE = ("conv", "matmul")
"""The operators that have a form of u8 and i8 operands."""


@frozen
class Contraction:
    """A contraction of f32 operands, or the products of a recurrence.

    `value` is its result, `data` and `weight` are its operands by name; `identity` and
    `data_identity` stand for `value` and `data` in plans and calibrations. `quantisable`: its
    weight is constant, and there is an int8 form of its operator. `work` counts multiplications.
    `rounds_states`: in int8 it rounds its own states by the range of each step, and `data` never;
    it has no form in narrow floats.
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
    rounds_states: bool = False

    def has(self, kind: Precision) -> bool:
        """Whether there is a form in this precision."""
        if kind is Precision.INT8:
            return self.quantisable
        return kind is Precision.F32 or not self.rounds_states

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
    """Every contraction of f32 operands, and each recurrence that has an int8 form, in order."""
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
            work=_work(graph, node),
            rounds_states=node.operator == RECURRENT,
        )
        for node in graph.nodes
        if is_contraction(graph, node) or has_recurrent_form(graph, node)
    )


def is_contraction(graph: Graph, node: Node) -> bool:
    """Whether the node sums products of f32 operands."""
    if operator(node.operator).pattern is not Pattern.CONTRACTION:
        return False
    return all(graph.types[name].dtype is DType.F32 for name in node.inputs if name)


def has_recurrent_form(graph: Graph, node: Node) -> bool:
    """Whether it is a recurrence that can multiply rounded states with constant integers.

    All its products must be of the states before a step, and it must know how many rows there are.
    """
    if node.operator != RECURRENT or any(node.inputs[SCALES:]) or any(node.inputs[CANDIDATE:][:1]):
        return False
    weights = graph.constants.get(node.inputs[RECURRENCE])
    if weights is None or weights.dtype != DType.F32.numpy:
        return False
    return rows_of(graph, node) is not None


def rows_of(graph: Graph, node: Node) -> tuple[str, int] | None:
    """The vector of sizes that has the batch of a recurrence, and its place there.

    "" and 0 where all rows are there in every run, None where the size is in no such vector.
    """
    dims = graph.types[node.output].dims
    if is_unpadded(dims[BATCH_AXIS]):
        return "", 0
    size, signature = size_of(dims[BATCH_AXIS]), graph.signature
    if size not in signature.sizes or SIZES not in graph.inputs:
        return None
    return SIZES, signature.sizes.index(size)


def _work(graph: Graph, node: Node) -> int:
    if node.operator != RECURRENT:
        return multiplications(node, graph.types)
    _, steps, batch, _, _ = graph.types[node.inputs[0]].shape
    return steps * batch * graph.types[node.inputs[RECURRENCE]].size


def _is_quantisable(graph: Graph, node: Node) -> bool:
    if node.operator == RECURRENT:
        return True
    data, *others = node.inputs
    known = all(name in graph.constants for name in others if name)
    return node.operator in QUANTISABLE and known and data not in graph.constants


def _digest(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:IDENTITY_CHARACTERS]


def _contents(array: Array) -> str:
    return hashlib.sha256(bytes_of(array)).hexdigest()
