"""Identities of contractions: what they hang on, and what not."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.precision.contractions import contractions, identities
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import TensorType


def graph(columns: int = 3, names: str = "xwyzv", rows: int = 2, shift: float = 0.0) -> Graph:
    """v = tanh(x @ w) @ x', with x' = x: the second product has no constant operand."""
    x, w, y, z, v = list(names)
    weight = np.arange(4.0 * columns, dtype=np.float32).reshape(4, columns) + np.float32(shift)
    nodes = (
        Node("matmul", (x, w), y, source="first"),
        Node("tanh", (y,), z),
        Node("matmul", (z, z), v, MappingProxyType({"transpose_b": True}), "second"),
    )
    types = {
        x: TensorType(DType.F32, (rows, 4)),
        w: TensorType(DType.F32, (4, columns)),
        y: TensorType(DType.F32, (rows, columns)),
        z: TensorType(DType.F32, (rows, columns)),
        v: TensorType(DType.F32, (rows, rows)),
    }
    return Graph("g", (x,), (v,), nodes, types, {w: weight})


def keys(found: Graph) -> list[str]:
    return [item.identity for item in contractions(found)]


def test_identities_hang_on_what_is_computed_and_not_on_names_or_extents_of_inputs() -> None:
    assert keys(graph()) == keys(graph(names="abcde")) == keys(graph(rows=5))
    assert keys(graph()) != keys(graph(shift=1.0))
    assert len(set(identities(graph()).values())) == 6  # with the absent operand


def test_the_order_of_attributes_is_none_of_an_identity() -> None:
    found = graph()
    *others, last = found.nodes
    attributes = {"transpose_a": False, "transpose_b": True}
    one, other = (
        replace(found, nodes=(*others, replace(last, attributes=order)))
        for order in (attributes, dict(reversed(attributes.items())))
    )
    assert keys(one) == keys(other)


def test_other_attributes_are_another_contraction_and_nothing_before_them() -> None:
    first, second = keys(graph())
    found = graph()
    *others, last = found.nodes
    other = replace(found, nodes=(*others, replace(last, attributes={"transpose_a": True})))
    assert keys(other)[0] == first
    assert keys(other)[1] != second


def test_contractions_know_their_operands_and_whether_they_have_an_int8_form() -> None:
    first, second = contractions(graph())
    assert (first.label, first.data, first.weight, first.quantisable) == ("first", "x", "w", True)
    assert (second.label, second.data, second.quantisable) == ("second", "z", False)
    assert (first.work, second.work) == (2 * 4 * 3, 2 * 3 * 2)
    integers = replace(
        graph(),
        types={name: TensorType(DType.I32, type.shape) for name, type in graph().types.items()},
    )
    assert contractions(integers) == ()
