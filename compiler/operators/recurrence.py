"""Recurrent layers, step after step: RNN, GRU and LSTM as ONNX defines them.

What the inputs contribute is a product for all steps at once, and an operand here. The result has
a row for what each step shows, one for the hidden state where sequences have lengths of their own
(what is shown is then 0 outside of them), and one for an LSTM's cells.

for step:                                                       products, [direction, step, batch]
    previous = the states after the step before, or the initial ones
    product[gate, unit] = sum over k of previous[k] * recurrence[k, gate, unit]
    cell, hidden = what the gates make of them
    result[row, unit] = shown, hidden, cell

With scales the recurrent weights are integers, and stay integers. `states` says what multiplies
them. Floats are multiplied with integers that are widened where they are read. States in bytes are
quantised before their product, as onnxruntime's DynamicQuantizeLSTM does, by the range of the
step's whole batch. The product is then one of integers: of the state's bytes with bytes, less the
zero point times their sums, or of the state without its zero point, in 16 bits, with weights of 8
or 16.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import TypeAlias

from tunefarm.compiler.expr.combiners import neutral_element
from tunefarm.compiler.expr.nodes import (
    Expr,
    add,
    all_of,
    binary,
    cast,
    const,
    integer,
    mul,
    select,
    sub,
    unary,
)
from tunefarm.compiler.kernels.kernel import Tensor
from tunefarm.compiler.operators.activation import RECURRENT
from tunefarm.compiler.operators.registry import (
    REQUIRED,
    Pattern,
    define,
)
from tunefarm.compiler.operators.rules import INDICES, check, check_dtype, check_same_dtype
from tunefarm.compiler.operators.types import Types
from tunefarm.compiler.operators.use import Attributes, Use
from tunefarm.compiler.types.dtypes import WIDE_FLOATS, DType
from tunefarm.compiler.types.frozen import frozen
from tunefarm.compiler.types.padded_shape import whole
from tunefarm.compiler.types.tensor_type import TensorType

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
PROJECTED, RECURRENCE, CANDIDATE, CANDIDATE_BIAS, PEEPHOLE, HIDDEN, CELL, FIRST, LAST = range(9)
SCALES, BATCH, SUMS = 9, 10, 11
"""The operands; the last are those of integer weights: what each column of them is multiplied by;
and of a quantised state: a vector of sizes with the batch's at `batch_number`, absent for all rows,
and what the bytes of each column add up to."""
BATCH_AXIS = 2
"""The axis of rows, of what is projected."""
_LANES = 16
"""The most minima of a range that are found at the same time."""
_ROUNDED = (DType.U8, DType.I8, DType.I16)
"""The types that states rounded to bytes are kept in: less `_MIDDLE` as `i8`, less their zero point
as `i16`."""
_BYTES = (DType.U8, DType.I8)
FLOAT_STATES = "f32"
"""The `states` that are multiplied as they are, in the layer's own type."""
_MIDDLE = 128
_LEVELS = 255.0
"""The largest of the integers that a state is rounded to."""
Element: TypeAlias = Callable[..., Expr]
"""An element at a direction, a step, a row of the batch, and a unit."""


def _floats(attributes: Attributes, name: str) -> tuple[float, ...]:
    value = attributes[name]
    check(isinstance(value, tuple), f"attribute {name} must be a tuple of numbers")
    assert isinstance(value, tuple)
    return tuple(float(item) for item in value)


def _rows(kind: str, bounded: bool) -> int:
    return 1 + bounded + (kind == "LSTM")


def _check_functions(attributes: Attributes, kind: str) -> None:
    names = attributes["activations"]
    count = FUNCTIONS[kind]
    fits = isinstance(names, tuple) and len(names) == count and set(names) <= RECURRENT.keys()
    check(fits, f"{kind} needs {count} activations (of {', '.join(RECURRENT)}), not {names!r}")
    for name in ("alphas", "betas"):
        check(len(_floats(attributes, name)) == count, f"{kind} needs {count} {name}")
    check(attributes.floating("clip") >= 0, "attribute clip must not be negative")


def _check_shape(types: Types, position: int, shape: tuple[int, ...]) -> None:
    """Raise `ShapeError` unless an operand has this shape; of states and bounds of steps as many
    rows are there as of the data, weights are all there."""
    type = types.present(position)
    wrong = f"operand {position} is {type}, not of the shape {shape}"
    if not HIDDEN <= position <= LAST:
        check(type.shape == shape, wrong)
        types.require_all_whole(position, "an axis of the weights")
        return
    check(len(type.shape) == len(shape), wrong)
    check((type.shape[0], *type.shape[2:]) == (shape[0], *shape[2:]), wrong)
    types.same((PROJECTED, 2), (position, 1), otherwise=wrong)


