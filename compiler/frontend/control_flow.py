"""If, Loop and Scan: which become loops of the graph, what bounds them, and which are unrolled.

Few steps of small bodies are unrolled, so that constants fold; and so is, as far as that goes, what
cannot be a loop: states that change their shape, or whose values shapes depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from onnx import AttributeProto, GraphProto

from tunefarm.compiler.errors import ImportModelError, LimitError, UnsupportedOperatorError
from tunefarm.compiler.frontend.chosen_values import UnlikeSidesError, chosen
from tunefarm.compiler.frontend.data_sizes import counted_size, with_axis
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value, checkpoint
from tunefarm.compiler.frontend.loop_body import (
    LoopBody,
    LoopForm,
    StateTypeError,
    begin_state,
    convert_body,
)
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import in_one_piece
from tunefarm.compiler.frontend.stacked_sequences import behind_others
from tunefarm.compiler.frontend.structured_values import (
    Entity,
    SequenceValue,
    StackedSequence,
)
from tunefarm.compiler.frontend.subgraphs import Results, Subgraphs, body_of, constant_bool
from tunefarm.compiler.operators.loop import RESULT
from tunefarm.compiler.types.dims import whole_dims
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Dimension, Size, bounds_of, symbols_of

# Loop and Scan unrolled: a copy of the body a step, under guards where the end is computed.


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


# --- Loop and Scan as loops of the graph, whose steps are counted when the model runs ------------
#
# A body is converted once, with its states and the number of the step as values of the graph; see
# `tunefarm.compiler.operators.loop` for what bounds it. States that each step passes on as they
# are stay what they are outside. What cannot be said so is refused, and unrolled by who asked,
# where that may be.


def emit_loop(
    node: OnnxNode, graph: GraphBuilder, subgraphs: Subgraphs, form: LoopForm
) -> Results | None:
    """The results of a loop; None when a recorded problem hides those of its body.

    Raises UnsupportedOperatorError where its states are not the same tensors in all steps.
    """
    before = graph.computed_symbols
    first_check = graph.check_count
    body = convert_body(node, graph, subgraphs, form)
    if body is None:
        return None
    inner = graph.computed_symbols - before
    _refuse_inner_sizes(node, graph, body, inner)
    graph.run_time.forget(inner)
    own = len(body.initial)
    flags: list[Value] = []
    for check in range(first_check, graph.check_count):
        flags.append(_raised(graph, body, check))
    if not body.initial and not body.collected:
        return list(form.initial)  # its steps change nothing
    results = _Results(graph, form, body)
    for place, check in enumerate(range(first_check, graph.check_count)):
        last = own + place
        graph.change_check(check, lambda _, last=last: results.state(last))  # type: ignore[misc]
    if form.limit is not None and _may_go_on(form):
        setting = "loop_rows" if body.collected else "loop_steps"
        ends = body.again if form.limit.array is not None and body.again else form.limit
        graph.require(
            results.going(),
            graph.origin(ends),
            f"the loop of {node.label} goes on after {form.most} steps, the most that it was "
            f"built for (limits.{setting})",
        )
    final: list[Entity | None] = list(form.initial)
    for place, state in enumerate(body.states):
        final[state] = results.tensor(node, place)
    rows = results.rows(node)
    for state, grown in zip(body.grown, rows[form.outputs :], strict=True):
        sequence = form.initial[state]
        assert isinstance(sequence, SequenceValue)
        final[state] = StackedSequence(behind_others(graph, sequence.items, grown))
    return [*final, *rows[: form.outputs]]


def _may_go_on(form: LoopForm) -> bool:
    """Whether there may be more steps than there is memory for."""
    assert form.limit is not None
    if form.limit.array is not None:
        return bool(form.limit.array.reshape(-1)[0] > form.most)
    return form.length is None or bounds_of(form.length)[1] > form.most


def _begins(form: LoopForm) -> bool:
    """Whether there is a first step whatever the data is."""
    limit = None if form.limit is None else form.limit.array
    allowed = form.limit is None or (limit is not None and bool(limit.reshape(-1)[0] > 0))
    return form.first is None and allowed


def _refuse_inner_sizes(
    node: OnnxNode, graph: GraphBuilder, body: LoopBody, inner: frozenset[object]
) -> None:
    """Sizes that are computed in each step are known there only."""
    for value in body.collected:
        if any(inner & symbols_of(true) for axis in value.dims for true, _ in axis):
            raise node.unsupported(
                "a loop that collects tensors, or grows a sequence of them, whose sizes each step "
                "computes"
            )
    if any(
        inner & (symbols_of(item.left) | symbols_of(item.right))
        for item in graph.run_time.late_equalities()
    ):
        raise node.unsupported("a loop whose steps compute sizes that must be equal")


def _raised(graph: GraphBuilder, body: LoopBody, check: int) -> Value:
    """Have what a check of a step finds stay found: one more state."""
    found: list[Value] = []

    def note(flags: Value) -> Value:
        zeros = graph.constant(np.zeros(flags.shape, np.int64))
        before = begin_state(graph, zeros, body.number, len(body.initial))
        body.initial.append(zeros)
        found.append(graph.emit("max", before, flags))
        body.following.append(found[0])
        return flags

    graph.change_check(check, note)
    return found[0]


class _Results:
    """What a loop gives: a node for each thing."""

    def __init__(self, graph: GraphBuilder, form: LoopForm, body: LoopBody) -> None:
        self._graph, self._form, self._body = graph, form, body
        ends = (form.limit, form.first, body.again)
        readable = (None if end is None else graph.readable(end) for end in ends)
        values = (*body.initial, *body.following, *body.collected)
        self._operands: tuple[Value | None, ...] = (*readable, *values)

    def state(self, place: int) -> Value:
        """A state behind the last step, as it is in memory."""
        return self._result(place)

    def tensor(self, node: OnnxNode, place: int) -> Value:
        """One of the model's states behind the last step."""
        body, graph = self._body, self._graph
        padded = body.dims[place]
        opened = [item for item in body.open if item.state == body.states[place]]
        if padded is None or not opened:
            return graph.with_dims(self._result(place), padded)
        dims = list(padded)
        for item in opened:
            size = counted_size(node, graph, self._result(item.place), item.high, item.low)
            dims[item.axis] = ((size, item.high),)
        return graph.with_dims(self._result(place), tuple(dims))

    def going(self) -> Value:
        """Whether there would be more steps."""
        return self._result(self._behind + 1)

    def rows(self, node: OnnxNode) -> list[Value]:
        """What the steps gave, of as many of them as ran."""
        body, graph, size = self._body, self._graph, self._form.length
        if body.collected and size is None:
            count = self._result(self._behind)
            size = counted_size(node, graph, count, self._form.most, int(_begins(self._form)))
        rows = []
        for place, value in enumerate(body.collected):
            row = self._result(len(body.initial) + place)
            assert size is not None
            axis = ((size, self._form.most),) if isinstance(size, Size) else whole_dims((size,))[0]
            rows.append(graph.with_dims(row, (axis, *value.dims)))
        return rows

    @property
    def _behind(self) -> int:
        return len(self._body.initial) + len(self._body.collected)

    def _result(self, number: int) -> Value:
        return self._graph.append(
            RESULT,
            self._operands,
            {
                "loop": self._body.number,
                "states": len(self._body.initial),
                "most": self._form.most,
                "number": number,
                "backward": self._form.backward,
            },
        )


