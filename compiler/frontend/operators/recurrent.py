"""RNN, GRU and LSTM, unrolled over their (static) number of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.frontend.converter import converter
from compiler.frontend.graph_builder import GraphBuilder, Value
from compiler.frontend.onnx_node import OnnxNode
from compiler.types.dtypes import DType

_MAX_STEPS = 1024
_ACTIVATIONS = ("relu", "tanh", "sigmoid", "softsign", "softplus")


@dataclass(frozen=True, slots=True)
class Layer:
    """One direction of a node: weights [gates * hidden, size], biases [gates * hidden]."""

    hidden: int
    weight: Value
    recurrence: Value
    bias: Value | None
    recurrent_bias: Value | None
    peephole: Value | None
    activations: tuple[Callable[[Value], Value], ...]


@dataclass(frozen=True, slots=True)
class State:
    """Hidden and (for LSTM) cell state, each [batch, hidden]."""

    hidden: Value
    cell: Value | None


Cell = Callable[[OnnxNode, GraphBuilder, Layer, Value, State], State]


def _rnn_cell(node: OnnxNode, graph: GraphBuilder, layer: Layer, x: Value, state: State) -> State:
    """h' = f(W x + R h + b)."""
    (activation,) = layer.activations
    return State(activation(_joined(x, state.hidden, layer, graph)), None)


def _gru_cell(node: OnnxNode, graph: GraphBuilder, layer: Layer, x: Value, state: State) -> State:
    """Gates z, r, h: h' = (1 - z) g(h) + z h, as in ONNX's definition of GRU."""
    gate, candidate = layer.activations
    n = layer.hidden
    bias = layer.recurrent_bias
    recurrence = graph.part(layer.recurrence, 0, 0, 2 * n)
    gates = graph.emit("add", graph.part(x, 1, 0, 2 * n), _product(state.hidden, recurrence, graph))
    gates = gate(_plus(gates, None if bias is None else graph.part(bias, 0, 0, 2 * n), graph))
    update, reset = (graph.part(gates, 1, start, n) for start in (0, n))
    inner = graph.part(layer.recurrence, 0, 2 * n, n)
    inner_bias = None if bias is None else graph.part(bias, 0, 2 * n, n)
    if node.integer("linear_before_reset", 0):
        linear = _plus(_product(state.hidden, inner, graph), inner_bias, graph)
        linear = graph.emit("mul", reset, linear)
    else:
        linear = _product(graph.emit("mul", reset, state.hidden), inner, graph)
        linear = _plus(linear, inner_bias, graph)
    proposed = candidate(graph.emit("add", graph.part(x, 1, 2 * n, n), linear))
    kept = graph.emit("mul", update, graph.emit("sub", state.hidden, proposed))
    return State(graph.emit("add", proposed, kept), None)


def _lstm_cell(node: OnnxNode, graph: GraphBuilder, layer: Layer, x: Value, state: State) -> State:
    """Gates i, o, f, c with peepholes i, o, f, as in ONNX's definition of LSTM."""
    gate, candidate, output = layer.activations
    n = layer.hidden
    joined = _joined(x, state.hidden, layer, graph)
    parts = [graph.part(joined, 1, k * n, n) for k in range(4)]
    if state.cell is None:
        raise node.invalid("the cell state is missing")

    def peeped(part: Value, position: int, cell: Value) -> Value:
        if layer.peephole is None:
            return part
        weight = graph.part(layer.peephole, 0, position * n, n)
        return graph.emit("add", part, graph.emit("mul", weight, cell))

    entering = gate(peeped(parts[0], 0, state.cell))
    if node.integer("input_forget", 0):
        forget = graph.emit("sub", graph.scalar(1, x.dtype), entering)
    else:
        forget = gate(peeped(parts[2], 2, state.cell))
    cell = graph.emit(
        "add",
        graph.emit("mul", forget, state.cell),
        graph.emit("mul", entering, candidate(parts[3])),
    )
    leaving = gate(peeped(parts[1], 1, cell))
    return State(graph.emit("mul", leaving, output(cell)), cell)


