"""Recurrent layers of any form, as onnxruntime runs them; what it does not know, beside itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.compiler.frontend.onnx_models import FLOAT, model, outputs_of, tensor
from tests.onnxruntime_session import exact_session
from tunefarm import compiler
from tunefarm.compiler.errors import ImportModelError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.tensor_type import Array

INT32, FLOAT16 = onnx.TensorProto.INT32, onnx.TensorProto.FLOAT16
GATES = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}
NAMES = (
    "Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
    "HardSigmoid", "Elu", "Softsign", "Softplus",
)  # fmt: skip
WITH_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
WITH_BETA = ("Affine", "ScaledTanh", "HardSigmoid")


def values(*shape: int) -> Array:
    rng = np.random.default_rng(shape)
    return np.asarray(rng.uniform(-0.6, 0.6, shape), np.float32)


class Drawn:
    """A layer's attributes and operands by position; `outputs` by name."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.operator = draw(st.sampled_from(sorted(GATES)))
        self.gates, functions = GATES[self.operator]
        self.direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
        directions = 2 if self.direction == "bidirectional" else 1
        self.steps, self.batch = draw(st.integers(1, 6)), draw(st.integers(1, 5))
        self.size, hidden = draw(st.integers(1, 5)), draw(st.sampled_from([1, 3, 8, 17]))
        self.shape = (self.steps, self.batch, self.size)
        rows, states = self.gates * hidden, (directions, self.batch, hidden)
        lengths = st.lists(st.integers(1, self.steps), min_size=self.batch, max_size=self.batch)
        given: list[Array | None] = [
            values(directions, rows, self.size),
            values(directions, rows, hidden),
            values(directions, 2 * rows) if draw(st.booleans()) else None,
            np.array(draw(lengths), np.int32) if draw(st.booleans()) else None,
            values(*states) if draw(st.booleans()) else None,
        ]
        self.attributes: dict[str, Any] = {"hidden_size": hidden, "direction": self.direction}
        if self.operator == "LSTM":
            given.append(values(*states) if draw(st.booleans()) else None)
            given.append(values(directions, 3 * hidden) if draw(st.booleans()) else None)
            if draw(st.booleans()):
                self.attributes["input_forget"] = 1
        if self.operator == "GRU":
            self.attributes["linear_before_reset"] = draw(st.integers(0, 1))
        if draw(st.booleans()):
            self.attributes["clip"] = 0.3
        if draw(st.booleans()):
            self._functions(draw, functions * directions)
        names = "wrbnhcp"
        self.operands = {
            names[number]: array for number, array in enumerate(given) if array is not None
        }
        self.inputs = ["x", *(names[n] if a is not None else "" for n, a in enumerate(given))]
        self.outputs = ["y", "y_h", "y_c"][: 3 if self.operator == "LSTM" else 2]

    def __repr__(self) -> str:
        return f"{self.operator} of {self.shape} from {self.inputs} with {self.attributes}"

    def _functions(self, draw: st.DrawFn, count: int) -> None:
        names = [draw(st.sampled_from(NAMES)) for _ in range(count)]
        self.attributes["activations"] = names
        for attribute, takers in (("activation_alpha", WITH_ALPHA), ("activation_beta", WITH_BETA)):
            number = sum(name in takers for name in names)
            if number:  # onnxruntime has defaults of its own where none are given
                self.attributes[attribute] = [0.2 + 0.1 * i for i in range(number)]

    def proto(self, constants: bool = True) -> onnx.ModelProto:
        given = {} if constants else self.operands
        kinds = {name: INT32 if name == "n" else FLOAT for name in given}
        return model(
            [helper.make_node(self.operator, self.inputs, self.outputs, **self.attributes)],
            [
                tensor("x", self.shape),
                *(tensor(name, array.shape, kinds[name]) for name, array in given.items()),
            ],
            self.outputs,
            self.operands if constants else None,
            opset=14,
        )


layers = st.composite(Drawn)


def _reference(proto: onnx.ModelProto, inputs: dict[str, Array]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = exact_session(proto, options)
    return list(session.run(None, inputs))


def _assert_close(actual: list[Any], expected: list[Any]) -> None:
    for output, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(drawn=layers(), constants=st.booleans())
def test_layers_agree_with_onnxruntime(drawn: Drawn, constants: bool) -> None:
    proto = drawn.proto(constants)
    inputs = {"x": values(*drawn.shape)} | ({} if constants else drawn.operands)
    _assert_close(outputs_of(import_model_proto(proto), inputs), _reference(proto, inputs))


@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(drawn=layers(), threads=st.sampled_from([1, 2]))
def test_built_layers_agree_with_onnxruntime(drawn: Drawn, threads: int) -> None:
    proto, inputs = drawn.proto(), {"x": values(*drawn.shape)}
    built = compiler.build(import_model_proto(proto), threads=threads).run(inputs)
    _assert_close([built[name] for name in drawn.outputs], _reference(proto, inputs))


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(drawn=layers())
def test_batches_may_come_first(drawn: Drawn) -> None:
    x = values(*drawn.shape)
    expected = outputs_of(import_model_proto(drawn.proto()), {"x": x})
    drawn.attributes["layout"] = 1
    drawn.shape = (drawn.batch, drawn.steps, drawn.size)
    for name in {"h", "c"} & drawn.operands.keys():
        drawn.operands[name] = np.ascontiguousarray(drawn.operands[name].swapaxes(0, 1))
    turned = np.ascontiguousarray(x.swapaxes(0, 1))
    y, *states = outputs_of(import_model_proto(drawn.proto()), {"x": turned})
    _assert_close([y.transpose(1, 2, 0, 3), *(s.swapaxes(0, 1) for s in states)], expected)


def test_narrow_layers_keep_their_states_wide() -> None:
    narrow = {"w": values(1, 12, 4), "r": values(1, 12, 3), "x": values(9, 2, 4)}
    narrow = {name: np.asarray(array, np.float16) for name, array in narrow.items()}
    outputs = []
    for kind, dtype in ((FLOAT16, np.float16), (FLOAT, np.float32)):
        given = {name: np.asarray(array, dtype) for name, array in narrow.items()}
        x = given.pop("x")
        node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=3)
        proto = model([node], [tensor("x", x.shape, kind)], constants=given)
        outputs += outputs_of(import_model_proto(proto), {"x": x})
    assert outputs[0].dtype == np.float16
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=2e-3)  # the projection is rounded


def _lstm(steps: int, **attributes: Any) -> Graph:
    constants = {"w": values(1, 12, 4), "r": values(1, 12, 3)}
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=3, **attributes)
    return import_model_proto(model([node], [tensor("x", (steps, 1, 4))], constants=constants))


def test_the_graph_does_not_grow_with_the_sequence() -> None:
    assert [node.operator for node in _lstm(2).nodes] == [
        node.operator for node in _lstm(5000).nodes
    ]


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"activations": ["Sigmoid", "Tanh"]}, "needs 3 activations"),
        ({"activations": ["Sigmoid", "Tanh", "Sinus"]}, "the activation Sinus"),
        ({"activation_alpha": [0.5]}, "activation_alpha has 1 values too many"),
    ],
)
def test_other_activations_are_refused(attributes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ImportModelError, match=reason):
        _lstm(2, **attributes)
