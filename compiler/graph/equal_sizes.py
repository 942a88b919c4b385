"""Pass: of sizes that must be equal in every run, one stands for all.

    fill(x, sizes, number=4)  where sizes[4] = h // 4, sizes[7] = 2 * (h // 8), and both are equal
    fill(y, sizes, number=7)                         ->  fill(y, sizes, number=4)

A run begins only where they are (`Signature.equalities`). Else an axis would end at both of them:
loops would ask for the smaller one, and equal kernels would differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.padded_shape import PaddedShape
from tunefarm.compiler.types.signature import SIZES, Signature
from tunefarm.compiler.types.sizes import Dimension
from tunefarm.compiler.types.tensor_type import TensorType

_NUMBERS = ("number", "since")


def run(graph: Graph) -> Graph:
    """The graph whose fills, and what is known of padding, name the first of equal sizes."""
    first = _first_equals(graph.signature)
    if not first:
        return graph
    numbers = first_numbers(graph.signature)
    return replace(
        graph,
        nodes=tuple(_renumbered(node, numbers) for node in graph.nodes),
        types={name: _type_named(type, first) for name, type in graph.types.items()},
        unread=_named(graph.unread, first),
        zeros=_named(graph.zeros, first),
    )


def first_numbers(signature: Signature) -> dict[int, int]:
    """The numbers of sizes by which an equal one comes first, with the number of that one."""
    sizes = signature.sizes
    return {sizes.index(a): sizes.index(b) for a, b in _first_equals(signature).items()}


def _first_equals(signature: Signature) -> dict[Dimension, Dimension]:
    """Sizes by which an equal one comes first."""
    first: dict[Dimension, Dimension] = {}
    for item in signature.equalities:
        sides = [first.get(side, side) for side in (item.left, item.right)]
        if all(side in signature.sizes for side in sides):
            one, other = sorted(sides, key=signature.sizes.index)
            first = {size: one if to == other else to for size, to in first.items()}
            if one != other:
                first[other] = one
    return first


def _renumbered(node: Node, numbers: Mapping[int, int]) -> Node:
    if node.operator != "fill" or node.inputs[1] != SIZES:
        return node
    attributes = dict(node.attributes)
    for name in _NUMBERS:
        number = attributes.get(name)
        if isinstance(number, int):
            attributes[name] = numbers.get(number, number)
    return replace(node, attributes=MappingProxyType(attributes))


def _type_named(type: TensorType, first: Mapping[Dimension, Dimension]) -> TensorType:
    if type.padded is None:
        return type
    return TensorType.of(type.dtype, _dims_named(type.padded, first))


def _named(
    values: Mapping[str, PaddedShape], first: Mapping[Dimension, Dimension]
) -> dict[str, PaddedShape]:
    return {name: _dims_named(dims, first) for name, dims in values.items()}


def _dims_named(dims: PaddedShape, first: Mapping[Dimension, Dimension]) -> PaddedShape:
    """The axes with each size's first equal in its place."""
    return tuple(tuple((first.get(true, true), extent) for true, extent in axis) for axis in dims)