def refused_if_constant(node: OnnxNode, graph: GraphBuilder, first: int) -> None:
    """Raise UnsupportedOperatorError if no node from number `first` on reads anything unknown."""
    if graph.is_known_from(first):
        raise UnsupportedOperatorError(f"{node.label}: all of its steps are known")


Item = TypeVar("Item")

_FEW_STEPS = 8
_FEW_NODES = 256
"""Of all steps together: a loop with fewer is unrolled."""
_ENDLESS = 2**63 - 1


def convert_loop(node: OnnxNode, graph: GraphBuilder, subgraphs: Subgraphs) -> Results | None:
    """The results of a Loop node; None when a recorded problem hides them."""
    body, states = body_of(node, "body"), list(node.inputs[2:])
    if len(body.input) != len(states) + 2:
        raise node.invalid(f"the body has {len(body.input)} inputs for {len(states)} values")
    limit, first = node.optional(0), node.optional(1)
    asks = first is not None or limit is None
    trips: int | None = None
    if limit is not None and limit.array is not None:
        trips = max(0, node.constant_integer(0, "the trip count"))
    never = first is not None and first.array is not None and not first.array.any()
    initial = tuple(value for value in states if isinstance(value, Value | SequenceValue))
    outputs = len(node.outputs) - len(states)
    if (trips == 0 or never) and outputs and len(initial) == len(states):
        true = graph.scalar(True, DType.BOOL)
        given = [graph.scalar(0, DType.I64), true, *initial]
        return _without_steps(graph, subgraphs, body, given, initial)
    if never or len(initial) < len(states) or _is_small(trips, body):
        return unroll_loop(node, graph, subgraphs)
    form = _loop_form(node, graph, body, initial, trips)

    def make() -> Results | None:
        first_node = graph.node_count
        results = emit_loop(node, graph, subgraphs, form)
        if asks or form.most <= MOST_UNROLLED:
            refused_if_constant(node, graph, first_node)
        return results

    try:
        return subgraphs.attempt(make)
    except StateTypeError as refusal:
        try:
            return subgraphs.attempt(lambda: unroll_loop(node, graph, subgraphs))
        except ImportModelError:
            raise refusal from None
    except ImportModelError as refusal:
        begins = first is None or first.array is not None
        if trips is not None and trips > MOST_UNROLLED and begins:
            raise  # so many steps are not unrolled
        try:
            return subgraphs.attempt(lambda: unroll_loop(node, graph, subgraphs))
        except UnlikeSidesError:  # of a step and of none: it says nothing of the loop
            message = f"{refusal.message} where the number of steps is computed at run time"
            raise UnsupportedOperatorError(message, hint=refusal.hint) from None


