"""Loop and Scan unrolled: a copy of the body a step, under guards where the end is computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto

from tunefarm.compiler.frontend.chosen_values import chosen
from tunefarm.compiler.frontend.data_sizes import counted_size, with_axis
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.structured_values import Entity
from tunefarm.compiler.frontend.subgraphs import Results, Subgraphs, body_of, constant_bool
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import bounds_of

MOST_UNROLLED = 1024
"""Steps of a loop, and of one whose end is computed `MOST_GUARDED`."""
MOST_GUARDED = 64
_DIRECTIONS = {8: "directions"}


def unroll_scan(node: OnnxNode, graph: GraphBuilder, inline: Subgraphs) -> Results | None:
    """One copy of the body per position of the scanned axes; version 8 per element of a batch."""
    body, count = body_of(node, "body"), node.integer("num_scan_inputs")
    first = 0 if node.version > 8 else 1
    given = [node.input(position) for position in range(first, len(node.inputs))]
    if not 0 < count <= len(given) or len(body.input) != len(given):
        raise node.invalid(f"num_scan_inputs is {count}, and the body has {len(body.input)} inputs")
    states, scanned = given[: len(given) - count], given[len(given) - count :]
    if node.version > 8:
        return _unrolled_scan(node, graph, inline, body, states, scanned)
    return _scan_batch(node, graph, inline, body, states, scanned)


def _scan_batch(
    node: OnnxNode,
    graph: GraphBuilder,
    inline: Subgraphs,
    body: GraphProto,
    states: Sequence[Value],
    scanned: Sequence[Value],
) -> Results | None:
    """Version 8: all values have a batch axis in front, and each of its elements is scanned."""
    if node.entity(0) is not None:
        raise node.unsupported("lengths of the sequences of a batch")
    batches = {value.shape[0] if value.rank else 0 for value in (*states, *scanned)}
    if len(batches) != 1:
        raise node.bad_shape(f"the batch axes have the sizes {sorted(batches)}")
    parts: list[Results] = []
    for number in range(batches.pop()):
        own = [_position(value, 0, number, graph) for value in states]
        sliced = [_position(value, 0, number, graph) for value in scanned]
        part = _unrolled_scan(node, graph, inline, body, own, sliced)
        if part is None:
            return None
        parts.append(part)
    tensors = [[value for value in part if isinstance(value, Value)] for part in parts]
    return [_stacked(node, values, 0, graph) for values in zip(*tensors, strict=True)]


def _unrolled_scan(
    node: OnnxNode,
    graph: GraphBuilder,
    inline: Subgraphs,
    body: GraphProto,
    initial: Sequence[Value],
    scanned: Sequence[Value],
) -> Results | None:
    states: list[Entity | None] = list(initial)
    count = len(scanned)
    axes = [
        node.axis(axis, value.rank)
        for axis, value in zip(node.integers("scan_input_axes", (0,) * count), scanned, strict=True)
    ]
    lengths = {value.shape[axis] for axis, value in zip(axes, scanned, strict=True)}
    if len(lengths) != 1:
        raise node.bad_shape(f"the scanned axes have the sizes {sorted(lengths)}")
    steps = lengths.pop()
    _check_steps(node, steps)
    backward = node.integers(_DIRECTIONS.get(node.version, "scan_input_directions"), (0,) * count)
    collected: list[list[Value]] = [[] for _ in range(len(node.outputs) - len(states))]
    for step in range(steps):
        slices = [
            _position(value, axis, steps - 1 - step if reverse else step, graph)
            for value, axis, reverse in zip(scanned, axes, backward, strict=True)
        ]
        results = inline(body, [*states, *slices])
        if results is None:
            return None
        states = list(results[: len(states)])
        _collect(node, collected, results[len(states) :])
    outputs = len(collected)
    reverse = node.integers("scan_output_directions", (0,) * outputs)
    output_axes = node.integers("scan_output_axes", (0,) * outputs)
    stacked = [
        _stacked(node, values[::-1] if backwards else values, axis, graph)
        for values, backwards, axis in zip(collected, reverse, output_axes, strict=True)
    ]
    return [*states, *stacked]


def unroll_loop(node: OnnxNode, graph: GraphBuilder, inline: Subgraphs) -> Results | None:
    """One copy of the body per iteration; where the end is computed, each runs only before it."""
    body = body_of(node, "body")
    limit, condition = node.optional(0), node.optional(1)
    states = list(node.inputs[2:])
    if len(body.input) != len(states) + 2:
        raise node.invalid(f"the body has {len(body.input)} inputs for {len(states)} values")
    loop = _Loop(node, graph, len(node.outputs) - len(states), limit)
    # Without a condition input the loop does not end early, but the body still computes one.
    asks = condition is not None or limit is None
    while loop.begins(condition if asks else None):
        number = graph.scalar(loop.steps, DType.I64)
        first = graph.check_count
        results = inline(body, [number, condition or graph.scalar(True, DType.BOOL), *states])
        if results is None:
            return None
        if loop.going is not None:
            graph.only_where(loop.going, True, first)
        condition = _tensor(node, results[0]) if asks else None
        states = [
            chosen(node, graph, loop.going, new, old) if loop.going is not None else new
            for new, old in zip(results[1 : len(states) + 1], states, strict=True)
        ]
        loop.collect(results[len(states) + 1 :])
    return [*states, *loop.stacked()]


class _Loop:
    """A loop while it is unrolled: whether it goes on, and what its steps gave.

    `going` is None as long as it goes on whatever the data is, then a bool that is computed.
    """

    def __init__(
        self, node: OnnxNode, graph: GraphBuilder, outputs: int, limit: Value | None
    ) -> None:
        self._node, self._graph = node, graph
        self._collected: list[list[Value]] = [[] for _ in range(outputs)]
        self._limit = None if limit is None else graph.readable(limit)
        self._most: list[int] = []  # steps, where the trip count is a size with bounds
        if limit is not None and limit.sizes is not None:
            self._most = [bounds_of(limit.sizes.reshape(-1)[0])[1]]
        self._trips: int | None = None
        if limit is not None and limit.array is not None:
            self._trips, self._limit = node.constant_integer(0, "the trip count"), None
        self._goings: list[Value] = []
        self.going: Value | None = None
        self.steps = 0

    def begins(self, condition: Value | None) -> bool:
        """Whether there is one more step; `condition` is what the step before has computed."""
        node, graph = self._node, self._graph
        if self._trips is not None and self.steps >= self._trips:
            return False
        if condition is not None and condition.array is not None:
            if not constant_bool(node, condition):
                return False
        elif condition is not None:
            self._and(graph.reshape(condition, ()))
        if self._limit is not None:
            number = graph.scalar(self.steps, DType.I64)
            self._and(graph.emit("less", number, graph.reshape(self._limit, ())))
        if self.going is None:
            _check_steps(node, self.steps + 1 if self._trips is None else self._trips)
            return True
        if self.steps == self._bound():
            self._require_end()
            return False
        return True

    def _and(self, condition: Value) -> None:
        """One more condition; that of a step that has not run does not count."""
        if self.going is None:
            self.going = condition
            return
        nothing = self._graph.scalar(False, DType.BOOL)
        self.going = self._graph.emit("choose", self.going, condition, nothing)

    def _bound(self) -> int:
        """The most steps: as many as declared results have rows, or as the limits allow."""
        if self._trips is not None:
            return min(self._trips, MOST_UNROLLED)
        first = len(self._node.outputs) - len(self._collected)
        shapes = [
            self._node.declared_shape(first + number) for number in range(len(self._collected))
        ]
        rows = [*self._most, *(shape[0] for shape in shapes if shape)]
        return min(*rows, MOST_UNROLLED) if rows else self._least_bound()

    def _least_bound(self) -> int:
        return min(self._graph.allowance.limits.loop_steps, MOST_GUARDED)

    def _require_end(self) -> None:
        assert self.going is not None
        operand = self._graph.origin(self.going)
        self._graph.require(
            self.going,
            operand,
            f"the loop of {self._node.label} goes on after {self.steps} steps, the most that it "
            "was built for (limits.loop_steps)",
        )

    def collect(self, results: Results) -> None:
        """Keep what a step gives; zeros where it does not run."""
        self.steps += 1
        count = len(results)
        if count != len(self._collected):
            raise self._node.invalid(
                f"the body gives {count} results for {len(self._collected)} outputs"
            )
        for values, value in zip(self._collected, results, strict=True):
            if not isinstance(value, Value):
                raise self._node.invalid("an output of the body that is collected is no tensor")
            if self.going is not None:
                zeros = self._graph.constant(np.zeros(value.shape, value.dtype.numpy))
                value = self._graph.emit("choose", self.going, value, zeros)
            values.append(value)
        if self.going is not None:
            self._goings.append(self.going)

    def stacked(self) -> list[Value]:
        """What the steps gave, of as many of them as ran."""
        node, graph = self._node, self._graph
        results = [_stacked(node, values, 0, graph) for values in self._collected]
        if not results or not self._goings:
            return results
        flags = graph.concat([graph.reshape(going, (1,)) for going in self._goings], 0)
        ran = graph.emit("reduce_sum", graph.cast(flags, DType.I64), axes=(0,), keepdims=False)
        certain = self.steps - len(self._goings)
        number = graph.emit("add", ran, graph.scalar(certain, DType.I64))
        size = counted_size(node, graph, number, self.steps, low=certain)
        return [with_axis(result, 0, size, graph) for result in results]


def _tensor(node: OnnxNode, value: Entity | None) -> Value:
    if not isinstance(value, Value):
        raise node.invalid("the condition of the body is no tensor")
    return value


def _check_steps(node: OnnxNode, steps: int) -> None:
    if steps > MOST_UNROLLED:
        raise node.unsupported(f"a loop of more than {MOST_UNROLLED} steps")


def _collect(node: OnnxNode, collected: list[list[Value]], results: Results) -> None:
    if len(results) != len(collected):
        raise node.invalid(f"the body gives {len(results)} results for {len(collected)} outputs")
    for values, value in zip(collected, results, strict=True):
        if not isinstance(value, Value):
            raise node.invalid("an output of the body that is collected is no tensor")
        values.append(value)


def _position(value: Value, axis: int, position: int, graph: GraphBuilder) -> Value:
    """One position of an axis, which goes away; of a constant, a constant."""
    if value.array is not None:
        return graph.constant(np.take(value.array, position, axis))
    return graph.pick(value, axis, position)


def _stacked(node: OnnxNode, values: Sequence[Value], axis: int, graph: GraphBuilder) -> Value:
    """Values of equal shape along a new axis."""
    if not values:
        raise node.unsupported("a loop without steps that collects values")
    rank = values[0].rank + 1
    axis = node.axis(axis, rank)
    arrays = [value.array for value in values if value.array is not None]
    if len(arrays) == len(values):
        return graph.constant(np.stack(arrays, axis))
    shape = (*values[0].shape[:axis], 1, *values[0].shape[axis:])
    return graph.concat([graph.reshape(value, shape) for value in values], axis)
