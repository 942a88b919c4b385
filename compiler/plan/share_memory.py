"""Pass: slices that lie in one piece are read where they are, concats are written in place.

A slice whose elements are neighbours in memory becomes a `part` of its operand. A concat along the
first axis of more than one element becomes a `join`: its operands are written one behind the other
by whoever makes them. Neither runs any code. An operand that cannot be written there, since it is
an input, a constant or an output, or lies in another join, is copied.

Of a value with several parts, what begins with its last one is joined with the whole of it, and so
is what ends with its first one: the concat is a part of that, and the other parts lie next to it.

A value can lie in one place only, and the last of its concats has it. An earlier one whose operands
lie there one behind the other already is a part of that (the growing concats of a DenseNet).

Where a concat would be fused with what makes its operands and with its reader, so that all of it is
one pass over memory, it stays. So does a slice of what would be computed for it alone.

A kernel of a concat repeats its body between the places where one operand ends and the next begins,
for a limited number of them; beyond, it would choose each element. So what stays of more operands
becomes a concat of concats, each a kernel of its own: neighbours that are small together come
first, and large operands are copied once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from math import prod
from types import MappingProxyType

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import Rewriter, consumers
from tunefarm.compiler.operators.registry import Pattern, complete_attributes, operator
from tunefarm.compiler.schedule.sketches.borders import MAX_BORDERS
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Attribute

MOST_COPIED = 0.5
"""The share of a concat's bytes that may have to be copied: else one kernel copies all of them."""
MOST_OPERANDS = MAX_BORDERS + 1
"""Of a concat in one kernel: the body stands between all of its borders."""
_FREE = (Pattern.ELEMENTWISE, Pattern.INJECTIVE)


def run(graph: Graph) -> Graph:
    """The graph with parts and joins instead of slices and concats, where that saves work."""
    parts = _with_parts(graph)
    joins = _Joins(parts).plan()
    wide = {
        node.output
        for node in parts.nodes
        if node.operator == "concat"
        and len(node.inputs) > MOST_OPERANDS
        and node.output not in joins
    }
    if wide:
        parts = _with_nested_concats(parts, wide)
        joins = _Joins(parts).plan()
    rewriter = Rewriter(parts)
    for node in parts.nodes:
        operands = joins.get(node.output)
        if operands is None:
            rewriter.keep(node)
            continue
        inputs = tuple(
            rewriter.emit("copy", (operand.name,), like=node) if operand.is_copied else operand.name
            for operand in operands
        )
        _emit_join(rewriter, node, inputs, operands[0].before)
    return rewriter.finish()


def _emit_join(rewriter: Rewriter, node: Node, inputs: tuple[str, ...], before: int) -> None:
    """The join of these values; where they are more than the concat, that is a part of it."""
    type = rewriter.graph.types[node.output]
    total = sum(rewriter.types[name].size for name in inputs)
    if total == type.size:
        rewriter.emit("join", inputs, {"shape": type.shape}, like=node, output=node.output)
        return
    joined = rewriter.emit("join", inputs, {"shape": (total,)}, like=node)
    part: dict[str, Attribute] = {"offset": before, "shape": type.shape}
    rewriter.emit("part", (joined,), part, like=node, output=node.output)


# --- slices -------------------------------------------------------------------------------------


def _with_parts(graph: Graph) -> Graph:
    facts = _Facts(graph)
    nodes = []
    for node in graph.nodes:
        offset = _offset(graph, node)
        if offset is not None and facts.may_be_part(node):
            shape = graph.types[node.output].shape
            attributes: dict[str, Attribute] = {"offset": offset, "shape": shape}
            node = replace(node, operator="part", attributes=MappingProxyType(attributes))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _offset(graph: Graph, node: Node) -> int | None:
    """The first element of a slice whose elements are neighbours in memory, else None."""
    if node.operator != "slice":
        return None
    whole, taken = graph.types[node.inputs[0]].shape, graph.types[node.output].shape
    attributes = complete_attributes(node)
    starts, steps = attributes.integers("starts"), attributes.integers("steps")
    if any(step != 1 and extent > 1 for step, extent in zip(steps, taken, strict=True)):
        return None
    inner = len(taken)
    while inner and taken[inner - 1] == whole[inner - 1]:
        inner -= 1
    if any(extent != 1 for extent in taken[: max(0, inner - 1)]):
        return None
    strides = [prod(whole[axis + 1 :]) for axis in range(len(whole))]
    return sum(start * stride for start, stride in zip(starts, strides, strict=True))


