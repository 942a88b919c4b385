"""Pass: recurrences read quantised recurrent weights as narrow as the model has them.

    recurrence(x, dequantize(q))  ->  recurrence(x, integers, scales)

Between the two may be whatever moves or joins weights: exporters order gates, stack directions and
transpose. States stay floats; the product with the integers, widened where they are read, is scaled
once a column. Weights become floats when the model is built where widening them takes longer than
reading four times as much, and where their scale changes along the sum: no run dequantises them.
"""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.graph import dead_code
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.quantised.operands import narrowest
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.graph.weight_products import LEAST_WEIGHTS, of_each
from tunefarm.compiler.operators.evaluate_node import evaluate_node
from tunefarm.compiler.operators.recurrence import CANDIDATE, FLOAT_STATES, RECURRENCE, SCALES
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, operator
from tunefarm.compiler.types.conversions import converted
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array

_MOVES = ("concat", "slice", "transpose")
"""Operators, besides views, that give elements of their operands and no others."""


def run(graph: Graph, cached: int = 0) -> Graph:
    """The graph whose recurrences read integers, where these are constants.

    `cached` are the bytes of a direction's weights up to which floats are read faster.
    """
    if not any(_may_pack(graph, node) for node in graph.nodes):
        return graph
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        resolved = rewriter.resolve(node)
        rewriter.keep(_packed(rewriter, resolved, cached) if _may_pack(graph, node) else resolved)
    return dead_code.run(rewriter.finish())


def _may_pack(graph: Graph, node: Node) -> bool:
    """A recurrence in f32 whose recurrent weights are floats that are computed."""
    if node.operator != "recurrence" or any(node.inputs[SCALES:]):
        return False
    weights = _weights(node)
    return graph.types[weights[0]].dtype is DType.F32 and not all(
        name in graph.constants for name in weights
    )


def _weights(node: Node) -> list[str]:
    """The operands that multiply states: those of all gates, and of a candidate of its own."""
    return [
        node.inputs[at] for at in (RECURRENCE, CANDIDATE) if node.inputs[at:] and node.inputs[at]
    ]


@frozen
class _Integers:
    """Integers of 16 bits, less their zero point, and the scale of each in f32."""

    numbers: Array
    scales: Array

    @property
    def floats(self) -> Array:
        """What they stand for."""
        return np.multiply(self.numbers, self.scales, dtype=np.float32)


def _packed(rewriter: Rewriter, node: Node, cached: int) -> Node:
    """The node with its weights as integers; or as floats, where these are better."""
    names = _weights(node)
    found = [_integers(rewriter, name) for name in names]
    present = [item for item in found if item is not None]
    if len(present) < len(found):
        return node
    inputs = [*node.inputs, *[""] * (SCALES - len(node.inputs))]
    places = (RECURRENCE, CANDIDATE)
    columns = [item.scales[:, :1] for item in present]
    each = sum(item.numbers.size // item.numbers.shape[0] for item in present)
    small = each < LEAST_WEIGHTS or each * DType.F32.bytes <= cached
    if small or any((i.scales != c).any() for i, c in zip(present, columns, strict=True)):
        for place, name, item in zip(places, names, present, strict=False):
            inputs[place] = rewriter.constant(item.floats, f"{name}_floats")
        return Node(node.operator, tuple(inputs), node.output, node.attributes, node.source)
    for place, name, item in zip(places, names, present, strict=False):
        numbers = narrowest(item.numbers)
        assert numbers is not None
        inputs[place] = rewriter.constant(numbers, f"{name}_integers")
    scales = [columns[0][:, 0], *(column for column in columns[1:])]
    every = np.concatenate(scales, axis=1)
    inputs.append(rewriter.constant(np.ascontiguousarray(every), f"{names[0]}_scales"))
    attributes = {**node.attributes, "states": FLOAT_STATES}
    return Node(node.operator, tuple(inputs), node.output, attributes, node.source)


def _integers(rewriter: Rewriter, name: str) -> _Integers | None:
    """The constant integers behind floats that are moved and joined; None for other values."""
    node = rewriter.producers.get(name)
    if node is None:
        return None
    if node.operator == "dequantize":
        return _dequantized(rewriter, node)
    if not _is_move(node):
        return None
    parts = [_integers(rewriter, item) for item in node.inputs]
    present = [part for part in parts if part is not None]
    if len(present) < len(parts):
        return None
    return _Integers(
        evaluate_node(node, tuple(np.ascontiguousarray(part.numbers) for part in present)),
        evaluate_node(node, tuple(np.ascontiguousarray(part.scales) for part in present)),
    )


def _is_move(node: Node) -> bool:
    is_view = operator(node.operator).pattern is Pattern.VIEW and len(node.inputs) == 1
    return is_view or node.operator in _MOVES


def _dequantized(rewriter: Rewriter, node: Node) -> _Integers | None:
    """Both halves of a dequantize of constants to f32."""
    given = [_constant(rewriter, name) for name in node.inputs if name]
    constants = [array for array in given if array is not None]
    if len(constants) < len(given) or complete_attributes(node)["to"] != str(DType.F32):
        return None
    stored, scale, *zero_points = constants
    dtype = DType.from_numpy(stored.dtype)
    if not dtype.is_integer or dtype.bits > DType.U8.bits or scale.dtype != np.float32:
        return None
    numbers = converted(stored, DType.I16)
    if zero_points:
        zeros = converted(zero_points[0], DType.I16)
        numbers = np.subtract(numbers, of_each(node, zeros, stored.shape), dtype=np.int16)
    scales = np.ascontiguousarray(of_each(node, scale, stored.shape))
    return _Integers(numbers, scales)


def _constant(rewriter: Rewriter, name: str) -> Array | None:
    """A constant, perhaps moved; None for what is computed."""
    if name in rewriter.constants:
        return rewriter.constants[name]
    node = rewriter.producers.get(name)
    if node is None or not _is_move(node):
        return None
    inputs = [_constant(rewriter, item) for item in node.inputs]
    present = [array for array in inputs if array is not None]
    return evaluate_node(node, tuple(present)) if len(present) == len(inputs) else None