def _loop_form(
    node: OnnxNode,
    graph: GraphBuilder,
    body: GraphProto,
    initial: tuple[Value | SequenceValue, ...],
    trips: int | None,
) -> LoopForm:
    limit, first = node.optional(0), node.optional(1)
    asks = first is not None or limit is None
    outputs = len(node.outputs) - len(initial)
    length: Dimension | None = None
    if trips is not None:
        length = trips
    elif limit is not None and limit.sizes is not None:
        size: Dimension = limit.sizes.reshape(-1)[0]
        length = size if bounds_of(size)[0] >= 0 else None
    grows = any(isinstance(value, SequenceValue) for value in initial)
    most = _most_steps(node, graph, outputs + grows, len(initial))
    if length is not None:
        bound = max(1, bounds_of(length)[1])
        most = min(most, bound) if asks else bound
    end: Value | None = None
    if limit is None:
        end = graph.scalar(_ENDLESS, DType.I64)
    elif trips is None or trips > most:
        if limit.type.size != 1:
            raise node.bad_shape("the trip count must have one element")
        end = graph.reshape(limit, ())
    if first is not None and first.array is None:
        if first.type.size != 1:
            raise node.bad_shape("the condition must have one element")
        first = graph.reshape(first, ())
    elif first is not None:
        first = None  # it is true
    true = graph.scalar(True, DType.BOOL)
    return LoopForm(
        body,
        initial,
        most,
        end,
        first,
        True,
        None if asks else length,
        lambda index, states: (index, true, *states),
        outputs,
    )


def _most_steps(node: OnnxNode, graph: GraphBuilder, outputs: int, states: int) -> int:
    """The most steps of a loop whose end is computed: as many as declared results have rows.

    A trip count that is given to each run says more than a declared shape, which may be stale.
    """
    limits = graph.allowance.limits
    if not outputs:
        return limits.loop_steps
    names = range(states, min(states + outputs, len(node.outputs)))
    shapes = [node.declared_shape(number) for number in names]
    rows = [shape[0] for shape in shapes if shape]
    if rows and node.optional(0) is not None and node.input(0).array is None:
        rows = [max(*rows, limits.loop_rows)]  # the trip count of a run may be another one
    return max(1, min(rows or [limits.loop_steps, limits.loop_rows]))


