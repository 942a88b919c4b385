"""RNN, GRU and LSTM: a product of the inputs for all steps, and the recurrence over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tunefarm.compiler.frontend.converter import converter
from tunefarm.compiler.frontend.graph_builder import GraphBuilder, Value
from tunefarm.compiler.frontend.onnx_node import OnnxNode
from tunefarm.compiler.frontend.operators.moves import as_whole, window, with_axis
from tunefarm.compiler.operators.activation import RECURRENT
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import is_unpadded, size_of
from tunefarm.compiler.types.sizes import Dimension, bounds_of
from tunefarm.compiler.types.tensor_type import Attribute

_ALPHAS = {
    "affine": 1.0,
    "elu": 1.0,
    "hard_sigmoid": 0.2,
    "leaky_relu": 0.01,
    "scaled_tanh": 1.0,
    "thresholded_relu": 1.0,
}
"""The functions that take an alpha, with their defaults."""
_BETAS = {"affine": 0.0, "hard_sigmoid": 0.5, "scaled_tanh": 1.0}
_NAMES = {name.replace("_", ""): name for name in RECURRENT}


@frozen
class Kind:
    """How many gates a layer has, and its functions where none are named."""

    gates: int
    functions: tuple[str, ...]


_KINDS = {
    "RNN": Kind(1, ("Tanh",)),
    "GRU": Kind(3, ("Sigmoid", "Tanh")),
    "LSTM": Kind(4, ("Sigmoid", "Tanh", "Tanh")),
}


@frozen
class Functions:
    """The activations of one direction, with an alpha and a beta each."""

    names: tuple[str, ...]
    alphas: tuple[float, ...]
    betas: tuple[float, ...]


@frozen
class Direction:
    """What one direction gives: [steps, batch, hidden], and its last states [batch, hidden]."""

    sequence: Value
    hidden: Value
    cell: Value | None


# --- attributes ---------------------------------------------------------------------------------


def _functions(node: OnnxNode, directions: int) -> list[Functions]:
    """The activations of each direction; alphas and betas go to those that take one, in order."""
    defaults = _KINDS[node.operator].functions
    attribute = node.attributes.get("activations", defaults * directions)
    if not isinstance(attribute, tuple) or len(attribute) != len(defaults) * directions:
        raise node.invalid(f"needs {len(defaults) * directions} activations")
    names = []
    for item in attribute:
        name = _NAMES.get(str(item).lower())
        if name is None:
            raise node.unsupported(f"the activation {item}")
        names.append(name)
    alphas = _given(node, "activation_alpha", names, _ALPHAS)
    betas = _given(node, "activation_beta", names, _BETAS)
    count = len(defaults)
    parts = [slice(begin, begin + count) for begin in range(0, len(names), count)]
    return [Functions(tuple(names[p]), tuple(alphas[p]), tuple(betas[p])) for p in parts]


def _given(
    node: OnnxNode, attribute: str, names: Sequence[str], defaults: dict[str, float]
) -> list[float]:
    given = list(node.floats(attribute, ()))
    values = []
    for name in names:
        takes = name in defaults and given
        values.append(given.pop(0) if takes else defaults.get(name, 0.0))
    if given:
        raise node.invalid(f"{attribute} has {len(given)} values too many")
    return values


# --- operands -----------------------------------------------------------------------------------


@frozen
class IntegerWeights:
    """What makes floats of a layer's integer weights.

    `scale` and `zero_point` are those of W, [directions, 1 or gates * hidden]; `recurrent` is the
    scale of R, [directions, gates * hidden], whose integers have no zero point; `sums` of each
    column of those, if they are bytes.
    """

    scale: Value
    zero_point: Value
    recurrent: Value
    sums: Value | None


@frozen
class _Importer:
    """A node on its way into the graph; `x` is [steps, batch, size], `count` of its steps there.

    Weights are `integers`, or floats.
    """

    node: OnnxNode
    graph: GraphBuilder
    x: Value
    lengths: Value | None
    count: Dimension
    integers: IntegerWeights | None

    @property
    def kind(self) -> Kind:
        return _KINDS[self.node.operator]

    @property
    def linear(self) -> bool:
        """The reset gate comes after the product with the hidden state."""
        return self.node.operator == "GRU" and bool(self.node.integer("linear_before_reset", 0))

    @property
    def hidden(self) -> int:
        return self.node.input(2).shape[-1]

    def check_shapes(self, directions: int) -> None:
        """Raise unless weights and biases fit each other and the data."""
        node, rows = self.node, self.kind.gates * self.hidden
        weight, recurrence, bias = node.input(1), node.input(2), node.optional(3)
        if weight.shape[0] != directions:
            raise node.bad_shape(f"W {weight.type} is not for {directions} direction(s)")
        if weight.shape != (directions, rows, self.x.shape[2]) or recurrence.shape != (
            directions, rows, self.hidden,
        ):  # fmt: skip
            raise node.bad_shape(f"W {weight.type} and R {recurrence.type} do not fit")
        if bias is not None and bias.shape != (directions, 2 * rows):
            raise node.bad_shape(f"B {bias.type} should be [{directions}, {2 * rows}]")

    def projected(self, direction: int, backward: bool) -> Value:
        """[1, steps, batch, gates, hidden]: what inputs and biases contribute, in walked order."""
        graph, (steps, batch, size) = self.graph, self.x.shape
        x = self.flipped(self.x) if backward else self.x
        weight = self._input_weight(direction)
        flat = graph.reshape(x, (steps * batch, size))
        result = graph.emit("matmul", flat, weight, transpose_a=False, transpose_b=True)
        bias = self._bias(direction)
        if bias is not None:
            result = graph.emit("add", result, bias)
        return graph.reshape(result, (1, steps, batch, self.kind.gates, self.hidden))

    def _input_weight(self, direction: int) -> Value:
        """[gates * hidden, size] of floats."""
        graph, weight = self.graph, self.graph.pick(self.node.input(1), 0, direction)
        if self.integers is None:
            return weight
        given = (self.integers.scale, self.integers.zero_point)
        rows = [graph.pick(parameter, 0, direction) for parameter in given]
        width = rows[0].shape[0]
        shape = () if width == 1 else (width, 1)
        parts = [graph.reshape(row, shape) for row in rows]
        return graph.emit("dequantize", weight, *parts, to=str(DType.F32))

    def _bias(self, direction: int) -> Value | None:
        """The sum of both biases, but for that of a candidate whose product is reset."""
        given, graph = self.node.optional(3), self.graph
        if given is None:
            return None
        rows = self.kind.gates * self.hidden
        row = graph.pick(given, 0, direction)
        own, recurrent = graph.part(row, 0, 0, rows), graph.part(row, 0, rows, rows)
        if not self.linear:
            return graph.emit("add", own, recurrent)
        gates = 2 * self.hidden
        both = [graph.part(bias, 0, 0, gates) for bias in (own, recurrent)]
        candidate = graph.part(own, 0, gates, self.hidden)
        return graph.concat([graph.emit("add", *both), candidate], 0)

    def recurrence(self, directions: Sequence[int]) -> tuple[Value, Value | None]:
        """[direction, k, gate, hidden], and [direction, k, hidden] of a candidate apart."""
        graph, gates = self.graph, self.kind.gates
        weights = self._rows(self.node.input(2), directions)
        shape = (len(directions), gates, self.hidden, self.hidden)
        turned = graph.transpose(graph.reshape(weights, shape), (0, 3, 1, 2))
        if self.node.operator != "GRU" or self.linear:
            return turned, None
        return graph.part(turned, 2, 0, 2), graph.pick(turned, 2, 2)

    def rounding(self, directions: Sequence[int]) -> tuple[list[Value | None], int]:
        """Scales [direction, gate, hidden], the sizes of a dynamic batch, sums of bytes; and the
        batch's number among the sizes."""
        if self.integers is None:
            return [], 0
        shape, batch = (len(directions), self.kind.gates, self.hidden), self.x.dims[1]
        sizes, number = (None, 0) if is_unpadded(batch) else self.graph.vector_with(size_of(batch))
        scales, sums = (
            None if item is None else self.graph.reshape(self._rows(item, directions), shape)
            for item in (self.integers.recurrent, self.integers.sums)
        )
        return [scales, sizes, sums], number

    def candidate_bias(self, directions: Sequence[int]) -> Value | None:
        """[direction, hidden]: what is added to the candidate's product before its reset."""
        given = self.node.optional(3)
        if given is None or not self.linear:
            return None
        rows = self._rows(given, directions)
        return self.graph.part(rows, 1, 5 * self.hidden, self.hidden)

    def peephole(self, directions: Sequence[int]) -> Value | None:
        """[direction, gate, hidden]."""
        given = self.node.optional(7) if self.node.operator == "LSTM" else None
        if given is None:
            return None
        shape = (len(directions), 3, self.hidden)
        return self.graph.reshape(self._rows(given, directions), shape)

    def initial(self, position: int, directions: Sequence[int], batch_first: bool) -> Value | None:
        """[direction, batch, hidden], None for zeros."""
        given = self.node.optional(position)
        if given is None:
            return None
        if given.rank != 3:
            raise self.node.bad_shape(f"the initial state {given.type} must have three axes")
        if batch_first:
            given = self.graph.transpose(given, (1, 0, 2))
        return self._rows(given, directions)

    def bounds(self, backward: Sequence[bool]) -> tuple[Value | None, Value | None]:
        """[direction, batch]: the first step that counts, and the one after the last."""
        lengths, graph, steps = self.lengths, self.graph, self.x.shape[0]
        if lengths is None or not _may_end(lengths, steps):
            return None, None  # what comes behind the last step that is there is not looked at
        row = graph.reshape(lengths, (1, self.x.shape[1]))
        none = graph.constant(np.zeros(row.shape, row.dtype.numpy))
        if isinstance(self.count, int):
            whole = graph.constant(np.full(row.shape, self.count, row.dtype.numpy))
        else:
            whole = graph.emit("expand", graph.size(self.count, row.dtype), shape=row.shape)
        if row.padded is not None:
            whole, none = graph.with_dims(whole, row.dims), graph.with_dims(none, row.dims)
        late = graph.emit("sub", whole, row) if any(backward) else none
        first = [late if back else none for back in backward]
        last = [whole if back else row for back in backward]
        return (
            graph.concat(first, 0) if any(backward) else None,
            None if all(backward) else graph.concat(last, 0),
        )

    def _rows(self, value: Value, directions: Sequence[int]) -> Value:
        """The directions of a value; they follow one another."""
        return self.graph.part(value, 0, directions[0], len(directions))

    # --- the recurrence -------------------------------------------------------------------------

    def run(
        self,
        functions: Functions,
        directions: Sequence[int],
        backward: Sequence[bool],
        batch_first: bool,
    ) -> list[Direction]:
        """What directions with the same activations give, walked together."""
        node, graph = self.node, self.graph
        is_lstm = node.operator == "LSTM"
        projected = [self.projected(*item) for item in zip(directions, backward, strict=True)]
        weights, candidate = self.recurrence(directions)
        first, last = self.bounds(backward)
        attributes: dict[str, Attribute] = {
            "kind": node.operator,
            "activations": functions.names,
            "alphas": functions.alphas,
            "betas": functions.betas,
            "clip": node.floating("clip", 0.0),
        }
        if self.linear:
            attributes["linear_before_reset"] = True
        if is_lstm and node.integer("input_forget", 0):
            attributes["input_forget"] = True
        operands = (
            graph.concat(projected, 0),
            weights,
            candidate,
            self.candidate_bias(directions),
            self.peephole(directions),
            self.initial(5, directions, batch_first),
            self.initial(6, directions, batch_first) if is_lstm else None,
        )
        # States are kept as they are computed, and rounded where they are shown.
        stored = self.x.dtype
        wide = [
            item if item is None or item.dtype.is_integer else graph.cast(item, stored.wide)
            for item in operands
        ]
        if wide[0] is not None:
            wide[0] = as_whole(wide[0], 1, graph)
        rounding, number = self.rounding(directions)
        if number:
            attributes["batch_number"] = number
        states = graph.emit("recurrence", *wide, first, last, *rounding, **attributes)
        states = graph.cast(with_axis(states, 2, self.x.dims[0], graph), stored)
        rows = states.shape[0]
        hidden = 0 if first is None and last is None else 1
        return [
            self._direction(states, number, hidden, rows - 1 if is_lstm else None, back)
            for number, back in enumerate(backward)
        ]

    def flipped(self, value: Value) -> Value:
        """The steps of [steps, ...] from the last that is there to the first."""
        graph, steps = self.graph, value.shape[0]
        if steps == 1:
            return value
        if not isinstance(self.count, int):
            return window(value, 0, self.count - 1, self.count, graph, step=-1)
        others = (0,) * (value.rank - 1)
        return graph.emit(
            "slice",
            value,
            starts=(steps - 1, *others),
            steps=(-1, *(1 for _ in others)),
            shape=value.shape,
        )

    def _direction(
        self,
        states: Value,
        number: int,
        hidden: int,
        cell: int | None,
        backward: bool,
    ) -> Direction:
        graph = self.graph

        def last(row: int) -> Value:
            walked = graph.pick(graph.pick(states, 0, row), 0, number)
            if isinstance(self.count, int):
                return graph.pick(walked, 0, self.count - 1)
            end = window(walked, 0, self.count - 1, 1, graph)
            return graph.reshape(end, end.shape[1:])

        shown = graph.pick(graph.pick(states, 0, 0), 0, number)
        return Direction(
            self.flipped(shown) if backward else shown,
            last(hidden),
            None if cell is None else last(cell),
        )


