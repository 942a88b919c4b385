"""Functions of one 8-bit value, from its dequantisation to their quantisation, as tables.

    quantize(sigmoid(dequantize(q)))   ->   lookup(q, table)

The table has the result for each of the 256 values, computed by the nodes that it replaces. Between
may be any pointwise nodes, more quantisations among them: x * sigmoid(x) with a rounded sigmoid is
one table as well. What is cheap to compute is left to floats: not every target looks up as fast.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tunefarm.compiler.graph.quantised.operands import Operand, Signs
from tunefarm.compiler.graph.rewriter import Rewriter
from tunefarm.compiler.operators.evaluate_node import evaluate_node
from tunefarm.compiler.operators.lookup import BYTES, ENTRIES
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, operator
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array

_MAXIMUM_NODES = 32


class Tables:
    """Makes tables of what stands before quantisations."""

    def __init__(self, rewriter: Rewriter, signs: Signs) -> None:
        self.rewriter = rewriter
        self.signs = signs
        self._positions: dict[str, int] = {}

    def tabulated(self, node: Node) -> str | None:
        """The result of a `quantize` as looked up; None where it depends on more than 8 bits
        or is cheap."""
        if self.rewriter.types[node.output].dtype not in BYTES or not self._is_pointwise(node):
            return None
        found = self._cone(node)
        if found is None:
            return None
        source, cone = found
        found_tables = any(operator(member.operator).looked_up is not None for member in cone)
        if not found_tables and all(operator(member.operator).cheap for member in cone):
            return None
        dtype = self.rewriter.types[source].dtype
        values: dict[str, Array] = {source: np.arange(ENTRIES, dtype=np.uint8).view(dtype.numpy)}
        with np.errstate(all="ignore"):
            for member in (*reversed(cone), node):
                values[member.output] = evaluate_node(member, self._operands(member, values))
        table = values[node.output]
        read = self.signs.where_free(Operand(source), node).name
        if self.rewriter.types[read].dtype is not dtype:
            table = table[np.arange(ENTRIES) ^ (ENTRIES // 2)]
        name = self.rewriter.constant(table, f"{node.output}_table")
        return self.rewriter.emit("lookup", (read, name), like=node)

    def _cone(self, node: Node) -> tuple[str, list[Node]] | None:
        """The nearest 8-bit value that all of the result depends on, and the nodes between, the
        last one first."""
        rewriter, positions = self.rewriter, self._places()
        open_values = self._read(node)
        cone: list[Node] = []
        while open_values:
            last = max(open_values, key=lambda name: positions.get(name, -1))
            if rewriter.types[last].shape != rewriter.types[node.inputs[0]].shape:
                return None
            if len(open_values) == 1 and rewriter.types[last].dtype in BYTES:
                return last, cone
            before = rewriter.producers.get(last)
            if before is None or len(cone) == _MAXIMUM_NODES or not self._is_pointwise(before):
                return None
            cone.append(before)
            open_values = (open_values - {last}) | self._read(before)
        return None

    def _places(self) -> Mapping[str, int]:
        """Where in the new graph each value is computed."""
        nodes = self.rewriter.nodes
        for number in range(len(self._positions), len(nodes)):
            self._positions[nodes[number].output] = number
        return self._positions

    def _read(self, node: Node) -> set[str]:
        """The operands that are not constant."""
        return {name for name in node.inputs if name and name not in self.rewriter.constants}

    def _is_pointwise(self, node: Node) -> bool:
        """Does each element depend on those at its place alone, and on single constants?"""
        definition = operator(node.operator)
        if definition.pattern is not Pattern.ELEMENTWISE or complete_attributes(node).get("block"):
            return False
        return all(
            position == definition.looked_up or self.rewriter.types[name].size == 1
            for position, name in enumerate(node.inputs)
            if name in self.rewriter.constants
        )

    def _operands(self, node: Node, values: Mapping[str, Array]) -> tuple[Array | None, ...]:
        looked_up = operator(node.operator).looked_up

        def operand(position: int, name: str) -> Array | None:
            constant = self.rewriter.constants.get(name)
            if constant is None:
                return values[name] if name else None
            return constant if position == looked_up else constant.reshape(())

        return tuple(operand(*item) for item in enumerate(node.inputs))