def _infer(attributes: Attributes, types: Types) -> TensorType:
    kind = attributes.choice("kind", tuple(GATES))
    _check_functions(attributes, kind)
    gates = GATES[kind]
    data = types.present(PROJECTED)
    check_dtype(data, WIDE_FLOATS)
    check(
        len(data.shape) == 5 and data.shape[3] == gates,
        f"{data} is no [directions, steps, batch, {gates} gates, units]",
    )
    directions, _, batch, _, units = data.shape
    apart = kind == "GRU" and not attributes.flag("linear_before_reset")
    linear = kind == "GRU" and not apart
    own = gates - 1 if apart else gates
    rounds = types.optional(SCALES) is not None and rounds_states(attributes)
    bytes_first = rounds and types.present(RECURRENCE).dtype is DType.I8
    wanted: dict[int, tuple[int, ...] | None] = {
        RECURRENCE: (directions, units, own, units),
        CANDIDATE: (directions, units, units) if apart else None,
        CANDIDATE_BIAS: (directions, units) if linear else None,
        PEEPHOLE: (directions, 3, units) if kind == "LSTM" else None,
        HIDDEN: (directions, batch, units),
        CELL: (directions, batch, units) if kind == "LSTM" else None,
        FIRST: (directions, batch),
        LAST: (directions, batch),
        SCALES: (directions, gates, units),
        SUMS: (directions, gates, units) if bytes_first else None,
    }
    check(types.optional(SUMS) is not None or not bytes_first, "the sums of bytes are absent")
    check(not (rounds and apart), "states are not rounded before a product of their own")
    check(not apart or types.optional(CANDIDATE) is not None, "the candidate's weights are absent")
    for position, shape in wanted.items():
        type = types.optional(position)
        if type is None:
            continue
        check(shape is not None, f"{kind} does not take operand {position}")
        assert shape is not None
        _check_shape(types, position, shape)
        if position in (FIRST, LAST):
            check_dtype(type, INDICES, "a bound of steps")
        elif position == SUMS:
            check_dtype(type, frozenset({DType.I32}), "the sums of weights")
        elif position in (RECURRENCE, CANDIDATE) and types.optional(SCALES) is not None:
            allowed = frozenset({data.dtype, DType.I8, DType.I16})
            check_dtype(type, allowed, "the integers of weights")
        else:
            check_same_dtype(data, type)
    if (sizes := types.optional(BATCH)) is not None:
        check(rounds, f"{kind} does not take operand {BATCH}")
        check(sizes.dtype is DType.I64 and len(sizes.shape) == 1, f"{sizes} is no vector of sizes")
        attributes.axis("batch_number", sizes.shape[0])
    bounded = any(types.optional(position) is not None for position in (FIRST, LAST))
    types.require_whole(PROJECTED, 1, "the axis of steps")
    for axis in (3, 4):
        types.require_whole(PROJECTED, axis, "an axis of gates or hidden units")
    dims = data.dims
    return TensorType.of(data.dtype, (whole(_rows(kind, bounded)), *dims[:3], dims[4]))


def rounds_states(attributes: Attributes) -> bool:
    """Whether hidden states become bytes before they are multiplied with integer weights."""
    return attributes.choice("states", (*map(str, _ROUNDED), FLOAT_STATES)) != FLOAT_STATES