def _may_end(lengths: Value, steps: int) -> bool:
    return lengths.array is None or int(lengths.array.astype(np.int64).min()) < steps


@converter("RNN", 7, 14, 22)
@converter("GRU", 7, 14, 22)
@converter("LSTM", 7, 14, 22)
def recurrent(node: OnnxNode, graph: GraphBuilder) -> Sequence[Value]:
    """Outputs Y [steps, directions, batch, hidden], Y_h and Y_c [directions, batch, hidden].

    Past the end of a shorter sequence the state is kept and the output is 0.
    """
    return recurrent_layer(node, graph, None)


def recurrent_layer(
    node: OnnxNode, graph: GraphBuilder, integers: IntegerWeights | None
) -> Sequence[Value]:
    """`recurrent`, with weights that may be integers; hidden states are rounded before their
    product with those."""
    kind = node.choice("direction", "forward", ("forward", "reverse", "bidirectional"))
    batch_first = bool(node.integer("layout", 0))
    x = node.input(0)
    if x.rank != 3 or node.input(1).rank != 3 or node.input(2).rank != 3:
        raise node.bad_shape("X, W and R must have three axes")
    if batch_first:
        x = graph.transpose(x, (1, 0, 2))
    if len(x.dims[0]) > 1:  # steps are walked one behind the other
        x = graph.padded.dense(x)
    if integers is not None and len(x.dims[1]) > 1:  # ranges are those of the first rows
        x = graph.padded.dense(x)
    steps, lengths, count = x.dims[0], node.optional(4), size_of(x.dims[0])
    may_be_none = not is_unpadded(steps) and bounds_of(count)[0] < 1
    if may_be_none:
        lengths = _row_lengths(x, count, graph) if lengths is None else lengths
        x, count = as_whole(x, 0, graph), x.shape[0]
    importer = _Importer(node, graph, x, lengths, count, integers)
    backward = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[kind]
    importer.check_shapes(len(backward))
    functions = _functions(node, len(backward))
    if len(set(functions)) == 1:
        made = importer.run(functions[0], range(len(backward)), backward, batch_first)
    else:
        made = [
            found
            for number, back in enumerate(backward)
            for found in importer.run(functions[number], (number,), (back,), batch_first)
        ]
    if may_be_none:
        made = [replace(item, sequence=with_axis(item.sequence, 0, steps, graph)) for item in made]
    return _outputs(made, batch_first, graph)


def _row_lengths(x: Value, count: Dimension, graph: GraphBuilder) -> Value:
    """Where each sequence ends, which may be before its first step: its states stay as they are."""
    lengths = graph.emit("expand", graph.size(count), shape=(x.shape[1],))
    return graph.with_dims(lengths, (x.dims[1],))


def _outputs(made: list[Direction], batch_first: bool, graph: GraphBuilder) -> list[Value]:
    def joined(values: list[Value], axis: int) -> Value:
        shapes = ((*value.shape[:axis], 1, *value.shape[axis:]) for value in values)
        rows = [graph.reshape(value, shape) for value, shape in zip(values, shapes, strict=True)]
        return graph.concat(rows, axis)

    results = [joined([item.sequence for item in made], 1), joined([i.hidden for i in made], 0)]
    cells = [item.cell for item in made if item.cell is not None]
    if cells:
        results.append(joined(cells, 0))
    if batch_first:
        perms = ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2))
        results = list(map(graph.transpose, results, perms))
    return results
