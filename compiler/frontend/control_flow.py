"""If, Loop and Scan: which become loops of the graph, what bounds them, and which are unrolled.

Few steps of small bodies are unrolled, so that constants fold; and so is, as far as that goes, what
cannot be a loop: states that change their shape, or whose values shapes depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from onnx import AttributeProto, GraphProto

from tunefarm.compiler.errors import (
    ComputedShapeError,
    ImportModelError,
    LimitError,
    UnsupportedOperatorError,
)
from tunefarm.compiler.frontend.chosen_values import UnlikeSidesError, chosen
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value, checkpoint
from tunefarm.compiler.frontend.graph_loop import LoopForm, StateTypeError, emit_loop
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import in_one_piece
from tunefarm.compiler.frontend.structured_values import Entity, SequenceValue
from tunefarm.compiler.frontend.subgraphs import Results, Subgraphs, body_of, constant_bool
from tunefarm.compiler.frontend.unrolled_loops import MOST_UNROLLED, unroll_loop, unroll_scan
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.sizes import Dimension, Size, bounds_of

ControlFlow: TypeAlias = Callable[[OnnxNode, GraphBuilder, Subgraphs], Results | None]
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
            _refuse_if_constant(node, graph, first_node)
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


def _refuse_if_constant(node: OnnxNode, graph: GraphBuilder, first: int) -> None:
    """Raise UnsupportedOperatorError if no node from number `first` on reads anything unknown."""
    if graph.is_known_from(first):
        raise UnsupportedOperatorError(f"{node.label}: all of its steps are known")


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
        _refuse_if_constant(node, graph, first_node)
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
        if isinstance(error, ComputedShapeError) and not (error.names or graph.bounds_lists):
            raise  # the model is imported again, with bounds for its lists
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
