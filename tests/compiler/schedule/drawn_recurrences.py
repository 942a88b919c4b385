"""A Hypothesis strategy that draws recurrent layers: kinds, bounds, initial states, functions."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.compiler.schedule.drawn_graphs import SPECIAL, Case, Chain
from tunefarm.compiler.operators.activation import RECURRENT
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute

_KINDS = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}


@st.composite
def recurrences(draw: st.DrawFn, lanes: int) -> list[Case]:
    """Units that are whole vectors or not, batches of odd numbers, operands that may be absent."""
    kind = draw(st.sampled_from(sorted(_KINDS)))
    gates, functions = _KINDS[kind]
    linear = kind == "GRU" and draw(st.booleans())
    apart = kind == "GRU" and not linear
    directions, steps = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 5]))
    batch = draw(st.sampled_from([1, 2, 3, 7, 13]))
    units = draw(st.sampled_from([1, 5, 13, lanes, lanes + 1, 2 * lanes, 3 * lanes]))
    chain = Chain(special=draw(SPECIAL))
    constant = draw(st.booleans())
    stored = draw(st.sampled_from([DType.F32, DType.F32, DType.I8, DType.I16]))

    def weights(*shape: int) -> str:
        name = chain.input(shape, stored, constant=constant)
        return small(name) if stored.is_float else name

    def small(name: str) -> str:
        """States stay where functions are curved."""
        chain.values[name] = np.divide(chain.values[name], units, dtype="f4")
        return name

    def given(*shape: int, if_kind: bool = True) -> str:
        return chain.input(shape) if if_kind and draw(st.booleans()) else ""

    def bound() -> str:
        return chain.input((directions, batch), DType.I32) if draw(st.booleans()) else ""

    operands = [
        chain.input((directions, steps, batch, gates, units)),
        weights(directions, units, gates - apart, units),
        weights(directions, units, units) if apart else "",
        given(directions, units, if_kind=linear),
        given(directions, 3, units, if_kind=kind == "LSTM"),
        given(directions, batch, units),
        given(directions, batch, units, if_kind=kind == "LSTM"),
        bound(),
        bound(),
    ]
    if not stored.is_float:
        operands.append(small(chain.input((directions, gates, units))))
    curved = ["sigmoid", "tanh", "relu"]
    names = st.sampled_from(curved if draw(st.booleans()) else sorted(RECURRENT))
    attributes: dict[str, Attribute] = {
        "activations": tuple(draw(names) for _ in range(functions)),
        "alphas": (0.3,) * functions,
        "betas": (0.6,) * functions,
        "clip": draw(st.sampled_from([0.0, 0.5])),
        "linear_before_reset": linear,
        "states": "f32",
    }
    chain.apply("recurrence", *operands, kind=kind, **attributes)
    return chain.cases()
