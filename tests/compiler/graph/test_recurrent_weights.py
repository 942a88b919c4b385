"""Recurrent layers of quantised weights: which read integers, and that they stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.compiler.frontend.onnx_models import FLOAT, model, tensor
from tests.onnxruntime_session import exact_session
from tests.targets import target_named
from tunefarm import compiler
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.operators.recurrence import CANDIDATE, RECURRENCE
from tunefarm.compiler.plan.optimise import Abilities, optimise
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FORMS = ("tensor", "channels", "blocks", "cast")
SIZE = 5
BLOCK = 16


class Layer:
    """A layer whose weights W and R are bytes of a `form`, between X and what it shows."""

    def __init__(
        self,
        operator: str,
        form: str,
        kind: str = "int8",
        hidden: int = 128,
        direction: str = "forward",
        *,
        linear: int = 1,
        rounded: bool = False,
        shape: tuple[int, int] = (3, 1),
    ) -> None:
        self.operator, self.form, self.kind, self.hidden = operator, form, kind, hidden
        self.direction, self.linear, self.rounded, self.shape = direction, linear, rounded, shape
        self.rng = np.random.default_rng(hidden)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def __repr__(self) -> str:
        given = (self.kind, self.hidden, self.direction, self.linear, self.rounded, self.shape)
        return f"{self.operator} of weights with a scale for {self.form}: {given}"

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def constant(self, name: str, array: Any, dtype: Any = np.float32) -> str:
        self.constants[name] = np.asarray(array, dtype)
        return name

    def weights(self, name: str, width: int) -> str:
        """[directions, gates * hidden, width], each direction for itself."""
        rows = GATES[self.operator] * self.hidden
        parts = [self.part(f"{name}{number}", rows, width) for number in range(self.directions)]
        self.nodes.append(helper.make_node("Concat", parts, [name], axis=0))
        return name

    def part(self, name: str, rows: int, width: int) -> str:
        """[1, rows, width] of floats, behind what makes them of bytes."""
        info = np.iinfo(self.kind)
        stored = self.rng.integers(info.min, info.max, (rows, width), self.kind, endpoint=True)
        if self.form == "tensor":
            shape: tuple[int, ...] = ()
        else:
            shape = (rows, -(-width // BLOCK)) if self.form == "blocks" else (rows,)
        scale = self.rng.uniform(0.5, 1, shape) / 128 / np.sqrt(self.hidden)
        middle = 0 if self.kind == "int8" else 128
        zero = np.full(shape, middle) + self.rng.integers(-3, 3, shape) * (self.kind != "int8")
        operands = [
            self.constant(f"{name}_q", stored, self.kind),
            self.constant(f"{name}_s", scale),
            self.constant(f"{name}_z", zero, self.kind),
        ]
        if self.form == "cast":
            column = np.reshape(self.constants[operands[1]], (-1, 1))
            self.constants[operands[1]] = column
            self.constants[operands[2]] = np.reshape(zero, (-1, 1)).astype(np.float32)
            self.nodes += [
                helper.make_node("Cast", operands[:1], [f"{name}_wide"], to=FLOAT),
                helper.make_node("Sub", [f"{name}_wide", operands[2]], [f"{name}_centred"]),
                helper.make_node("Mul", [f"{name}_centred", operands[1]], [f"{name}_plain"]),
            ]
        else:
            blocked = self.form == "blocks"
            further: dict[str, Any] = {"axis": 1, "block_size": BLOCK} if blocked else {"axis": 0}
            operator = "DequantizeLinear"
            self.nodes.append(helper.make_node(operator, operands, [f"{name}_plain"], **further))
        axes = self.constant(f"{name}_axes", [0], np.int64)
        self.nodes.append(helper.make_node("Unsqueeze", [f"{name}_plain", axes], [name]))
        return name

    def through_bytes(self, name: str) -> str:
        """A value in bytes and back, as QDQ models have their activations."""
        parameters = [self.constant(f"{name}_scale", 1 / 64), self.constant(f"{name}_z", 128, "u1")]
        for operator, source, made in (
            ("QuantizeLinear", name, f"{name}_bytes"),
            ("DequantizeLinear", f"{name}_bytes", f"{name}_back"),
        ):
            self.nodes.append(helper.make_node(operator, [source, *parameters], [made]))
        return f"{name}_back"

    def proto(self) -> onnx.ModelProto:
        rows = GATES[self.operator] * self.hidden
        bias = self.rng.uniform(-0.1, 0.1, (self.directions, 2 * rows))
        inputs = [
            self.through_bytes("x") if self.rounded else "x",
            self.weights("w", SIZE),
            self.weights("r", self.hidden),
            self.constant("b", bias),
        ]
        given: dict[str, Any] = {"hidden_size": self.hidden, "direction": self.direction}
        if self.operator == "GRU":
            given["linear_before_reset"] = self.linear
        self.nodes.append(helper.make_node(self.operator, inputs, ["y", "y_h"], **given))
        shown = self.through_bytes("y") if self.rounded else "y"
        data = tensor("x", (*self.shape, SIZE))
        return model(self.nodes, [data], [shown, "y_h"], self.constants, opset=21)

    def feeds(self) -> dict[str, Array]:
        return {"x": self.rng.uniform(-1, 1, (*self.shape, SIZE)).astype(np.float32)}


def optimised(layer: Layer, cached: int = 0) -> tuple[Graph, Node]:
    """The optimised graph and its recurrence."""
    graph = optimise(import_model_proto(layer.proto()), 8, can=Abilities(cached=cached))
    (node,) = (node for node in graph.nodes if node.operator == "recurrence")
    return graph, node


def stored(graph: Graph, node: Node) -> list[str]:
    """The types in which constants hold recurrent weights."""
    return [
        str(graph.constants[node.inputs[at]].dtype)
        for at in (RECURRENCE, CANDIDATE)
        if node.inputs[at]
    ]


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("form", ["tensor", "channels", "cast"])
@pytest.mark.parametrize(("operator", "linear"), [("RNN", 0), ("GRU", 0), ("GRU", 1), ("LSTM", 0)])
def test_bytes_of_weights_stay_bytes(operator: str, linear: int, form: str, direction: str) -> None:
    graph, node = optimised(Layer(operator, form, direction=direction, linear=linear))
    assert set(stored(graph, node)) == {"int8"}
    assert not {"dequantize", "mul"} & {node.operator for node in graph.nodes}


def test_bytes_far_from_their_zero_point_take_two() -> None:
    graph, node = optimised(Layer("LSTM", "channels", "uint8"))
    assert stored(graph, node) == ["int16"]


def test_weights_whose_scale_changes_along_the_sum_are_floats() -> None:
    graph, node = optimised(Layer("LSTM", "blocks"))
    assert stored(graph, node) == ["float32"]


def test_few_weights_are_floats() -> None:
    graph, node = optimised(Layer("LSTM", "channels", hidden=32))
    assert stored(graph, node) == ["float32"]


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_weights_of_a_direction_that_a_cache_holds_are_floats(direction: str) -> None:
    bytes_of_floats = 4 * 128 * 128 * 4
    for cached, kind in ((bytes_of_floats, "float32"), (bytes_of_floats - 1, "int8")):
        graph, node = optimised(Layer("LSTM", "tensor", direction=direction), cached)
        assert stored(graph, node) == [kind]


@pytest.mark.parametrize(("name", "kind"), [("x86-64-v4", "int8"), ("x86-64-v3", "float32")])
def test_targets_read_weights_that_fit_the_last_cache_as(name: str, kind: str) -> None:
    target = target_named(name)
    assert stored(*optimised(Layer("LSTM", "tensor"), target.cached_weights)) == [kind]


def test_weights_that_a_run_gives_are_dequantised_there() -> None:
    layer = Layer("LSTM", "tensor")
    proto = layer.proto()
    given = layer.constants["r0_q"]
    kept = [item for item in proto.graph.initializer if item.name != "r0_q"]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    proto.graph.input.append(tensor("r0_q", given.shape, onnx.TensorProto.INT8))
    graph = optimise(import_model_proto(proto), 8)
    (node,) = (node for node in graph.nodes if node.operator == "recurrence")
    assert node.inputs[RECURRENCE] not in graph.constants


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """Directions, steps, rows, units of whole vectors or not, weights of every form."""
    return Layer(
        draw(st.sampled_from(sorted(GATES))),
        draw(st.sampled_from(FORMS)),
        draw(st.sampled_from(["int8", "uint8"])),
        draw(st.sampled_from([128, 131])),
        draw(st.sampled_from(["forward", "reverse", "bidirectional"])),
        linear=draw(st.integers(0, 1)),
        rounded=draw(st.booleans()),
        shape=(draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 3, 7]))),
    )


def assert_agrees(layer: Layer, dynamic: bool) -> None:
    """With onnxruntime, to a quantum of the result where that is rounded."""
    proto, feeds = layer.proto(), layer.feeds()
    names = [item.name for item in proto.graph.output]
    expected = exact_session(proto).run(None, feeds)
    if dynamic:
        shape = proto.graph.input[0].type.tensor_type.shape
        shape.dim[0].dim_param, shape.dim[1].dim_param = "n", "b"
    sizes = {"n": ["1..4"], "b": ["1..7"]} if dynamic else {}
    graph = optimise(import_model_proto(proto, sizes), 8)
    got = compiler.build(graph).run(feeds)
    for name, wanted in zip(names, expected, strict=True):
        quantum = 1 / 64 if name.endswith("_back") else 0
        np.testing.assert_allclose(got[name], wanted, rtol=1e-4, atol=1e-5 + quantum)


@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(layer=layers(), dynamic=st.booleans())
def test_built_layers_agree_with_onnxruntime(layer: Layer, dynamic: bool) -> None:
    assert_agrees(layer, dynamic)