class _Facts:
    """Who makes and reads the values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = {node.output: node for node in graph.nodes}
        self.readers = consumers(graph)
        self.returned = {self.root(name) for name in graph.outputs}

    def root(self, name: str) -> str:
        """The value that this one is, as a whole, under another shape."""
        node = self.producers.get(name)
        while node is not None and self.is_whole_view(node):
            name = node.inputs[0]
            node = self.producers.get(name)
        return name

    def is_whole_view(self, node: Node) -> bool:
        """Whether it is all of its operand."""
        types = self.graph.types
        is_view = operator(node.operator).pattern is Pattern.VIEW
        return is_view and types[node.inputs[0]].size == types[node.output].size

    def pattern(self, name: str) -> Pattern | None:
        """The pattern of the node that makes a value; None for inputs and constants."""
        node = self.producers.get(name)
        return None if node is None else operator(node.operator).pattern

    def has_one_reader(self, name: str) -> bool:
        """Whether a single node reads a value, and nobody else."""
        return len(self.readers.get(name, ())) == 1 and name not in self.graph.outputs

    def may_be_part(self, node: Node) -> bool:
        """Whether a slice is worth reading where it is, and nothing stands against it."""
        source = node.inputs[0]
        root = self.root(source)
        computed_for_it = self.pattern(source) in _FREE and self.has_one_reader(source)
        return node.output not in self.returned and (
            root not in self.graph.constants and not computed_for_it
        )


# --- concats ------------------------------------------------------------------------------------


def _with_nested_concats(graph: Graph, wide: Collection[str]) -> Graph:
    """The graph with concats of concats instead of those, at most `MOST_OPERANDS` in each."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node.output not in wide:
            rewriter.keep(node)
            continue
        attributes = complete_attributes(node)
        names = [rewriter.value(name) for name in node.inputs]
        sizes = [rewriter.types[name].size for name in names]
        while len(names) > MOST_OPERANDS:
            count = min(MOST_OPERANDS, len(names) - MOST_OPERANDS + 1)
            ends = np.concatenate(([0], np.cumsum(sizes)))
            first = int(np.argmin(ends[count:] - ends[:-count]))
            inner = tuple(names[first : first + count])
            joined = rewriter.emit("concat", inner, attributes, like=node)
            names[first : first + count] = [joined]
            sizes[first : first + count] = [rewriter.types[joined].size]
        rewriter.emit("concat", tuple(names), attributes, like=node, output=node.output)
    return rewriter.finish()


@frozen
class _Operand:
    """What a join is made of: a value, or a copy of it.

    Of the first one `before` elements lie before what is joined.
    """

    name: str
    is_copied: bool
    before: int = 0