def convert_scan(node: OnnxNode, graph: GraphBuilder, subgraphs: Subgraphs) -> Results | None:
    """The results of a Scan node; None when a recorded problem hides them."""
    if node.version < 9:
        return unroll_scan(node, graph, subgraphs)
    body, count = body_of(node, "body"), node.integer("num_scan_inputs")
    given = [node.input(position) for position in range(len(node.inputs))]
    if not 0 < count <= len(given) or len(body.input) != len(given):
        raise node.invalid(f"num_scan_inputs is {count}, and the body has {len(body.input)} inputs")
    initial, scanned = tuple(given[:-count]), tuple(given[-count:])
    given_axes = node.integers("scan_input_axes", (0,) * count)
    axes = [node.axis(axis, value.rank) for axis, value in zip(given_axes, scanned, strict=True)]
    scanned = tuple(in_one_piece(*item, graph) for item in zip(scanned, axes, strict=True))
    length = _scanned_length(node, graph, scanned, axes)
    if length == 0:
        slices = [
            graph.constant(np.zeros(_without(value.shape, axis), value.dtype.numpy))
            for value, axis in zip(scanned, axes, strict=True)
        ]
        return _without_steps(graph, subgraphs, body, [*initial, *slices], initial, conditions=0)
    is_known = isinstance(length, int)
    if is_known and _is_small(bounds_of(length)[1], body):
        return unroll_scan(node, graph, subgraphs)

    def make() -> Results | None:
        return _scan(node, graph, subgraphs, initial, scanned, axes, length)

    try:
        return subgraphs.attempt(make)
    except ImportModelError:
        if not is_known or bounds_of(length)[1] > MOST_UNROLLED:
            raise
        return unroll_scan(node, graph, subgraphs)


def _scanned_length(
    node: OnnxNode, graph: GraphBuilder, scanned: Sequence[Value], axes: Sequence[int]
) -> Dimension:
    lengths = [value.true_shape[axis] for value, axis in zip(scanned, axes, strict=True)]
    extents = {value.shape[axis] for value, axis in zip(scanned, axes, strict=True)}
    if len(extents) != 1 and all(isinstance(length, int) for length in lengths):
        raise node.bad_shape(f"the scanned axes have the sizes {sorted(extents)}")
    for length in lengths[1:]:
        graph.run_time.require_equal(lengths[0], length, f"{node.label}, which scans both,")
    return lengths[0]


def _scan(
    node: OnnxNode,
    graph: GraphBuilder,
    subgraphs: Subgraphs,
    initial: tuple[Value, ...],
    scanned: tuple[Value, ...],
    axes: Sequence[int],
    length: Dimension,
) -> Results | None:
    outputs = len(node.outputs) - len(initial)
    turned = node.integers("scan_input_directions", (0,) * len(scanned))
    directions = node.integers("scan_output_directions", (0,) * outputs)
    limit = graph.size(length) if isinstance(length, Size) else None

    def arguments(index: Value, states: Sequence[Entity]) -> Sequence[Entity]:
        last = graph.emit("sub", graph.size(length), graph.scalar(1, DType.I64))
        return [
            *states,
            *(
                _slice(graph, value, axis, graph.emit("sub", last, index) if backward else index)
                for value, axis, backward in zip(scanned, axes, turned, strict=True)
            ),
        ]

    form = LoopForm(
        body_of(node, "body"),
        initial,
        min(value.shape[axis] for value, axis in zip(scanned, axes, strict=True)),
        limit,
        None,
        False,
        length,
        arguments,
        outputs,
        tuple(number for number, backward in enumerate(directions) if backward),
    )
    first_node = graph.node_count
    results = emit_loop(node, graph, subgraphs, form)
    if results is None:
        return None
    if form.most <= MOST_UNROLLED and not isinstance(length, Size):
        refused_if_constant(node, graph, first_node)
    rows = [value for value in results[len(initial) :] if isinstance(value, Value)]
    places = node.integers("scan_output_axes", (0,) * outputs)
    return [
        *results[: len(initial)],
        *(
            graph.transpose(value, _to_axis(value.rank, node.axis(axis, value.rank)))
            for value, axis in zip(rows, places, strict=True)
        ),
    ]


def _to_axis(rank: int, axis: int) -> tuple[int, ...]:
    """The order that puts the first axis at this place."""
    rest = list(range(1, rank))
    return (*rest[:axis], 0, *rest[axis:])