@frozen
class _Layer:
    """A layer's stages under construction; `back` is the result, read back at earlier steps."""

    attributes: Attributes
    use: Use
    back: Tensor

    @property
    def kind(self) -> str:
        return self.attributes.choice("kind", tuple(GATES))

    @property
    def bounded(self) -> bool:
        return any(self.use.optional(position) is not None for position in (FIRST, LAST))

    def stage(self, hint: str, body: Element, *gates: tuple[str, int]) -> Tensor:
        """A stage over direction, step, batch, gates and units."""
        return self.use.builder.stage(hint, self._axes(*gates), body)

    def _axes(self, *gates: tuple[str, int]) -> list[tuple[str, int]]:
        *outer, units = self.use.shape[1:]
        return [*zip(("d", "t", "b"), outer, strict=True), *gates, ("j", units)]

    def product(self, state: Element, weights: Tensor, dtype: DType | None = None) -> Tensor:
        """A state times recurrent weights; an axis of gates where the weights have one.

        Factors are converted to `dtype`, the layer's own if it is None, for their products.
        """
        gates = [("g", weights.shape[2])] if len(weights.shape) == 4 else []
        wide = self.use.dtype if dtype is None else dtype

        def body(d: Expr, t: Expr, b: Expr, *rest: Expr) -> Expr:
            *gate, j, k = rest
            value, weight = state(d, t, b, k), weights[(d, k, *gate, j)]
            if value.dtype is DType.I16:
                weight = cast(DType.I16, weight)
            return mul(cast(wide, value), cast(wide, weight))

        return self.use.builder.stage(
            "product",
            self._axes(*gates),
            body,
            reduce=[("k", self.use.shape[-1])],
            combiner="sum",
        )

    def summed(self, previous: Tensor) -> Element:
        """The hidden state times all recurrent weights that multiply it, those of each gate."""
        scales = self.use.optional(SCALES)
        if scales is not None and rounds_states(self.attributes):
            return self._rounded(previous, scales)
        return self.scaled(self.product(_state(previous, 0), self.use.input(RECURRENCE)))

    def scaled(self, product: Tensor) -> Element:
        """A product of states as they are, multiplied by the scales of integer weights."""
        scales = self.use.optional(SCALES)
        if scales is None:
            return _at(product)
        return lambda d, t, b, g, j: mul(product[d, t, b, g, j], scales[d, g, j])

    def _rounded(self, previous: Tensor, scales: Tensor) -> Element:
        """The product of the quantised hidden state and integer weights, multiplied by both scales.

        A step's scale is 1/255 of its range with 0 in it, 1 where that is nothing.
        """
        use, dtype = self.use, self.use.dtype
        low, high = (self._range(previous, combiner) for combiner in ("min", "max"))

        def scale(d: Expr, t: Expr) -> Expr:
            span = sub(high[d, t], low[d, t])
            spread = binary("div", span, const(_LEVELS, dtype))
            return select(binary("eq", span, const(0, dtype)), const(1, dtype), spread)

        axes = self._axes()[:2]
        scaling = use.builder.stage("scale", axes, scale)

        def zero_point(d: Expr, t: Expr) -> Expr:
            zero = sub(const(0, dtype), binary("div", low[d, t], scaling[d, t]))
            return unary("round", binary("min", zero, const(_LEVELS, dtype)))

        zero = use.builder.stage("zero", axes, zero_point)

        weights = use.input(RECURRENCE)
        kept = DType(self.attributes.choice("states", tuple(map(str, _ROUNDED))))
        held = {DType.I8: kept, DType.I16: DType.I16}.get(weights.dtype, dtype)

        def quantised(d: Expr, t: Expr, b: Expr, j: Expr) -> Expr:
            value = binary("div", _state(previous, 0)(d, t, b, j), scaling[d, t])
            least = sub(const(0, dtype), zero[d, t])
            most = sub(const(_LEVELS, dtype), zero[d, t])
            value = unary("round", binary("min", binary("max", value, least), most))
            if held is DType.U8:
                value = add(value, zero[d, t])
            elif held is DType.I8:
                value = add(value, sub(zero[d, t], const(_MIDDLE, dtype)))
            return cast(held, value)

        state = _at(self.stage("quantised", quantised))
        product = self.product(state, weights, DType.I32 if held.is_integer else None)

        def element(d: Expr, t: Expr, b: Expr, g: Expr, j: Expr) -> Expr:
            total: Expr = product[d, t, b, g, j]
            if held in _BYTES:
                at_zero = cast(DType.I32, zero[d, t])
                if held is DType.I8:
                    at_zero = sub(at_zero, const(_MIDDLE, DType.I32))
                total = sub(total, mul(at_zero, use.input(SUMS)[d, g, j]))
            return mul(cast(dtype, total), mul(scaling[d, t], scales[d, g, j]))

        return element

    def _range(self, previous: Tensor, combiner: str) -> Tensor:
        """[direction, step]: the minimum or the maximum of 0 and the hidden states of a step.

        Rows that are not there have none, nor have those that ended before the step before.
        """
        use, (directions, steps, batch, units) = self.use, self.use.shape[1:]
        outer, lanes = [("d", directions), ("t", steps)], gcd(units, _LANES)
        sizes, last = use.optional(BATCH), use.optional(LAST)
        zero = const(0, use.dtype)

        def state(d: Expr, t: Expr, lane: Expr, b: Expr, k: Expr) -> Expr:
            unit = add(mul(k, integer(lanes)), lane)
            value = _state(previous, 0)(d, t, b, unit)
            if last is not None:
                value = select(binary("le", t, cast(DType.I64, last[d, b])), value, zero)
            if sizes is None:
                return value
            rows = sizes[(integer(self.attributes.integer("batch_number")),)]
            return select(binary("lt", b, rows), value, neutral_element(combiner, use.dtype))

        parts = use.builder.stage(
            f"{combiner}s",
            [*outer, ("l", lanes)],
            state,
            reduce=[("b", batch), ("k", units // lanes)],
            combiner=combiner,
        )
        return use.builder.stage(
            combiner,
            outer,
            lambda d, t, lane: binary(combiner, parts[d, t, lane], zero),
            reduce=[("l", lanes)],
            combiner=combiner,
        )

    def apply(self, number: int, x: Expr) -> Expr:
        """The activation of this number, of what a gate sums up: that is clipped first."""
        limit = self.attributes.floating("clip")
        if limit:
            x = binary("min", binary("max", x, const(-limit, x.dtype)), const(limit, x.dtype))
        return self.function(number, x)

    def function(self, number: int, x: Expr) -> Expr:
        """The activation of this number; nobody clips the cell that an LSTM shows."""
        names = self.attributes["activations"]
        assert isinstance(names, tuple)
        alpha, beta = (_floats(self.attributes, name)[number] for name in ("alphas", "betas"))
        return RECURRENT[str(names[number])](Attributes(alpha=alpha, beta=beta), x)

    def previous(self) -> Tensor:
        """[state, direction, step, batch, unit]: the states after the step before."""
        rows = self.use.shape[0]
        states = rows - self.bounded
        initial = [self.use.optional(position) for position in (HIDDEN, CELL)[:states]]

        def body(q: Expr, d: Expr, t: Expr, b: Expr, j: Expr) -> Expr:
            zero = const(0, self.use.dtype)
            values = [zero if tensor is None else tensor[d, b, j] for tensor in initial]
            first: Expr = values[0]
            if values[1:] and values[0] != values[1]:
                first = select(binary("eq", q, integer(0)), *values)
            before = self.back[add(q, integer(rows - states)), d, sub(t, integer(1)), b, j]
            return select(binary("eq", t, integer(0)), first, before)

        axes = [("q", states), *self._axes()]
        return self.use.builder.stage("previous", axes, body)

    def shown(self, previous: Tensor, hidden: Element, cell: Tensor | None) -> Tensor:
        """The result: of the steps that do not count, zeros and the states before."""
        use, bounded = self.use, self.bounded
        kept: list[Element] = [hidden]
        if bounded:
            made = self.stage("hidden", self._within_length(hidden, _state(previous, 0)))
            kept = [self._within_length(_at(made), lambda *at: const(0, use.dtype)), _at(made)]
        if cell is not None:
            kept.append(_at(cell))

        def body(s: Expr, *at: Expr) -> Expr:
            *first, value = (element(*at) for element in kept)
            for row, element in reversed(list(enumerate(first))):
                value = select(binary("eq", s, integer(row)), element, value)
            return value

        return use.builder.stage("recurrence", [("s", use.shape[0]), *self._axes()], body)

    def _within_length(self, new: Element, otherwise: Element) -> Element:
        """What is new where the step is one of the row's own, all else elsewhere."""
        first, last = self.use.optional(FIRST), self.use.optional(LAST)
        if first is None and last is None:
            return new

        def element(d: Expr, t: Expr, b: Expr, j: Expr) -> Expr:
            bounds = []
            if first is not None:
                bounds.append(binary("le", cast(DType.I64, first[d, b]), t))
            if last is not None:
                bounds.append(binary("lt", t, cast(DType.I64, last[d, b])))
            return select(all_of(*bounds), new(d, t, b, j), otherwise(d, t, b, j))

        return element

    # --- kinds of layers ------------------------------------------------------------------------

    def gate(self, product: Element, number: int) -> Element:
        """What a gate sums up: its part of what is projected, and of the product."""
        projected = self.use.input(PROJECTED)

        def element(d: Expr, t: Expr, b: Expr, j: Expr) -> Expr:
            gate = integer(number)
            return add(projected[d, t, b, gate, j], product(d, t, b, gate, j))

        return element

    def rnn(self, previous: Tensor) -> tuple[Element, Tensor | None]:
        """h' = f(W x + R h + b)."""
        gate = self.gate(self.summed(previous), 0)
        return lambda *at: self.apply(0, gate(*at)), None

    def gru(self, previous: Tensor) -> tuple[Element, Tensor | None]:
        """Gates z, r, h: h' = (1 - z) g(h) + z h; r comes before or after the product of h."""
        use, hidden = self.use, _state(previous, 0)
        product = self.summed(previous)
        update, reset = self.gate(product, 0), self.gate(product, 1)
        if self.attributes.flag("linear_before_reset"):
            bias = use.optional(CANDIDATE_BIAS)

            def proposed(d: Expr, t: Expr, b: Expr, j: Expr) -> Expr:
                linear = product(d, t, b, integer(2), j)
                linear = linear if bias is None else add(linear, bias[d, j])
                linear = mul(self.apply(0, reset(d, t, b, j)), linear)
                return add(use.input(PROJECTED)[d, t, b, integer(2), j], linear)

            kept: Element = lambda *at: self.apply(0, update(*at))  # noqa: E731
        else:

            def gated(d: Expr, t: Expr, b: Expr, g: Expr, j: Expr) -> Expr:
                value = self.apply(
                    0, add(use.input(PROJECTED)[d, t, b, g, j], product(d, t, b, g, j))
                )
                return select(binary("eq", g, integer(0)), value, mul(value, hidden(d, t, b, j)))

            gates = self.stage("gate", gated, ("g", 2))
            second = self.product(_gate(gates, 1), use.input(CANDIDATE))
            scales = use.optional(SCALES)
            kept = _gate(gates, 0)

            def proposed(d: Expr, t: Expr, b: Expr, j: Expr) -> Expr:
                total: Expr = second[d, t, b, j]
                total = total if scales is None else mul(total, scales[d, integer(2), j])
                return add(use.input(PROJECTED)[d, t, b, integer(2), j], total)

        def element(*at: Expr) -> Expr:
            candidate = self.apply(1, proposed(*at))
            return add(candidate, mul(kept(*at), sub(hidden(*at), candidate)))

        return element, None

    def lstm(self, previous: Tensor) -> tuple[Element, Tensor | None]:
        """Gates i, o, f, c with peepholes i, o, f: c' = f c + i g(c), h' = o h(c')."""
        use, before = self.use, _state(previous, 1)
        product, peephole = self.summed(previous), use.optional(PEEPHOLE)

        def peeped(number: int, cell: Element, *at: Expr) -> Expr:
            value = self.gate(product, number)(*at)
            if peephole is not None:
                weight = peephole[at[0], integer(number), at[-1]]
                value = add(value, mul(weight, cell(*at)))
            return self.apply(0, value)

        def new(*at: Expr) -> Expr:
            entering = peeped(0, before, *at)
            if self.attributes.flag("input_forget"):
                forget = sub(const(1, use.dtype), entering)
            else:
                forget = peeped(2, before, *at)
            proposed = self.apply(1, self.gate(product, 3)(*at))
            return add(mul(forget, before(*at)), mul(entering, proposed))

        cell = self.stage("cell", self._within_length(new, before))
        hidden: Element = lambda *at: mul(  # noqa: E731
            peeped(1, _at(cell), *at), self.function(2, _at(cell)(*at))
        )
        return hidden, cell


def _state(previous: Tensor, number: int) -> Element:
    return lambda d, t, b, j: previous[integer(number), d, t, b, j]


def _gate(gates: Tensor, number: int) -> Element:
    return lambda d, t, b, j: gates[d, t, b, integer(number), j]


def _at(tensor: Tensor) -> Element:
    return lambda *at: tensor[at]


def _recurrence(attributes: Attributes, use: Use) -> Tensor:
    layer = _Layer(attributes, use, use.builder.later("recurrence", use.dtype, use.shape))
    previous = layer.previous()
    kinds = {"RNN": layer.rnn, "GRU": layer.gru, "LSTM": layer.lstm}
    hidden, cell = kinds[layer.kind](previous)
    return layer.shown(previous, hidden, cell)


define(
    "recurrence",
    Pattern.OPAQUE,
    (2, 12),
    _infer,
    _recurrence,
    {
        "kind": REQUIRED,
        "activations": REQUIRED,
        "alphas": REQUIRED,
        "betas": REQUIRED,
        "clip": 0.0,
        "linear_before_reset": False,
        "input_forget": False,
        "batch_number": 0,
        "states": "u8",
    },
    reads_result=True,
    dynamic=True,
)
