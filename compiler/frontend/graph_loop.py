"""Loops of the graph, whose steps are counted when the model runs: their bodies and results.

A body is converted once for all steps, with its states and the number of the step as values of the
graph; see `tunefarm.compiler.operators.loop` for what bounds it. What it is given is not known
before: which states no step changes, and which ones have other extents after a step than before. So
it is converted again, with what was found out, until all of it fits: what never changes is taken as
it is outside, and what grows gets memory for as much as it may become, its true extent being one
more state. What cannot be said so is refused, and unrolled by who asked, where that may be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import GraphProto

from tunefarm.compiler.errors import UnsupportedOperatorError
from tunefarm.compiler.frontend.chosen_values import kind_text, widened
from tunefarm.compiler.frontend.data_sizes import counted_size
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value, checkpoint
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.size_tables import Between
from tunefarm.compiler.frontend.stacked_sequences import behind_others
from tunefarm.compiler.frontend.structured_values import (
    Entity,
    GrowingSequence,
    SequenceValue,
    StackedSequence,
)
from tunefarm.compiler.frontend.subgraphs import Results, Subgraphs
from tunefarm.compiler.operators.loop import INDEX, RESULT, STATE
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import PaddedShape, extent_of, unpadded_shape
from tunefarm.compiler.types.sizes import Dimension, Size, Symbol, bounds_of, symbols_of
from tunefarm.compiler.types.tensor_type import Attribute

_MOST_CONVERSIONS = 8


class StateTypeError(UnsupportedOperatorError):
    """A state of a loop becomes another kind of tensor."""


@frozen
class LoopForm:
    """What bounds a loop, and what its body is given.

    There are at most `most` steps. `limit` (an i64 scalar) and `first` (a bool) may say less, and
    so does the body if its first result is a condition (`asks`); `length` is how many steps there
    are, where that is known as a size. `arguments` are the body's, for the number of the step and
    the states before it.
    """

    body: GraphProto
    initial: tuple[Value | SequenceValue, ...]
    most: int
    limit: Value | None
    first: Value | None
    asks: bool
    length: Dimension | None
    arguments: Callable[[Value, Sequence[Entity]], Results]
    outputs: int
    backward: tuple[int, ...] = ()


@frozen
class OpenAxis:
    """An axis of a state whose extent changes: it is what the state at `place` says, which is
    `initial` before the first step, from `low` to `high`."""

    state: int
    axis: int
    place: int
    initial: Value
    low: int
    high: int


@frozen
class LoopBody:
    """A body that was converted: values of the first step's beginning, and of a step's end.

    The loop's own states are those of the model that `states` numbers, then the extents of the
    `open` axes. Sequences, numbered by `grown`, get what is collected last.
    """

    number: int
    initial: list[Value]
    following: list[Value]
    again: Value | None
    collected: list[Value]
    states: tuple[int, ...]
    dims: tuple[PaddedShape | None, ...]
    grown: tuple[int, ...]
    open: tuple[OpenAxis, ...]


def _convert_body(
    node: OnnxNode, graph: GraphBuilder, subgraphs: Subgraphs, form: LoopForm
) -> LoopBody | None:
    """The body; None when a recorded problem hides its results.

    Raises UnsupportedOperatorError where states become tensors of another kind.
    """
    known = _Known(_passed_on(node, form), {}, {})
    for _ in range(_MOST_CONVERSIONS):
        restore = checkpoint(graph)
        attempt = _Attempt(node, graph, form, known)
        results = subgraphs(form.body, form.arguments(attempt.index, attempt.values))
        if results is None:
            return None
        if not attempt.learns(results):
            return attempt.finished()
        restore()
    raise node.unsupported("a loop whose states take other shapes again and again")


@frozen
class _Known:
    """The states that no step changes, bounds of axes that some do, by state and axis, and those
    of integers to which each step adds the same, by state."""

    same: set[int]
    open: dict[tuple[int, int], tuple[int, int]]
    counters: dict[int, Between]


def _passed_on(node: OnnxNode, form: LoopForm) -> set[int]:
    """The states that the body names as what they are next, of which shapes may depend then."""
    body, first = form.body, int(form.asks)
    copies = {n.output[0]: n.input[0] for n in body.node if n.op_type == "Identity"}
    found = set()
    for position in range(len(form.initial)):
        name = body.output[first + position].name if first + position < len(body.output) else ""
        while name in copies:
            name = copies[name]
        if name == state_name(node, body, position):
            found.add(position)
    return found


class _Attempt:
    """One conversion of a body."""

    def __init__(self, node: OnnxNode, graph: GraphBuilder, form: LoopForm, known: _Known) -> None:
        self._node, self._graph, self._form, self._known = node, graph, form, known
        self._number = graph.fresh_number()
        self.values: list[Entity] = list(form.initial)
        self._initial: dict[int, Value] = {}
        self._sizes: list[OpenAxis] = []
        given = [
            (position, value)
            for position, value in enumerate(form.initial)
            if position not in known.same
        ]
        tensors = [(position, value) for position, value in given if isinstance(value, Value)]
        opened = {state for state, _ in known.open}
        kept = [item for item in tensors if item[1].type.size or item[0] in opened]
        for place, (position, value) in enumerate(kept):
            self._initial[position] = self._opened(position, value, len(kept))
            state = begin_state(graph, self._initial[position], self._number, place)
            self.values[position] = state
            if position in known.counters:
                self._record(state, known.counters[position])
        self._begin_sizes()
        most = graph.scalar(form.most, DType.I64)
        self.index = graph.append(INDEX, (most,), {"loop": self._number})
        self._record(self.index, Between(0, form.most - 1))
        for position, entity in given:
            if isinstance(entity, SequenceValue):
                count = len(entity.items)
                self.values[position] = GrowingSequence((), entity.dtype, count, self.index)

    def _record(self, number: Value, bounds: Between) -> None:
        """Say what a number is at least and at most in all steps, so that it can be a place."""
        array = np.empty(number.shape, object)
        array.reshape(-1)[0] = bounds
        self._graph.record_sizes(number, array)

    def _opened(self, position: int, value: Value, count: int) -> Value:
        """The first value of a state, with room for what it may become."""
        value = self._graph.readable(value)
        axes = {
            axis: bounds for (state, axis), bounds in self._known.open.items() if state == position
        }
        if not axes:
            return value
        dims = list(value.dims)
        for axis, (low, high) in axes.items():
            size = self._graph.size(value.true_shape[axis])
            place = count + len(self._sizes)
            self._sizes.append(OpenAxis(position, axis, place, size, low, high))
            dims[axis] = ((high, high),)
        return self._graph.with_dims(
            widened(self._graph, value, tuple(map(extent_of, dims))), tuple(dims)
        )

    def _begin_sizes(self) -> None:
        """The extents of open axes at the beginning of a step, and the states with them."""
        graph = self._graph
        for item in self._sizes:
            count = begin_state(graph, item.initial, self._number, item.place)
            size = counted_size(self._node, graph, count, item.high, item.low)
            state = self.values[item.state]
            assert isinstance(state, Value)
            dims = list(state.dims)
            dims[item.axis] = ((size, item.high),)
            self.values[item.state] = graph.with_dims(state, tuple(dims))

    def learns(self, results: Results) -> bool:
        """Whether these results tell of a state what was not known."""
        self._ends, self._following, self._rows = _parts(self._node, results, self._form)
        known = self._known
        before = len(known.same), len(known.open), len(known.counters)
        for position, (old, new) in enumerate(zip(self.values, self._following, strict=True)):
            if position in known.same:
                continue
            if _is_same(old, new):
                known.same.add(position)
            elif isinstance(old, Value) and isinstance(new, Value):
                self._open_axes(position, old, new)
                self._count(position, old, new)
        return before != (len(known.same), len(known.open), len(known.counters))

    def _count(self, position: int, old: Value, new: Value) -> None:
        """Learn what a state is in all steps if each adds the same integer to it."""
        first = self._initial[position].array if position in self._initial else None
        if first is None or first.size != 1 or first.dtype.kind != "i":
            return
        added = self._graph.added(old, new)
        if added is not None and position not in self._known.counters:
            begin = int(first.reshape(-1)[0])
            last = begin + added * max(self._form.most - 1, 0)
            self._known.counters[position] = Between(min(begin, last), max(begin, last))

    def _open_axes(self, position: int, old: Value, new: Value) -> None:
        """Have the axes be open along which a step changes a state's extent."""
        if old.rank != new.rank or old.dtype is not new.dtype:
            return
        limits = self._graph.allowance.limits
        steps = min(self._form.most, limits.loop_rows)
        for axis, (before, after) in enumerate(zip(old.dims, new.dims, strict=True)):
            if before == after or len(before) > 1 or len(after) > 1:
                continue
            (first, _), (second, _) = before[0], after[0]
            growth = second - first if (position, axis) not in self._known.open else 0
            if not isinstance(growth, int):
                growth = 1
            low, high = bounds_of(first)
            bounds = (low, high + growth * steps) if growth > 0 else (0, high)
            self._known.open.setdefault((position, axis), bounds)

    def finished(self) -> LoopBody:
        """The body, of whose states all is known."""
        node, graph, form = self._node, self._graph, self._form
        later: list[Value] = []
        grown: list[int] = []
        for position, (new, old) in enumerate(zip(self._following, self.values, strict=True)):
            if isinstance(old, GrowingSequence) and isinstance(new, GrowingSequence):
                if len(new.appended) != 1:
                    raise node.unsupported(
                        f"a loop that appends {len(new.appended)} tensors a step"
                    )
                _check_rows(node, form.initial[position], new.appended[0])
                grown.append(position)
                self._rows += new.appended
            elif position in self._initial:
                later.append(self._followed(position, new, old))
            elif position not in self._known.same and not _is_same(old, new):
                raise _changes(node, form.body, position, new, old)
        if any(not value.type.size for value in self._rows):
            raise node.unsupported("a loop that collects tensors without elements")
        return LoopBody(
            self._number,
            [*self._initial.values(), *(item.initial for item in self._sizes)],
            [*later, *map(self._size_after, self._sizes)],
            None if self._ends is None else _condition(node, graph, self._ends),
            [graph.readable(value) for value in self._rows],
            tuple(self._initial),
            tuple(self._dims_of(position) for position in self._initial),
            tuple(grown),
            tuple(self._sizes),
        )

    def _dims_of(self, position: int) -> PaddedShape | None:
        state = self.values[position]
        assert isinstance(state, Value)
        return state.padded

    def _followed(self, position: int, new: Entity, old: Entity) -> Value:
        """What a state is after a step, if it is the same kind of tensor as before."""
        assert isinstance(old, Value)
        if not isinstance(new, Value) or new.dtype is not old.dtype or new.rank != old.rank:
            raise _changes(self._node, self._form.body, position, new, old)
        for axis, (before, after) in enumerate(zip(old.dims, new.dims, strict=True)):
            if (position, axis) not in self._known.open and before != after:
                raise _changes(self._node, self._form.body, position, new, old)
        result = self._graph.readable(new)
        if new.shape == old.shape:
            return result
        shape = tuple(map(min, new.shape, old.shape))
        if shape != new.shape:
            attributes: dict[str, Attribute] = {
                "starts": (0,) * new.rank,
                "steps": (1,) * new.rank,
                "shape": shape,
            }
            result = self._graph.append("slice", (result,), attributes)
        return widened(self._graph, result, old.shape)

    def _size_after(self, item: OpenAxis) -> Value:
        """The extent of an open axis after a step, which must be one that there is room for."""
        graph, new = self._graph, self._following[item.state]
        assert isinstance(new, Value)
        size: Dimension = new.true_shape[item.axis]
        count, most = graph.size(size), graph.scalar(item.high, DType.I64)
        if bounds_of(size)[1] <= item.high:
            return count
        graph.require(
            graph.emit("less", most, count),
            self._name_of(item.state),
            f"axis {item.axis} of this state of {self._node.label} grows beyond {item.high}, the "
            "most that it was built for (limits.loop_rows)",
        )
        return graph.emit("min", count, most)

    def _name_of(self, position: int) -> str:
        return state_name(self._node, self._form.body, position)