def _slice(graph: GraphBuilder, value: Value, axis: int, position: Value) -> Value:
    """One position of an axis, which goes away; the position is computed."""
    picked = graph.append("gather", (graph.readable(value), position), {"axis": axis})
    return graph.with_dims(picked, _without(value.dims, axis) if value.padded else None)


def _without(items: tuple[Item, ...], position: int) -> tuple[Item, ...]:
    return (*items[:position], *items[position + 1 :])


def _without_steps(
    graph: GraphBuilder,
    subgraphs: Subgraphs,
    body: GraphProto,
    given: Results,
    initial: Results,
    conditions: int = 1,
) -> Results | None:
    """What a loop gives that never runs: the states as they are, and no rows."""
    restore: Callable[[], None] = checkpoint(graph)
    results = subgraphs(body, given)
    restore()
    if results is None:
        return None
    collected = [
        value for value in results[conditions + len(initial) :] if isinstance(value, Value)
    ]
    rows = [graph.constant(np.empty((0, *value.shape), value.dtype.numpy)) for value in collected]
    return [*initial, *rows]


def _is_small(steps: int | None, body: GraphProto) -> bool:
    """Whether so many steps (None: not known) are better unrolled."""
    return steps is not None and (steps <= _FEW_STEPS or steps * _nodes_of(body) <= _FEW_NODES)


def _nodes_of(graph: GraphProto) -> int:
    """The nodes of a graph and of all graphs in it."""
    inner = [
        attribute.g
        for node in graph.node
        for attribute in node.attribute
        if attribute.type == AttributeProto.GRAPH
    ]
    return len(graph.node) + sum(map(_nodes_of, inner))


# --- If, Loop and Scan: branches under conditions; loops, unrolled where that is little ----------


ControlFlow: TypeAlias = Callable[[OnnxNode, GraphBuilder, Subgraphs], Results | None]


def inline_if(node: OnnxNode, graph: GraphBuilder, inline: Subgraphs) -> Results | None:
    """The branch that a constant condition selects; else both, of whose results one is chosen."""
    condition = node.input(0)
    if condition.array is not None:
        taken = constant_bool(node, condition)
        return inline(body_of(node, "then_branch" if taken else "else_branch"), ())
    if condition.type.size != 1:
        raise node.bad_shape("the condition must have one element")
    condition = graph.reshape(condition, ())
    sides = [_branch(node, graph, inline, condition, taken) for taken in (True, False)]
    then, otherwise = sides
    if isinstance(then, ImportModelError):
        if isinstance(otherwise, ImportModelError):
            raise then
        return otherwise
    if isinstance(otherwise, ImportModelError):
        return then
    if then is None or otherwise is None:
        return None
    if len(then) != len(otherwise):
        raise node.invalid(f"one branch has {len(then)} results, the other {len(otherwise)}")
    return [chosen(node, graph, condition, *sides) for sides in zip(then, otherwise, strict=True)]


def _branch(
    node: OnnxNode, graph: GraphBuilder, inline: Subgraphs, condition: Value, taken: bool
) -> Results | ImportModelError | None:
    """The results of the branch that runs if the condition is `taken`, or why there can be none.

    What a branch asks of sizes binds the runs that take it, and no others: so does a branch that
    these sizes do not allow. What no size would fix is recorded as a problem of the model.
    """
    body = body_of(node, "then_branch" if taken else "else_branch")
    first, equalities = graph.check_count, graph.run_time.equality_count
    try:
        results = inline.attempt(lambda: inline(body, ()))
    except UnsupportedOperatorError:
        return inline(body, ())
    except LimitError:
        raise
    except ImportModelError as error:
        flag = condition if taken else graph.emit("not", condition)
        reason = f"{node.label} takes a branch that these sizes do not allow"
        graph.require(flag, graph.origin(condition), f"{reason}: {error}")
        return error
    graph.check_equalities(graph.run_time.take_equalities(equalities))
    graph.only_where(condition, taken, first)
    return results


CONTROL_FLOW: dict[str, ControlFlow] = {
    "If": inline_if,
    "Loop": convert_loop,
    "Scan": convert_scan,
}


def control_flow(domain: str, operator: str) -> ControlFlow | None:
    """The function that takes a control flow operator apart; None for other operators."""
    return None if domain else CONTROL_FLOW.get(operator)
