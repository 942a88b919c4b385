"""Loop and Scan as loops of the graph, whose steps are counted when the model runs.

A body is converted once, with its states and the number of the step as values of the graph; see
`tunefarm.compiler.operators.loop` for what bounds it. States that each step passes on as they are
stay what they are outside. What cannot be said so is refused, and unrolled by who asked, where that
may be.
"""

from __future__ import annotations

import numpy as np

from tunefarm.compiler.errors import UnsupportedOperatorError
from tunefarm.compiler.frontend.data_sizes import counted_size
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.loop_body import LoopBody, LoopForm, begin_state, convert_body
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.stacked_sequences import behind_others
from tunefarm.compiler.frontend.structured_values import (
    Entity,
    SequenceValue,
    StackedSequence,
)
from tunefarm.compiler.frontend.subgraphs import Results, Subgraphs
from tunefarm.compiler.operators.loop import RESULT
from tunefarm.compiler.types.dims import whole_dims
from tunefarm.compiler.types.sizes import Size, bounds_of, symbols_of


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