def _joined(x: Value, hidden: Value, layer: Layer, graph: GraphBuilder) -> Value:
    """x + R h + b."""
    joined = graph.emit("add", x, _product(hidden, layer.recurrence, graph))
    return _plus(joined, layer.recurrent_bias, graph)


def _plus(value: Value, bias: Value | None, graph: GraphBuilder) -> Value:
    return value if bias is None else graph.emit("add", value, bias)


def _product(left: Value, weight: Value, graph: GraphBuilder) -> Value:
    return graph.emit("matmul", left, weight, transpose_a=False, transpose_b=True)


def _activations(
    node: OnnxNode, defaults: tuple[str, ...], direction: int, directions: int,
    graph: GraphBuilder,
) -> tuple[Callable[[Value], Value], ...]:  # fmt: skip
    attribute = node.attributes.get("activations", defaults * directions)
    if not isinstance(attribute, tuple) or len(attribute) != len(defaults) * directions:
        raise node.invalid(f"needs {len(defaults) * directions} activations")
    if node.has("activation_alpha") or node.has("activation_beta"):
        raise node.unsupported("activation_alpha or activation_beta")
    clip = node.floating("clip", 0.0)

    def function(name: str) -> Callable[[Value], Value]:
        operator = name.lower()
        if operator not in _ACTIVATIONS:
            raise node.unsupported(f"the activation {name}")

        def apply(value: Value) -> Value:
            if clip:
                value = graph.emit("clip", value, min=-clip, max=clip)
            return graph.emit(operator, value)

        return apply

    count = len(defaults)
    chosen = attribute[direction * count : (direction + 1) * count]
    return tuple(function(str(name)) for name in chosen)


def _layer(
    node: OnnxNode, gates: int, defaults: tuple[str, ...], direction: int, graph: GraphBuilder
) -> Layer:
    weight, recurrence, bias = node.input(1), node.input(2), node.optional(3)
    directions = weight.shape[0]
    hidden = recurrence.shape[-1]
    rows = gates * hidden
    if weight.shape != (directions, rows, node.input(0).shape[2]) or recurrence.shape != (
        directions, rows, hidden,
    ):  # fmt: skip
        raise node.bad_shape(f"W {weight.type} and R {recurrence.type} do not fit")
    own = recurrent = None
    if bias is not None:
        if bias.shape != (directions, 2 * rows):
            raise node.bad_shape(f"B {bias.type} should be [{directions}, {2 * rows}]")
        row = graph.pick(bias, 0, direction)
        own, recurrent = graph.part(row, 0, 0, rows), graph.part(row, 0, rows, rows)
    peephole = node.optional(7) if node.operator == "LSTM" else None
    return Layer(
        hidden,
        graph.pick(weight, 0, direction),
        graph.pick(recurrence, 0, direction),
        own,
        recurrent,
        None if peephole is None else graph.pick(peephole, 0, direction),
        _activations(node, defaults, direction, directions, graph),
    )


def _steps(
    node: OnnxNode, layer: Layer, cell: Cell, x: Value, state: State, backward: bool,
    graph: GraphBuilder,
) -> tuple[list[Value], State]:  # fmt: skip
    """Run over x [steps, batch, size]: the hidden state after each step, and the last state.

    Past the end of a shorter sequence the state is kept and the output is 0.
    """
    steps, batch, size = x.shape
    flat = graph.reshape(x, (steps * batch, size))
    projected = _plus(_product(flat, layer.weight, graph), layer.bias, graph)
    projected = graph.reshape(projected, (steps, batch, layer.weight.shape[0]))
    lengths = node.optional(4)
    outputs: list[Value] = []
    order = range(steps - 1, -1, -1) if backward else range(steps)
    for step in order:
        new = cell(node, graph, layer, graph.pick(projected, 0, step), state)
        shown = new.hidden
        if lengths is not None and _may_end(lengths, steps):
            active = graph.emit("less", graph.scalar(step, lengths.dtype), lengths)
            active = graph.reshape(active, (batch, 1))
            shown = graph.emit("where", active, new.hidden, graph.scalar(0, x.dtype))
            new = State(
                graph.emit("where", active, new.hidden, state.hidden),
                None
                if new.cell is None or state.cell is None
                else graph.emit("where", active, new.cell, state.cell),
            )
        outputs.append(shown)
        state = new
    return (outputs[::-1] if backward else outputs), state


