"""What patterns ask of a graph: who computes a value and from what, numbers, polynomials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TypeAlias

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter, consumers
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, operator
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array, Attribute

Coefficients: TypeAlias = Mapping[int, float]
"""A polynomial by power; no coefficient is 0."""

_MAXIMUM_NODES = 24
_MAXIMUM_DEPTH = 6
_RELATIVE = 2e-6  # that numbers may differ by: roundings of f32, and models' few digits
_NARROW = {DType.F16: 2e-3, DType.BF16: 1e-2}  # the same of a few numbers stored in 16 bits


@frozen
class Match:
    """An operator that stands for all nodes from its inputs to the node `last`.

    Where `shape` is given the first input is reshaped to it, and the result back. `constants` are
    further inputs.
    """

    last: Node
    operator: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    constants: tuple[Array, ...] = ()
    shape: tuple[int, ...] | None = None

    def emit(self, rewriter: Rewriter) -> None:
        """Append the operator that replaces the last node."""
        last = self.last
        inputs = tuple(rewriter.value(name) for name in self.inputs)
        result = rewriter.types[last.output].shape
        if self.shape is not None:
            view = rewriter.emit("reshape", inputs[:1], {"shape": self.shape}, like=last)
            inputs = (view, *inputs[1:])
        hint = f"{last.output}_{self.operator}"
        inputs += tuple(rewriter.constant(array, hint) for array in self.constants)
        if self.shape is None:
            rewriter.emit(self.operator, inputs, self.attributes, like=last, output=last.output)
            return
        grouped = rewriter.emit(self.operator, inputs, self.attributes, like=last)
        rewriter.emit("reshape", (grouped,), {"shape": result}, like=last, output=last.output)


MatchRule: TypeAlias = Callable[["Finder", Node], "Match | None"]


class Finder:
    """Answers about one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._producers = {node.output: node for node in graph.nodes}
        self._readers = consumers(graph)
        self._outputs = frozenset(graph.outputs)

    # --- values ---------------------------------------------------------------------------------

    def producer(self, name: str) -> Node | None:
        """The node that computes a value; None of inputs and constants."""
        return self._producers.get(name)

    def node(self, name: str, *operators: str) -> Node | None:
        """The node that computes a value, if it is one of these operators."""
        node = self._producers.get(name)
        return node if node is not None and node.operator in operators else None

    def readers(self, name: str, *operators: str) -> list[Node]:
        """The nodes that read a value and are one of these operators."""
        return [node for node in self._readers.get(name, ()) if node.operator in operators]

    def view(self, name: str) -> str | None:
        """What a value is another shape of; None if it is not."""
        node = self._producers.get(name)
        is_view = node is not None and operator(node.operator).pattern is Pattern.VIEW
        return node.inputs[0] if node is not None and is_view else None

    def view_root(self, name: str) -> str:
        """The value that this one is another shape of, or itself."""
        while (source := self.view(name)) is not None:
            name = source
        return name

    def in_shape(self, name: str, shape: tuple[int, ...]) -> str:
        """The same elements under a shape that they had before, if they did; else the value."""
        found: str | None = name
        while found is not None and self.shape(found) != shape:
            found = self.view(found)
        return name if found is None else found

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value."""
        return self.graph.types[name].shape

    def size(self, name: str) -> int:
        """The number of elements of a value."""
        return self.graph.types[name].size

    def dtype(self, name: str) -> DType:
        """The element type of a value."""
        return self.graph.types[name].dtype

    def constant(self, name: str) -> Array | None:
        """The array of a constant; None for what is computed."""
        return self.graph.constants.get(name)

    def number(self, name: str) -> float | None:
        """The value of a constant that has the same number everywhere."""
        array = self.graph.constants.get(name)
        if array is None or array.size == 0 or array.dtype == np.bool_:
            return None
        first = array.reshape(-1)[0]
        return float(first) if array.size == 1 or bool(np.all(array == first)) else None

    def has_number(self, name: str, value: float) -> bool:
        """The value is this number everywhere."""
        number = self.number(name)
        return number is not None and close(number, value)

    def is_close(self, number: float, wanted: float, name: str) -> bool:
        """Two numbers differ by roundings only, of the type that a value has."""
        return close(number, wanted, _NARROW.get(self.dtype(name), _RELATIVE))

    def with_number(self, name: str, op: str) -> list[tuple[str, float]]:
        """The other operand and the number, where a value is `operand op number`.

        Numbers may be on either side of operators that commute.
        """
        node = self.node(name, op)
        if node is None:
            return []
        pairs = operand_pairs(node)
        numbers = [(inner, self.number(other)) for inner, other in pairs]
        return [(inner, number) for inner, number in numbers if number is not None]

    def squared(self, name: str) -> str | None:
        """x where a value is x x or x^2."""
        product = self.node(name, "mul")
        if product is not None and product.inputs[0] == product.inputs[1]:
            return product.inputs[0]
        powers = self.with_number(name, "pow")
        return next((base for base, exponent in powers if exponent == 2), None)

    def sigmoid_of(self, name: str) -> str | None:
        """x where a value is sigmoid(x)."""
        node = self.node(name, "sigmoid")
        return node.inputs[0] if node is not None else None

    def softplus_of(self, name: str) -> str | None:
        """x where a value is softplus(x), or log(1 + exp(x))."""
        node = self.node(name, "softplus", "log")
        if node is None or node.operator == "softplus":
            return node.inputs[0] if node is not None else None
        for inner, number in self.with_number(node.inputs[0], "add"):
            exponential = self.node(inner, "exp")
            if number == 1 and exponential is not None:
                return exponential.inputs[0]
        return None

    # --- arithmetic -----------------------------------------------------------------------------

    def factors(self, name: str) -> tuple[float, list[str]]:
        """A number and the values whose product a value is; numbers divide, values do not."""
        return self._factors(name, self.shape(name), _MAXIMUM_DEPTH)

    def _factors(self, name: str, shape: tuple[int, ...], depth: int) -> tuple[float, list[str]]:
        node = self.node(name, "mul", "div")
        whole = depth == _MAXIMUM_DEPTH or len(self._readers.get(name, ())) == 1
        if node is None or not depth or not whole or self.shape(name) != shape:
            return 1.0, [name]
        if node.operator == "div":
            divisor = self.number(node.inputs[1])
            if not divisor:
                return 1.0, [name]
            number, values = self._operand(node.inputs[0], shape, depth)
            return number / divisor, values
        left = self._operand(node.inputs[0], shape, depth)
        right = self._operand(node.inputs[1], shape, depth)
        return left[0] * right[0], left[1] + right[1]

    def _operand(self, name: str, shape: tuple[int, ...], depth: int) -> tuple[float, list[str]]:
        number = self.number(name)
        return self._factors(name, shape, depth - 1) if number is None else (number, [])

    def polynomial(self, name: str, x: str, depth: int = _MAXIMUM_DEPTH) -> Coefficients | None:
        """The polynomial in x, element by element, that a value is; None if it is none."""
        if name == x:
            return {1: 1.0}
        number = self.number(name)
        if number is not None:
            return {0: number} if number else {}
        node = self.node(name, "add", "sub", "mul", "div", "neg", "pow")
        if node is None or not depth or self.shape(name) != self.shape(x):
            return None
        left = self.polynomial(node.inputs[0], x, depth - 1)
        if left is None or node.operator == "neg":
            return None if left is None else _scaled(left, -1.0)
        if node.operator == "pow":
            exponent = self.number(node.inputs[1])
            return _raised(left, exponent) if exponent in (1, 2, 3, 4) else None
        right = self.polynomial(node.inputs[1], x, depth - 1)
        if right is None:
            return None
        match node.operator:
            case "add":
                return _sum(left, right)
            case "sub":
                return _sum(left, _scaled(right, -1.0))
            case "mul":
                return _product(left, right)
        divisor = right.get(0) if set(right) == {0} else None
        return _scaled(left, 1 / divisor) if divisor else None

    def is_polynomial(self, name: str, x: str, wanted: Coefficients) -> bool:
        """A value is this polynomial in x."""
        found = self.polynomial(name, x)
        if found is None or set(found) != set(wanted):
            return False
        return all(self.is_close(found[power], value, x) for power, value in wanted.items())

    # --- what a match takes in ------------------------------------------------------------------

    def inside(self, match: Match) -> frozenset[str] | None:
        """The values that the match would compute, or None where others need them too.

        Those are all from its inputs to its last node.
        """
        found: set[str] = set()
        waiting = [match.last]
        while waiting:
            node = waiting.pop()
            if node.output in found:
                continue
            found.add(node.output)
            if len(found) > _MAXIMUM_NODES:
                return None
            for name in node.inputs:
                producer = self._producers.get(name)
                if name not in match.inputs and producer is not None:
                    waiting.append(producer)
        private = found - {match.last.output}
        readers = {reader.output for name in private for reader in self._readers.get(name, ())}
        if private & self._outputs or not readers <= found:
            return None
        return frozenset(found)


def operand_pairs(node: Node) -> tuple[tuple[str, str], ...]:
    """(operand, other operand): both ways round where a node's operator commutes."""
    left, right = node.inputs
    both = operator(node.operator).commutes
    return ((left, right), (right, left)) if both else ((left, right),)