class _Joins:
    """Which concats become joins, the last ones first."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.facts = graph, _Facts(graph)
        self.spots: dict[str, tuple[str, int]] = {}  # by root: the join it lies in, and the byte

    def plan(self) -> Mapping[str, Sequence[_Operand]]:
        """The operands of the joins, by their result."""
        joins: dict[str, Sequence[_Operand]] = {}
        for node in reversed(self.graph.nodes):
            if self._is_in_one_piece(node):
                operands = self._operands(node)
                if operands is not None:
                    joins[node.output] = operands
        return joins

    def _is_in_one_piece(self, node: Node) -> bool:
        """Whether the operands of a concat lie one behind the other in its result."""
        if node.operator != "concat" or node.attributes.get("channels"):
            return False
        axis = complete_attributes(node).integer("axis")
        return all(extent == 1 for extent in self.graph.types[node.output].shape[:axis])

    def _operands(self, node: Node) -> Sequence[_Operand] | None:
        """What a concat joins; None where it is better one kernel."""
        names = self._whole(node.inputs)
        roots = [self.facts.root(name) for name in names]
        sizes = [self.graph.types[name].bytes for name in names]
        offsets = list(accumulate(sizes, initial=0))
        if self._lie_in_order(node, roots, offsets):
            return [_Operand(name, False) for name in names]
        before = self._wholes_of_parts(node, names, roots, offsets)
        copied = [
            root in roots[:position] or not self._can_lie_elsewhere(root)
            for position, root in enumerate(roots)
        ]
        total = sum(sizes)
        copies = sum(size for size, is_copied in zip(sizes, copied, strict=True) if is_copied)
        if copies > MOST_COPIED * total or self._is_better_fused(node, names, copies):
            return None
        for root, offset, is_copied in zip(roots, offsets, copied, strict=False):
            if not is_copied:
                self.spots[root] = (node.output, offset)
        first, *others = zip(names, copied, strict=True)
        return [_Operand(*first, before), *(_Operand(*pair) for pair in others)]

    def _wholes_of_parts(
        self, node: Node, names: list[str], roots: list[str], offsets: list[int]
    ) -> int:
        """Put whole values where a concat begins with the last part of one, or ends with a first.

        Returns how many elements then lie before it.
        """
        before = 0
        if node.output in self.spots or node.output in self.facts.returned:
            return 0
        for position, at_its_end in ((0, True), (-1, False)):
            part = self.facts.producers.get(roots[position])
            if part is None or part.operator != "part":
                continue
            types, (whole,) = self.graph.types, part.inputs
            offset, root = complete_attributes(part).integer("offset"), self.facts.root(whole)
            end = types[whole].size - types[part.output].size
            fits = offset == (end if at_its_end else 0) and self._can_lie_elsewhere(root)
            if not fits or root in roots:
                continue
            names[position] = roots[position] = root
            if at_its_end:
                before = end
                offsets[0] = -end * types[whole].dtype.bytes
        return before

    def _whole(self, names: Sequence[str]) -> list[str]:
        """The values, with all parts of one value in their order taken as that value."""
        result: list[str] = []
        position = 0
        while position < len(names):
            name, count = self._first_value(names[position:])
            result.append(name)
            position += count
        return result

    def _first_value(self, names: Sequence[str]) -> tuple[str, int]:
        """The value that the first few of these make up, and how many do."""
        producers, types = self.facts.producers, self.graph.types
        source, end = "", 0
        for count, name in enumerate(names, start=1):
            part = producers.get(name)
            if part is None or part.operator != "part":
                break
            source = source or part.inputs[0]
            if part.inputs[0] != source or complete_attributes(part).integer("offset") != end:
                break
            end += types[name].size
            if end == types[source].size:
                return source, count
        return names[0], 1

    def _lie_in_order(self, node: Node, roots: Sequence[str], offsets: Sequence[int]) -> bool:
        """Whether a later join has the operands one behind the other; then that has the result."""
        spots = [self.spots.get(root) for root in roots]
        first = spots[0]
        if first is None or node.output in self.facts.returned or node.output in self.spots:
            return False
        join, start = first
        return all(
            spot == (join, start + offset) for spot, offset in zip(spots, offsets, strict=False)
        )

    def _can_lie_elsewhere(self, root: str) -> bool:
        """Whether what makes a value can write it into a join."""
        node = self.facts.producers.get(root)
        if node is None or operator(node.operator).pattern in (Pattern.VIEW, Pattern.LOOP):
            return False
        return root not in self.spots and root not in self.facts.returned

    def _is_better_fused(self, node: Node, names: Sequence[str], copies: int) -> bool:
        """Whether one kernel would read what the operands are made from, or write what the reader
        makes, with a concat's own pass saved."""
        facts = self.facts
        readers = facts.readers.get(node.output, [])
        joined = facts.has_one_reader(node.output) and facts.pattern(readers[0].output) in _FREE
        made = any(facts.pattern(name) in _FREE and facts.has_one_reader(name) for name in names)
        return joined and (copies > 0 or made)