def _may_end(lengths: Value, steps: int) -> bool:
    return lengths.array is None or int(lengths.array.astype(np.int64).min()) < steps


def _initial(
    node: OnnxNode, position: int, direction: int, shape: tuple[int, int], dtype: DType,
    graph: GraphBuilder,
) -> Value:  # fmt: skip
    given = node.optional(position)
    if given is None:
        graph.check_array(shape, dtype.bytes)
        return graph.constant(np.zeros(shape, dtype.numpy))
    return graph.reshape(graph.pick(given, 0, direction), shape)


def _run(
    node: OnnxNode, graph: GraphBuilder, gates: int, defaults: tuple[str, ...], cell: Cell
) -> Sequence[Value]:
    """Outputs Y [steps, directions, batch, hidden], Y_h and Y_c [directions, batch, hidden]."""
    kind = node.choice("direction", "forward", ("forward", "reverse", "bidirectional"))
    batch_first = bool(node.integer("layout", 0))
    x = node.input(0)
    if x.rank != 3 or node.input(1).rank != 3 or node.input(2).rank != 3:
        raise node.bad_shape("X, W and R must have three axes")
    if batch_first:
        if any(node.optional(position) is not None for position in (5, 6)):
            raise node.unsupported("layout=1 with initial states")
        x = graph.emit("transpose", x, perm=(1, 0, 2))
    steps, batch, _ = x.shape
    if steps > _MAX_STEPS:
        raise node.unsupported(f"a sequence of {steps} steps (at most {_MAX_STEPS})")
    directions = 2 if kind == "bidirectional" else 1
    if node.input(1).shape[0] != directions:
        raise node.bad_shape(f"W {node.input(1).type} is not for {directions} direction(s)")
    sequences: list[Value] = []
    hidden: list[Value] = []
    cells: list[Value] = []
    for direction in range(directions):
        layer = _layer(node, gates, defaults, direction, graph)
        shape = (batch, layer.hidden)
        start = State(
            _initial(node, 5, direction, shape, x.dtype, graph),
            _initial(node, 6, direction, shape, x.dtype, graph)
            if node.operator == "LSTM"
            else None,
        )
        backward = kind == "reverse" or direction == 1
        outputs, last = _steps(node, layer, cell, x, start, backward, graph)
        rows = [graph.reshape(output, (1, 1, *shape)) for output in outputs]
        sequences.append(graph.concat(rows, 0))
        hidden.append(graph.reshape(last.hidden, (1, *shape)))
        if last.cell is not None:
            cells.append(graph.reshape(last.cell, (1, *shape)))
    results = [
        graph.concat(parts, axis)
        for parts, axis in ((sequences, 1), (hidden, 0), (cells, 0))
        if parts
    ]
    if batch_first:
        perms = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
        results = list(map(graph.transpose, results, perms))
    return results


@converter("RNN", 7, 14, 22)
def rnn(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    return _run(node, graph, 1, ("Tanh",), _rnn_cell)


@converter("GRU", 7, 14, 22)
def gru(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    return _run(node, graph, 3, ("Sigmoid", "Tanh"), _gru_cell)


@converter("LSTM", 7, 14, 22)
def lstm(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    return _run(node, graph, 4, ("Sigmoid", "Tanh", "Tanh"), _lstm_cell)