def state_name(node: OnnxNode, body: GraphProto, position: int) -> str:
    """What the body calls a state."""
    first = 2 if node.operator == "Loop" else 0
    return str(body.input[first + position].name)


def _changes(
    node: OnnxNode, body: GraphProto, position: int, new: Entity, old: Entity
) -> StateTypeError:
    error = node.unsupported(
        f"the state {state_name(node, body, position)!r}, which is {kind_text(old)} before a step "
        f"and {kind_text(new)} after it, in a loop whose steps are counted at run time: keep its "
        "rank and element type, or fix the number of steps"
    )
    return StateTypeError(error.message, hint=error.hint)


def _is_same(old: Entity, new: Entity) -> bool:
    if isinstance(old, GrowingSequence):
        return isinstance(new, GrowingSequence) and not new.appended
    same_value = isinstance(old, Value) and isinstance(new, Value) and old.name == new.name
    return old is new or same_value


def _condition(node: OnnxNode, graph: GraphBuilder, given: Value) -> Value | None:
    """Whether there is one more step; None where it is known that there is."""
    if given.array is not None and given.array.all():
        return None
    if given.type.size != 1:
        raise node.bad_shape("the condition must have one element")
    return graph.reshape(graph.readable(given), ())


def _check_rows(node: OnnxNode, before: Entity, row: Value) -> None:
    """What was in a sequence before the loop must be like what is appended to it."""
    assert isinstance(before, SequenceValue)
    for item in before.items:
        if item.type != row.type or item.dims != row.dims:
            raise node.unsupported(f"a loop that appends {row.type} to tensors like {item.type}")


