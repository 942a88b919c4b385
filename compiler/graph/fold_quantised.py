"""Pass: integer arithmetic instead of floats that stand for integers.

Models say with quantize and dequantize around an operator that it works on integers:

    conv(dequantize(q), dequantize(w)) -> conv of q and w, summed in i32, times their scales
    average_pool(dequantize(q))        -> sums of q in i32, times the scale over their number
    max_pool(dequantize(q))            -> dequantize(max_pool(q)); and so do all movements
    quantize(dequantize(q))            -> q, where scales and zero points are equal
    quantize(concat(dequantize(q)..))  -> concat(q..), those of another scale quantised anew
    quantize(reshape(x))               -> reshape(quantize(x)), and what else keeps all elements
    quantize(sigmoid(dequantize(q)))   -> lookup(q, table); and so do all functions of 8 bits

What then stands between the sums and the next quantisation is pointwise, and fused behind them;
there, divisions by the scale become part of the factors (`requantise`). 8-bit data has the sign
that the target multiplies best, inputs and outputs of the model keep theirs. Whatever is not
recognised stays in floats, as it is.

A quantised sum is rounded like ONNX says, to even; but where the model's floats would have been
rounded on the way, here are exact integers and one product with a factor in f32. So a number that
lies within these roundings (some 2^-22 of its size) of the middle between two integers may become
the other of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.graph import dead_code
from tunefarm.compiler.graph.infer_types import node_type
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.quantised import requantise
from tunefarm.compiler.graph.quantised.contractions import Contractions
from tunefarm.compiler.graph.quantised.operands import (
    MOVEMENTS,
    Operand,
    Signs,
    dequantised,
    filled,
)
from tunefarm.compiler.graph.quantised.requantise import Averages, Tables
from tunefarm.compiler.graph.rewriter import Rewriter, use_counts
from tunefarm.compiler.operators.recurrence import BATCH_AXIS, PROJECTED, SUMS
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute

_Rule: TypeAlias = Callable[[Node], "str | None"]
_MARKS = frozenset(("dequantize", "quantize"))

_KEEPING = frozenset(("reshape", "transpose", "squeeze"))
"""Movements that give every element once."""


def run(
    graph: Graph,
    activations: DType = DType.U8,
    states: tuple[DType, DType] = (DType.U8, DType.U8),
) -> Graph:
    """The graph with integer operators; `activations` is the type that 8-bit data is kept in,
    `states` are those of hidden states, of one row and of several, which are multiplied with
    weights of 8 bits."""
    if not any(_may_fold(graph, node) for node in graph.nodes):
        return graph
    folded = dead_code.run(_Folder(graph, activations, states).run())
    return dead_code.run(requantise.run(folded))


def _may_fold(graph: Graph, node: Node) -> bool:
    integer_sums = node.operator in ("conv", "matmul") and (
        graph.types[node.output].dtype is DType.I32
    )
    return node.operator in _MARKS or integer_sums or _has_byte_states(node)


def _has_byte_states(node: Node) -> bool:
    """Whether a recurrence rounds its states to bytes."""
    return node.operator == "recurrence" and any(node.inputs[SUMS:])


class _Folder:
    def __init__(self, graph: Graph, activations: DType, states: tuple[DType, DType]) -> None:
        self.graph = graph
        self.states = states
        self.rewriter = Rewriter(graph)
        self.signs = Signs(self.rewriter, activations)
        self.uses = use_counts(graph)
        self.tables = Tables(self.rewriter, self.signs)
        contractions = Contractions(self.rewriter, self.signs)
        averages = Averages(self.rewriter, self.signs)
        self.rules: dict[str, tuple[_Rule, ...]] = {
            "conv": (contractions.conv,),
            "matmul": (contractions.matmul,),
            "reduce_mean": (averages.reduce_mean,),
            "average_pool": (averages.average_pool,),
            "dequantize": (self._with_best_sign,),
            "quantize": (
                self._same_again,
                self._concatenated,
                self._behind_movement,
                self.tables.tabulated,
            ),
            "pad": (self._padded,),
            "fill": (self._filled,),
            "shift": (self._shifted,),
            "recurrence": (self._with_best_states,),
            **dict.fromkeys(MOVEMENTS, (self._moved,)),
        }

    def run(self) -> Graph:
        for node in self.graph.nodes:
            resolved = self.rewriter.resolve(node)
            for rule in self.rules.get(node.operator, ()):
                result = rule(resolved)
                if result is not None:
                    self.rewriter.forward(node.output, result)
                    break
            else:
                self.rewriter.keep(resolved)
        return self.rewriter.finish()

    # --- rules ----------------------------------------------------------------------------------

    def _with_best_sign(self, node: Node) -> str | None:
        """dequantize of what is quantised with another sign for others."""
        operand = dequantised_node(node)
        if operand is None or (operand.zero and operand.zero not in self.rewriter.constants):
            return None
        moved = self.signs.where_free(operand, node)
        return None if moved is operand else self._dequantized(moved, node)

    def _with_best_states(self, node: Node) -> str | None:
        """A recurrence whose rounded states have the type that the target multiplies best."""
        if not _has_byte_states(node):
            return None
        one, several = self.states
        rows = self.graph.types[node.inputs[PROJECTED]].shape[BATCH_AXIS]
        states = str(several if rows > 1 else one)
        if complete_attributes(node)["states"] == states:
            return None
        attributes = {**node.attributes, "states": states}
        return self.rewriter.emit("recurrence", node.inputs, attributes, like=node)

    def _moved(self, node: Node) -> str | None:
        """Movements of dequantized data move the integers."""
        operand = self._alike_everywhere(node.inputs[0])
        if operand is None or (node.operator == "max_pool" and not self._is_positive(operand)):
            return None
        inputs = (operand.name, *node.inputs[1:])
        moved = self.rewriter.emit(node.operator, inputs, node.attributes, like=node)
        return self._dequantized(replace(operand, name=moved), node)

    def _filled(self, node: Node) -> str | None:
        """What fills padding with zeros fills the integers with their zero point."""
        operand = self._alike_everywhere(node.inputs[0])
        made = None if operand is None else filled(self.rewriter, operand, node)
        return None if made is None else self._dequantized(made, node)

    def _shifted(self, node: Node) -> str | None:
        """Data that is read from a place of the run on has its zero point where it has nothing."""
        operand = self._alike_everywhere(node.inputs[0])
        if operand is None or not self._is_zero(*node.inputs[2:]):
            return None
        inputs = (operand.name, node.inputs[1], *([operand.zero] if operand.zero else []))
        moved = self.rewriter.emit("shift", inputs, node.attributes, like=node)
        return self._dequantized(replace(operand, name=moved), node)

    def _is_zero(self, value: str = "") -> bool:
        """Whether an operand that is 0 by default is the number 0."""
        array = self.rewriter.constants.get(value)
        return not value or (array is not None and not array.any())

    def _padded(self, node: Node) -> str | None:
        """Padding with zeros pads the integers with their zero point."""
        attributes = complete_attributes(node)
        operand = self._alike_everywhere(node.inputs[0])
        if operand is None or attributes["mode"] != "constant":
            return None
        value = attributes["value"] if not any(node.inputs[1:]) else 0
        if value != 0 or not self._is_zero(*node.inputs[1:]):
            return None
        given = {name: item for name, item in node.attributes.items() if name != "value"}
        inputs = (operand.name, operand.zero) if operand.zero else (operand.name,)
        padded = self.rewriter.emit("pad", inputs, given, like=node)
        return self._dequantized(replace(operand, name=padded), node)

    def _same_again(self, node: Node) -> str | None:
        """quantize of data dequantized with the same scale and zero point."""
        operand = dequantised(self.rewriter, node.inputs[0])
        if operand is None:
            return None
        return self._quantised_like(operand, node)

    def _concatenated(self, node: Node) -> str | None:
        """quantize of joined parts that come from integers, each by itself."""
        rewriter = self.rewriter
        joined = rewriter.producers.get(node.inputs[0])
        if joined is None or joined.operator != "concat" or not self._is_scalar(node):
            return None
        operands = [self._alike_everywhere(name) for name in joined.inputs]
        present = [operand for operand in operands if operand is not None]
        if len(present) < len(operands):
            return None
        parts = [
            self._quantised_like(operand, node)
            or self._quantised(replace(node, inputs=(name, *node.inputs[1:])))
            for operand, name in zip(present, joined.inputs, strict=True)
        ]
        return rewriter.emit("concat", tuple(parts), joined.attributes, like=joined)

    def _behind_movement(self, node: Node) -> str | None:
        """quantize of what only moves all elements of another value, for it alone."""
        rewriter = self.rewriter
        moved = rewriter.producers.get(node.inputs[0])
        if moved is None or moved.operator not in _KEEPING or not self._is_scalar(node):
            return None
        if self.uses[moved.output] != 1 or moved.inputs[0] not in rewriter.producers:
            return None
        source = replace(node, inputs=(moved.inputs[0], *node.inputs[1:]))
        quantised = self._behind_movement(source) or self._quantised(source)
        inputs = (quantised, *moved.inputs[1:])
        return rewriter.emit(moved.operator, inputs, moved.attributes, like=moved)

    # --- helpers --------------------------------------------------------------------------------

    def _dequantized(self, operand: Operand, node: Node) -> str:
        inputs = (operand.name, operand.scale, operand.zero)
        given: dict[str, Attribute] = {"to": "f32"}
        present = inputs if operand.zero else inputs[:2]
        return self.rewriter.emit("dequantize", present, given, like=node)

    def _alike_everywhere(self, name: str) -> Operand | None:
        """What is behind a value if its scale and zero point are one number each."""
        operand = dequantised(self.rewriter, name)
        if operand is None or self.rewriter.types[operand.scale].shape != ():
            return None
        zero = operand.zero
        return operand if not zero or self.rewriter.types[zero].shape == () else None

    def _quantised(self, node: Node) -> str:
        """A `quantize` that is not in the graph."""
        output = self.rewriter.fresh(node.output)
        self.rewriter.types[output] = node_type(node, self.rewriter.types)
        alone = replace(node, output=output)
        return self.tables.tabulated(alone) or self.rewriter.keep(alone)

    def _is_positive(self, operand: Operand) -> bool:
        """Whether larger integers are known to stand for larger numbers."""
        scale = self.rewriter.constants.get(operand.scale)
        return scale is not None and bool((scale.astype(np.float64) > 0).all())

    def _is_scalar(self, node: Node) -> bool:
        return all(self.rewriter.types[name].shape == () for name in node.inputs[1:])

    def _quantised_like(self, operand: Operand, node: Node) -> str | None:
        """The integers as `node`, a quantize, gives them, if that needs no rounding."""
        rewriter = self.rewriter
        attributes = complete_attributes(node)
        if attributes["block"] or attributes["zero_scales"]:
            return None
        to = rewriter.types[node.output].dtype
        scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else ""
        if not self._equal(scale, operand.scale):
            return None
        own = rewriter.types[operand.name].dtype
        if own is to:
            return operand.name if self._equal(zero, operand.zero) else None
        other = Signs(rewriter, to)
        turned = other.of(operand, node)
        same = rewriter.types[turned.name].dtype is to and self._equal(zero, turned.zero)
        return turned.name if same else None

    def _equal(self, left: str, right: str) -> bool:
        """Are two scales or zero points the same numbers, "" being 0?"""
        if left == right:
            return True
        zero = np.zeros((), np.int32)
        a, b = (self.rewriter.constants.get(name) if name else zero for name in (left, right))
        return a is not None and b is not None and np.array_equal(a, b)


def dequantised_node(node: Node) -> Operand | None:
    """The operand of a dequantize to f32 without blocks."""
    attributes = complete_attributes(node)
    if attributes["block"] or attributes["to"] != "f32":
        return None
    data, scale, *zero = node.inputs
    return Operand(data, zero[0] if zero else "", scale)
