"""Drawn loops, with loops, branches and joins in their steps, compared with onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.frontend.loop_models import LoopCase, check, floats, integer

SHAPE = (2, 3)
CONSTANTS: dict[str, Any] = {
    "weights": floats(3, 3) / 2,
    "ones": np.ones(SHAPE, np.float32),
    "true": np.array(True),
    "zero": np.array(0, np.float32),
    "high": np.array(4.5, np.float32),
    "one": np.array([1]),
    "far": np.array([99]),
    "first": np.array([0]),
}


class _Body:
    """Draws the body of a loop: a chain of nodes on states, outer values and each other."""

    def __init__(self, draw: st.DrawFn, name: str, states: list[str], outer: list[str]) -> None:
        self.draw, self.name, self.states = draw, name, states
        self.pool = [*states, *outer]
        self.nodes: list[onnx.NodeProto] = []

    def any(self) -> str:
        return self.draw(st.sampled_from(self.pool))

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        output = f"{self.name}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def step(self, depth: int) -> str:
        kinds = ["pair", "tanh", "matmul", "index", "softmax", "branch", "join"]
        match self.draw(st.sampled_from([*kinds, "loop"] if depth < 2 else kinds)):
            case "pair":
                return self.node(self.draw(st.sampled_from(["Add", "Sub"])), self.any(), self.any())
            case "tanh":
                return self.node("Tanh", self.any())
            case "matmul":
                return self.node("MatMul", self.any(), "weights")
            case "index":
                number = self.node("Cast", f"{self.name}_step", to=TensorProto.FLOAT)
                return self.node("Add", self.any(), number)
            case "softmax":
                return self.node("Softmax", self.any(), axis=1)
            case "branch":
                total = self.node("ReduceSum", self.any(), keepdims=0)
                sides = [self.side(operator) for operator in ("Sin", "Neg")]
                below = self.node("Less", total, "zero")
                return self.node("If", below, then_branch=sides[0], else_branch=sides[1])
            case "join":
                joined = self.node("Concat", self.any(), self.any(), axis=0)
                return self.node("Slice", self.node("Slice", joined, "one", "far"), "first", "two")
        name = f"{self.name}_{len(self.nodes)}_inner"
        inner = drawn_body(self.draw, name, [f"{name}_state"], self.pool, 0, depth + 1)
        trips = self.draw(st.sampled_from(["k", f"{self.name}_step"]))
        return self.node("Loop", trips, "true", self.any(), body=inner)

    def side(self, operator: str) -> onnx.GraphProto:
        name = f"{self.name}_{len(self.nodes)}_{operator}"
        nodes = [
            helper.make_node(operator, [self.any()], [f"{name}_first"]),
            helper.make_node("Tanh", [f"{name}_first"], [name]),
        ]
        return helper.make_graph(nodes, f"{name}_side", [], [_info(name)])


def drawn_body(
    draw: st.DrawFn, name: str, states: list[str], outer: list[str], rows: int, depth: int
) -> onnx.GraphProto:
    body = _Body(draw, name, states, outer)
    for _ in range(draw(st.integers(1, 4))):
        body.pool.append(body.step(depth))
    again = body.node("Identity", f"{name}_again")
    if draw(st.booleans()):
        size = body.node("ReduceMax", body.any(), keepdims=0)
        again = body.node("Less", size, "high")
    results = [body.node("Identity", body.any()) for _ in range(len(states) + rows)]
    inputs = [
        helper.make_tensor_value_info(f"{name}_step", TensorProto.INT64, []),
        helper.make_tensor_value_info(f"{name}_again", TensorProto.BOOL, []),
        *map(_info, states),
    ]
    ends = helper.make_tensor_value_info(again, TensorProto.BOOL, [])
    return helper.make_graph(body.nodes, name, inputs, [ends, *map(_info, results)])


def _info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    states = [f"s{number}" for number in range(draw(st.integers(1, 3)))]
    rows = [f"r{number}" for number in range(draw(st.integers(0, 2)))]
    body = drawn_body(draw, "outer", states, ["x", "z"], len(rows), 0)
    initial = [draw(st.sampled_from(["x", "z", "ones"])) for _ in states]
    results = [f"y{number}" for number in range(len(states))]
    loop = helper.make_node("Loop", ["m", "true", *initial], [*results, *rows], body=body)
    stacked = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", *SHAPE]) for n in rows]
    trips = [helper.make_tensor_value_info(name, TensorProto.INT64, []) for name in ("m", "k")]
    constants = {**CONSTANTS, "two": np.array([2])}
    graph = helper.make_graph(
        [loop],
        "g",
        [*trips, _info("x"), _info("z")],
        [*map(_info, results), *stacked],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=12, deadline=None)
@given(models())
def test_a_drawn_loop_gives_what_onnxruntime_gives(model: onnx.ModelProto) -> None:
    values = {"x": floats(*SHAPE), "z": floats(*SHAPE) + 0.5}
    trips = ((1, 0), (3, 2), (6, 1))
    calls = [{"m": integer(m), "k": integer(k), **values} for m, k in trips]
    check(model, LoopCase("", calls, loops=None), tolerance=1e-3)