def begin_state(graph: GraphBuilder, initial: Value, number: int, place: int) -> Value:
    """A state at the beginning of a step, and what it is before the first one."""
    state = graph.append(STATE, (initial,), {"loop": number, "number": place})
    return graph.with_dims(state, initial.padded)


def _parts(
    node: OnnxNode, results: Results, form: LoopForm
) -> tuple[Value | None, list[Entity], list[Value]]:
    """The results of a body: its condition, if it has one, the states, and what is collected."""
    first, states = int(form.asks), len(form.initial)
    count = len(results) - first - states
    if count != form.outputs:
        raise node.invalid(f"the body gives {count} results for {form.outputs} outputs")
    entities = [value for value in results if value is not None]
    condition, rows = entities[:first], entities[first + states :]
    tensors = [value for value in (*condition, *rows) if isinstance(value, Value)]
    if len(entities) < len(results) or len(tensors) < first + count:
        raise node.invalid("an output of the body that is collected is no tensor")
    return (
        tensors[0] if form.asks else None,
        entities[first : first + states],
        tensors[first:],
    )


def emit_loop(
    node: OnnxNode, graph: GraphBuilder, subgraphs: Subgraphs, form: LoopForm
) -> Results | None:
    """The results of a loop; None when a recorded problem hides those of its body.

    Raises UnsupportedOperatorError where its states are not the same tensors in all steps.
    """
    before = graph.computed_symbols
    first_check = graph.check_count
    body = _convert_body(node, graph, subgraphs, form)
    if body is None:
        return None
    inner = graph.computed_symbols - before
    _refuse_inner_sizes(node, body, inner)
    graph.check_equalities(graph.run_time.take_equalities_of(inner))
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


def _refuse_inner_sizes(node: OnnxNode, body: LoopBody, inner: frozenset[Symbol]) -> None:
    """Sizes that are computed in each step are known there only."""
    for value in body.collected:
        if any(inner & symbols_of(true) for axis in value.dims for true, _ in axis):
            raise node.unsupported(
                "a loop that collects tensors, or grows a sequence of them, whose sizes each step "
                "computes"
            )


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
            axis = (
                ((size, self._form.most),) if isinstance(size, Size) else unpadded_shape((size,))[0]
            )
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
