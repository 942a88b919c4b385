"""Cases of recurrences: every kind of layer, beside the same formulas in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.compiler.operators.cases import FLOATS, Case, Values, array, case
from tunefarm.compiler.types.tensor_type import Attribute


def _sigmoid(x: Values) -> Values:
    return np.asarray(1 / (1 + np.exp(-x)))


ACTIVATIONS: dict[str, Callable[[Any, float, float], Any]] = {
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "elu": lambda x, alpha, beta: np.where(x < 0, alpha * np.expm1(x), x),
    "hard_sigmoid": lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
    "leaky_relu": lambda x, alpha, beta: np.where(x < 0, alpha * x, x),
    "relu": lambda x, alpha, beta: np.maximum(x, 0),
    "scaled_tanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "sigmoid": lambda x, alpha, beta: _sigmoid(x),
    "softplus": lambda x, alpha, beta: np.log1p(np.exp(x)),
    "softsign": lambda x, alpha, beta: x / (1 + abs(x)),
    "tanh": lambda x, alpha, beta: np.tanh(x),
    "thresholded_relu": lambda x, alpha, beta: np.where(x > alpha, x, 0),
}


@dataclass(slots=True)
class Layer:
    """One direction in f64: operands by name, None where absent."""

    attributes: dict[str, Any]
    operands: dict[str, Values | None]
    cells: bool = field(init=False)
    ended: Values = field(init=False)
    """[batch, 1]: rows whose steps were over before the last one."""

    def __post_init__(self) -> None:
        self.cells = self.attributes["kind"] == "LSTM"

    def apply(self, number: int, x: Values) -> Values:
        clip = self.attributes.get("clip", 0)
        return self.function(number, np.clip(x, -clip, clip) if clip else x)

    def function(self, number: int, x: Values) -> Values:
        alpha, beta = self.attributes["alphas"][number], self.attributes["betas"][number]
        return np.asarray(ACTIVATIONS[self.attributes["activations"][number]](x, alpha, beta))

    def rounded(self, state: Values) -> tuple[Values, float]:
        """A state as integers with a scale: one of 256 by the range of the rows that are there."""
        rows = self.operands["batch"]
        own = np.where(self.ended, 0, state)[: None if rows is None else int(rows[0])]
        low, high = min(own.min(), 0), max(own.max(), 0)
        scale = (high - low) / 255 if high > low else 1.0
        zero = np.rint(min(-low / scale, 255))
        return np.rint(np.clip(state / scale, -zero, 255 - zero)), scale

    def times(self, name: str, state: Values, gate: int) -> Values:
        weights = self.operands[name]
        assert weights is not None
        matrix = weights if weights.ndim == 2 else weights[:, gate]
        scales = self.operands.get("scales")
        if scales is not None and self.attributes.get("states") == "f32":
            return np.asarray(state @ matrix * scales[gate])
        if scales is not None:
            integers, scale = self.rounded(state)
            return np.asarray(integers @ matrix * (scale * scales[gate]))
        return np.asarray(state @ matrix)

    def step(self, x: Values, h: Values, c: Values) -> tuple[Values, Values]:
        """The states after a step of what is projected [batch, gate, unit]."""
        kind, given = self.attributes["kind"], self.operands
        if kind == "GRU":
            return self._gru(x, h), c
        sums = [x[:, gate] + self.times("recurrence", h, gate) for gate in range(x.shape[1])]
        if kind == "RNN":
            return self.apply(0, sums[0]), c
        holes = given["peephole"]
        p = np.zeros((3, h.shape[1])) if holes is None else holes
        entering = self.apply(0, sums[0] + p[0] * c)
        forget = self.apply(0, sums[2] + p[2] * c)
        if self.attributes.get("input_forget"):
            forget = 1 - entering
        new = forget * c + entering * self.apply(1, sums[3])
        return self.apply(0, sums[1] + p[1] * new) * self.function(2, new), new

    def _gru(self, x: Values, h: Values) -> Values:
        update, reset = (
            self.apply(0, x[:, gate] + self.times("recurrence", h, gate)) for gate in (0, 1)
        )
        if self.attributes.get("linear_before_reset"):
            bias = self.operands["candidate_bias"]
            linear = self.times("recurrence", h, 2) + (0 if bias is None else bias)
            proposed = self.apply(1, x[:, 2] + reset * linear)
        else:
            proposed = self.apply(1, x[:, 2] + self.times("candidate", reset * h, 2))
        return np.asarray((1 - update) * proposed + update * h)

    def run(self, first: Values | None, last: Values | None) -> Values:
        """[row, step, batch, unit]."""
        projected = self.operands["projected"]
        assert projected is not None
        steps, batch, _, units = projected.shape
        h, c = (
            np.zeros((batch, units)) if given is None else given
            for given in (self.operands["hidden"], self.operands["cell"])
        )
        bounded = first is not None or last is not None
        rows: list[list[Values]] = []
        for step in range(steps):
            active = np.ones((batch, 1), bool)
            if first is not None:
                active &= first[:, None] <= step
            if last is not None:
                active &= step < last[:, None]
            self.ended = np.zeros((batch, 1), bool) if last is None else last[:, None] < step
            new, new_cell = self.step(projected[step], h, c)
            shown = np.where(active, new, 0)
            h, c = np.where(active, new, h), np.where(active, new_cell, c)
            rows.append([shown, *([h] if bounded else []), *([c] if self.cells else [])])
        return np.asarray(rows).swapaxes(0, 1)


_FUNCTIONS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
NAMES = (
    "projected", "recurrence", "candidate", "candidate_bias", "peephole", "hidden", "cell", "scales"
)  # fmt: skip


def expected(attributes: dict[str, Any], operands: list[Values | None]) -> Callable[[], Values]:
    """What the operator gives for these operands, all directions."""

    def run() -> Values:
        data = operands[0]
        assert data is not None
        padded: list[Values | None] = [*operands, *[None] * (11 - len(operands))]
        batch = padded[10]
        made = []
        for number in range(data.shape[0]):
            own = [None if item is None else item[number] for item in padded[:10]]
            bounds = own[7:9]
            wide = [None if item is None else item.astype("float64") for item in [*own[:7], own[9]]]
            layer = Layer(attributes, {**dict(zip(NAMES, wide, strict=True)), "batch": batch})
            made.append(layer.run(*bounds))
        return np.stack(made, 1).astype(data.dtype)

    return run


def _operands(
    kind: str, dtype: str, *, linear: bool, optional: bool, bounded: bool
) -> list[Values | None]:
    directions, steps, batch, units = 2, 5, 3, 7
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    apart = kind == "GRU" and not linear
    own = 2 if apart else gates
    states = (directions, batch, units)

    def small(seed: int, shape: tuple[int, ...]) -> Values:
        return np.asarray(array(seed, shape, dtype) / 9)

    return [
        small(1, (directions, steps, batch, gates, units)),
        small(2, (directions, units, own, units)),
        small(3, (directions, units, units)) if apart else None,
        small(4, (directions, units)) if kind == "GRU" and linear and optional else None,
        small(5, (directions, 3, units)) if kind == "LSTM" and optional else None,
        small(6, states) if optional else None,
        small(7, states) if kind == "LSTM" and optional else None,
        np.array([[0, 2, 5], [1, 0, 3]], "int32") if bounded and optional else None,
        np.array([[5, 4, 0], [3, 1, 5]], "int64") if bounded else None,
    ]


def _layers() -> Iterator[Case]:
    for kind, names in _FUNCTIONS.items():
        plain = dict.fromkeys(("alphas", "betas"), (0.0,) * len(names))
        for dtype in FLOATS:
            for number in range(8 if kind == "GRU" else 4):
                optional, bounded, linear = bool(number & 1), bool(number & 2), bool(number & 4)
                attributes: dict[str, Attribute] = {"kind": kind, "activations": names, **plain}
                if linear:
                    attributes["linear_before_reset"] = True
                if kind == "LSTM" and bounded:
                    attributes["input_forget"] = True
                if optional:
                    attributes["clip"] = 0.5
                operands = _operands(kind, dtype, linear=linear, optional=optional, bounded=bounded)
                wanted = expected(attributes, operands)
                tight = 2e-6 if dtype == "float32" else 1e-12
                id = f"{kind}-{dtype}-{number}"
                yield case(id, "recurrence", operands, wanted, tight, **attributes)


def _functions() -> Iterator[Case]:
    operands = _operands("RNN", "float32", linear=False, optional=True, bounded=False)
    for name in ACTIVATIONS:
        attributes: dict[str, Attribute] = {
            "kind": "RNN",
            "activations": (name,),
            "alphas": (0.3,),
            "betas": (0.7,),
        }
        wanted = expected(attributes, operands)
        yield case(name, "recurrence", operands, wanted, 2e-6, **attributes)


def _integers(kind: str, *, linear: bool, wide: bool, number: int) -> list[Values | None]:
    """Operands whose recurrent weights are integers of 16 bits if `wide`, with their scales."""
    optional, bounded = bool(number & 1), bool(number & 2)
    operands = _operands(kind, "float32", linear=linear, optional=optional, bounded=bounded)
    for position in (1, 2):
        weights = operands[position]
        if weights is not None:
            rounded = np.rint(weights * 500).clip(-128, 127)
            operands[position] = rounded.astype("int16" if wide else "int8")
    gates, units = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind], 7
    # Of an RNN none so large that states are -1 and 1: 0 would lie between two of the 256 integers.
    divisor = 1000 if kind == "RNN" else 100
    return [*operands, np.asarray(np.abs(array(8, (2, gates, units), "float32")) / divisor)]


def _attributes(kind: str, linear: bool) -> dict[str, Attribute]:
    names = _FUNCTIONS[kind]
    zeros = dict.fromkeys(("alphas", "betas"), (0.0,) * len(names))
    further: dict[str, Attribute] = {"linear_before_reset": True} if linear else {}
    return {"kind": kind, "activations": names, **zeros, **further}


def _rounded() -> Iterator[Case]:
    """Layers of integer weights, whose states are rounded at each step."""
    for kind in _FUNCTIONS:
        linear = kind == "GRU"  # the other products are not of states
        for number in range(8):
            wide, open_batch = bool(number & 1), bool(number & 4)
            operands = _integers(kind, linear=linear, wide=wide, number=number)
            operands.append(np.array([2], "int64") if open_batch else None)
            weights = operands[1]
            assert weights is not None
            operands += [] if wide else [weights.sum(axis=1, dtype="int32")]
            states = ("u8", "i8", "i16")[number % 3]
            attributes = _attributes(kind, linear) | {"states": states}
            wanted = expected(attributes, operands)
            yield case(
                f"rounded-{kind}-{number}", "recurrence", operands, wanted, 2e-6, **attributes
            )


def _widened() -> Iterator[Case]:
    """Layers of integer weights, whose states stay floats."""
    for kind in _FUNCTIONS:
        for number in range(8 if kind == "GRU" else 4):
            linear, wide = bool(number & 4), bool(number & 1)
            operands = _integers(kind, linear=linear, wide=wide, number=number)
            attributes = _attributes(kind, linear) | {"states": "f32"}
            wanted = expected(attributes, operands)
            yield case(
                f"widened-{kind}-{number}", "recurrence", operands, wanted, 2e-6, **attributes
            )


def recurrence_cases() -> list[Case]:
    """All cases of this file."""
    return [*_layers(), *_functions(), *_rounded(), *_widened()]
