"""Masks that hide keys by their number: causal ones and sliding windows, as bounds on n - m.

    where(greater(keys, add(rows, past)), lowest, 0)     ->     query m sees key n if n - m <= past

Spellings that are known: comparisons of sums of positions and numbers, `and`, `or` and `not` of
them, constants, numbers chosen by them or multiplied by a comparison (as transformers has it). A
mask that hides other keys as well, padding say, still has bounds, but no bounds say all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array

HIDDEN = -1e9
"""What is added to a score, or stands there, at most where a key is hidden: behind exp it is 0."""
_COMPARISONS = {
    "less": (1, -1),
    "less_equal": (1, 0),
    "greater": (-1, -1),
    "greater_equal": (-1, 0),
}
"""sign * (left - right) <= number."""
_Steps = dict[int, int]
"""By axis, counted from the end (1 is the last), how much a number grows along it."""


@frozen
class Offset:
    """A number and signed integer values, of one element each or of one for each matrix."""

    constant: int = 0
    terms: tuple[tuple[int, str], ...] = ()

    def plus(self, other: Offset, sign: int = 1) -> Offset:
        """The sum, or with -1 the difference."""
        terms = tuple((sign * by, name) for by, name in other.terms)
        return Offset(self.constant + sign * other.constant, self.terms + terms)


@frozen
class Diagonals:
    """Query m sees at most the keys n with min(first) <= n - m <= max(last); () is no bound."""

    last: tuple[Offset, ...] = ()
    first: tuple[Offset, ...] = ()
    whole: bool = True  # and it sees all of them
    finite: bool = False  # what hides keys is a number: where all are hidden, they count alike

    def __bool__(self) -> bool:
        return bool(self.last or self.first)

    def both(self, other: Diagonals) -> Diagonals:
        """What is seen by both masks."""
        twice = (self.last and other.last) or (self.first and other.first)
        return Diagonals(
            self.last or other.last,
            self.first or other.first,
            self.whole and other.whole and not twice,
            self.finite or other.finite,
        )

    def either(self, other: Diagonals) -> Diagonals:
        """What is seen by one of both masks at least."""
        last = self.last + other.last if self.last and other.last else ()
        first = self.first + other.first if self.first and other.first else ()
        one_sided = not (self.last or other.last) or not (self.first or other.first)
        bounded = bool(self) and bool(other)
        whole = self.whole and other.whole and one_sided and bounded
        return Diagonals(last, first, whole, self.finite or other.finite)


_ANYTHING = Diagonals(whole=False)


class MaskReader:
    """Reads masks of scores [..., queries, keys] backwards from their values."""

    def __init__(self, graph: Graph, producers: Mapping[str, Node]) -> None:
        self.graph = graph
        self.producers = producers

    def of_bools(self, name: str, seen: bool, depth: int = 16) -> Diagonals:
        """The keys for which a mask of bools, or of integers that are 0 or not, is `seen`."""
        array, node = self.graph.constants.get(name), self.producers.get(name)
        if array is not None:
            return _of_array(array.astype(bool) == seen)
        if node is None or not depth:
            return _ANYTHING
        first, *rest = node.inputs
        match node.operator:
            case "not":
                return self.of_bools(first, not seen, depth - 1)
            case "and" | "or":
                left, right = (self.of_bools(item, seen, depth - 1) for item in (first, *rest))
                return left.both(right) if (node.operator == "and") == seen else left.either(right)
            case "where":
                yes, no = (self._truth(item) for item in rest)
                if yes is not None and no is not None and yes != no:
                    return self.of_bools(first, seen == yes, depth - 1)
            case "reshape" | "expand" | "cast" if self._keeps_matrices(node):
                return self.of_bools(first, seen, depth - 1)
            case _ if node.operator in _COMPARISONS:
                return self._compared(node, seen)
        return _ANYTHING

    def of_numbers(self, name: str, depth: int = 16) -> Diagonals:
        """The keys that a mask of numbers, which is added, does not hide."""
        array, node = self.graph.constants.get(name), self.producers.get(name)
        if array is not None:
            return _of_numbers(array)
        if node is None or not depth:
            return _ANYTHING
        match node.operator:
            case "where":
                condition, left, right = node.inputs
                for chosen, hidden, shown in ((False, left, right), (True, right, left)):
                    if self._hides(hidden):
                        seen = self.of_bools(condition, chosen, depth - 1)
                        other = self.of_numbers(shown, depth - 1)
                        finite = bool(np.isfinite(self.graph.constants[hidden]).any())
                        return replace(seen.both(other), finite=finite or other.finite)
            case "mul":
                for hidden, factor in (node.inputs, node.inputs[::-1]):
                    zero = self._zeros_and_ones(factor)
                    if zero:
                        found = self.of_numbers(hidden, depth - 1)
                        other = self.of_bools(zero, False, depth - 1)
                        return replace(found.either(other), finite=found.finite)
            case "reshape" | "expand" | "cast" if self._keeps_matrices(node):
                return self.of_numbers(node.inputs[0], depth - 1)
        return _ANYTHING

    def _hides(self, name: str) -> bool:
        """Whether a value is a constant that hides a key when it is added to a score."""
        array = self.graph.constants.get(name)
        return array is not None and array.size > 0 and bool(np.all(np.less_equal(array, HIDDEN)))

    def _truth(self, name: str) -> bool | None:
        """Whether all of a constant is true, or not 0; None where that is not so everywhere."""
        array = self.graph.constants.get(name)
        if array is None or (array.any() and not array.all()):
            return None
        return bool(array.any())

    def _zeros_and_ones(self, name: str) -> str:
        """The bools that numbers are a cast of; "" if they are not."""
        node = self.producers.get(name)
        is_cast = node is not None and node.operator == "cast"
        if node is None or not is_cast or str(self.graph.types[node.inputs[0]].dtype) != "bool":
            return ""
        return node.inputs[0]

    def _keeps_matrices(self, node: Node) -> bool:
        """Whether queries and keys stay the last two axes."""
        before, after = (self.graph.types[name].shape for name in (node.inputs[0], node.output))
        same = (1, 1, *before)[-2:] == (1, 1, *after)[-2:]
        if node.operator == "reshape":
            return same and math.prod(before[:-2]) == math.prod(after[:-2])
        return same

    # --- comparisons ----------------------------------------------------------------------------

    def _compared(self, node: Node, seen: bool) -> Diagonals:
        left, right = (self._sum(name) for name in node.inputs)
        if left is None or right is None:
            return _ANYTHING
        sign, most = _COMPARISONS[node.operator]
        if not seen:
            sign, most = -sign, -most - 1
        steps, offset = _added(left, right, -1)
        along = {axis: sign * step for axis, step in steps.items() if step}
        if sorted(along) != [1, 2] or along[1] != -along[2] or abs(along[1]) != 1:
            return _ANYTHING
        alike = all(self.graph.types[name].size == 1 for _, name in offset.terms)
        if along[1] == 1:  # n - m + sign * offset <= most
            return Diagonals(last=(Offset(most).plus(offset, -sign),), whole=alike)
        return Diagonals(first=(Offset(-most).plus(offset, sign),), whole=alike)

    def _sum(self, name: str, depth: int = 16) -> tuple[_Steps, Offset] | None:
        """An integer as what it grows by along axes, and what is the same along the last two."""
        type, array = self.graph.types[name], self.graph.constants.get(name)
        if not type.dtype.is_integer or not depth:
            return None
        if array is not None:
            return _steps_of(array)
        found, node = None, self.producers.get(name)
        match node:
            case Node(operator="add" | "sub"):
                left, right = (self._sum(item, depth - 1) for item in node.inputs)
                if left is not None and right is not None:
                    found = _added(left, right, 1 if node.operator == "add" else -1)
            case Node(operator="cast" | "expand"):
                found = self._sum(node.inputs[0], depth - 1)
            case Node(operator="reshape"):
                found = self._reshaped(node, depth)
        if found is None and math.prod(type.shape[-2:]) == 1:
            return {}, Offset(0, ((1, name),))
        return found

    def _reshaped(self, node: Node, depth: int) -> tuple[_Steps, Offset] | None:
        """Where axes of one element come or go."""
        found = self._sum(node.inputs[0], depth - 1)
        before, after = (
            [(len(shape) - axis, extent) for axis, extent in enumerate(shape) if extent > 1]
            for shape in (self.graph.types[name].shape for name in (node.inputs[0], node.output))
        )
        if found is None or [extent for _, extent in before] != [extent for _, extent in after]:
            return None
        steps, offset = found
        if any(self.graph.types[name].size > 1 for _, name in offset.terms):
            return None
        moved = {old: new for (old, _), (new, _) in zip(before, after, strict=True)}
        return {moved[axis]: step for axis, step in steps.items() if step}, offset


def _added(
    left: tuple[_Steps, Offset], right: tuple[_Steps, Offset], sign: int
) -> tuple[_Steps, Offset]:
    axes = {*left[0], *right[0]}
    steps = {axis: left[0].get(axis, 0) + sign * right[0].get(axis, 0) for axis in axes}
    return steps, left[1].plus(right[1], sign)


def _steps_of(array: Array) -> tuple[_Steps, Offset] | None:
    """A constant that grows evenly along its axes."""
    if not array.size:
        return None
    corner, rank = int(array.reshape(-1)[0]), array.ndim
    steps: _Steps = {}
    rebuilt = np.full((), corner, np.int64)
    for axis in range(rank):
        if array.shape[axis] > 1:
            step = int(array.take(1, axis).reshape(-1)[0]) - corner
            shape = [-1 if other == axis else 1 for other in range(rank)]
            steps[rank - axis] = step
            rebuilt = rebuilt + step * np.arange(array.shape[axis]).reshape(shape)
    if not np.all(array == rebuilt):
        return None
    return steps, Offset(corner)


def _of_array(seen: Array) -> Diagonals:
    """Constant bools: the outermost diagonals in which keys are seen."""
    if seen.ndim < 2 or seen.size != seen.shape[-2] * seen.shape[-1] or 1 in seen.shape[-2:]:
        return _ANYTHING
    matrix = seen.reshape(-1, seen.shape[-1])
    places = np.arange(matrix.shape[1]) - np.arange(matrix.shape[0])[:, None]
    if not matrix.any(axis=1).all():
        return _ANYTHING
    last, first = int(places[matrix].max()), int(places[matrix].min())
    whole = np.array_equal(matrix, (places <= last) & (places >= first))
    return Diagonals(
        (Offset(last),) if last < places.max() else (),
        (Offset(first),) if first > places.min() else (),
        whole,
    )


def _of_numbers(array: Array) -> Diagonals:
    """Constant numbers that are added to scores: those that hide nothing are 0, or more is said."""
    hidden = np.less_equal(array, HIDDEN)
    found = _of_array(~hidden) if hidden.any() else replace(_ANYTHING, whole=not array.any())
    finite = bool(np.isfinite(array[hidden]).any())
    return replace(found, whole=found.whole and not array[~hidden].any(), finite=finite)