def trailing_axis(node: Node, rank: int) -> int | None:
    """The first of the axes that a node reduces, if those are the last ones and are kept."""
    attributes = complete_attributes(node)
    axes = sorted(attributes.integers("axes"))
    whole = bool(axes) and axes == list(range(axes[0], rank)) and attributes.flag("keepdims")
    return axes[0] if whole else None


def close(left: float, right: float, relative: float = _RELATIVE) -> bool:
    """Two numbers differ by roundings only."""
    return abs(left - right) <= relative * abs(right)


def _sum(left: Coefficients, right: Coefficients) -> Coefficients:
    total = {power: left.get(power, 0.0) + right.get(power, 0.0) for power in {*left, *right}}
    return {power: value for power, value in total.items() if value}


def _scaled(polynomial: Coefficients, factor: float) -> Coefficients:
    return {power: value * factor for power, value in polynomial.items()}


def _product(left: Coefficients, right: Coefficients) -> Coefficients:
    total: Coefficients = {}
    for power, value in right.items():
        shifted = {before + power: own * value for before, own in left.items()}
        total = _sum(total, shifted)
    return total


def _raised(polynomial: Coefficients, exponent: float) -> Coefficients:
    result = polynomial
    for _ in range(int(exponent) - 1):
        result = _product(result, polynomial)
    return result
