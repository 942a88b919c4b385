"""The meaning of a graph: its values in NumPy, node by node, loops step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.loop_regions import Loops, loop_of, loop_regions
from tunefarm.compiler.operators.evaluate_node import evaluate_node
from tunefarm.compiler.operators.loop import INDEX, RESULT, STATE, LoopParts
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array

Values = dict[str, Array]


def evaluate_graph(
    graph: Graph,
    inputs: Mapping[str, Array],
    behind: Callable[[str, Array], Array] = lambda name, value: value,
) -> Values:
    """All values that are known behind the last node, by name; of loops those behind them.

    Rows that no step of a loop has collected are 0. `behind` gives what readers see of the value
    that a node has computed: a check of what nobody may read puts something else there.
    Raises `ShapeError` for inputs of other types.
    """
    values = {**graph.constants, **inputs}
    _Evaluation(graph, loop_regions(graph), behind).run(values, ())
    return values


@frozen
class _Evaluation:
    graph: Graph
    regions: Mapping[str, Loops]
    behind: Callable[[str, Array], Array]

    def run(self, values: Values, within: Loops) -> None:
        """Compute what lies in these loops and in no other."""
        ended: dict[int, list[Array]] = {}
        for node in self.graph.nodes:
            if node.output in values or self.regions.get(node.output, ()) != within:
                continue
            if node.operator == RESULT:
                loop = loop_of(node)
                if loop not in ended:
                    ended[loop] = self._loop(node, values, (*within, loop))
                number = node.attributes["number"]
                assert isinstance(number, int)
                values[node.output] = ended[loop][number]
            else:
                operands = tuple(values[name] if name else None for name in node.inputs)
                values[node.output] = self.behind(node.output, evaluate_node(node, operands))

    def _loop(self, node: Node, values: Values, within: Loops) -> list[Array]:
        """All results of a loop, in their order."""
        parts, most = LoopParts.of(node), node.attributes["most"]
        assert isinstance(most, int)
        asked = int(values[parts.limit]) if parts.limit else most
        limit, goes_on = min(asked, most), not parts.first or bool(values[parts.first])
        states = [values[name] for name in parts.initial]
        kept: list[list[Array]] = [[] for _ in parts.collected]
        count = 0
        while count < limit and goes_on:
            step = {**values, **self._bounds(within[-1], states, count)}
            self.run(step, within)
            states = [step[name] for name in parts.states]
            for rows, name in zip(kept, parts.collected, strict=True):
                rows.append(step[name])
            goes_on = not parts.again or bool(step[parts.again])
            count += 1
        rows = [self._rows(node, number, limit, rows) for number, rows in enumerate(kept)]
        return [*states, *rows, np.array(count), np.array(count < asked and goes_on)]

    def _bounds(self, loop: int, states: Sequence[Array], count: int) -> Values:
        """What a step begins with."""
        found: Values = {}
        for node in self.graph.nodes:
            if node.operator == INDEX and loop_of(node) == loop:
                found[node.output] = np.array(count)
            elif node.operator == STATE and loop_of(node) == loop:
                number = node.attributes["number"]
                assert isinstance(number, int)
                found[node.output] = states[number]
        return found

    def _rows(self, node: Node, number: int, limit: int, rows: Sequence[Array]) -> Array:
        """What the steps have collected, each in its place."""
        states, backward = node.attributes["states"], node.attributes.get("backward", ())
        assert isinstance(states, int)
        assert isinstance(backward, tuple)
        results = {n.attributes["number"]: n.output for n in self._results(loop_of(node))}
        name = results.get(states + number)
        if name is None:  # nobody reads them
            return np.zeros(0)
        type = self.graph.types[name]
        array = np.zeros(type.shape, type.dtype.numpy)
        for place, row in enumerate(rows):
            array[limit - 1 - place if number in backward else place] = row
        return array

    def _results(self, loop: int) -> list[Node]:
        return [n for n in self.graph.nodes if n.operator == RESULT and loop_of(n) == loop]
