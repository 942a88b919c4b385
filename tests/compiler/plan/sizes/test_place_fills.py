"""Fills stand behind what they fill, for all of its readers; what folds axes has its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.rewriter import consumers
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.kernels.kernel import KernelCall
from tunefarm.compiler.operators.registry import infer_type
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.sizes import place_fills
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.signature import SIZES, AxisSource, Signature, SizedPort
from tunefarm.compiler.types.sizes import Symbol
from tunefarm.compiler.types.tensor_type import Attribute, TensorType

ROWS = Symbol("rows", 1, 16)
FILL: dict[str, Attribute] = {"axis": 2, "number": 0, "value": "zero"}


def graph(*steps: tuple[str, tuple[str, ...], dict[str, Attribute]], more: str = "") -> Graph:
    """Nodes v0, v1, … over x[1, 4, rows] and a weight; the last one is an output, and `more`."""
    rows = Symbol.of(ROWS.name, ROWS.low, ROWS.high)
    types = {
        "x": TensorType(DType.F32, (1, 4, 16)),
        SIZES: TensorType(DType.I64, (1,)),
        "w": TensorType(DType.F32, (4, 4, 3)),
    }
    nodes = []
    for number, (operator, inputs, attributes) in enumerate(steps):
        node = Node(operator, inputs, f"v{number}", attributes)
        types[node.output] = infer_type(node, tuple(types[name] for name in inputs))
        nodes.append(node)
    port = SizedPort("x", DType.F32, (1, 4, rows), (((1, 1),), ((4, 4),), ((rows, 16),)))
    signature = Signature((port,), (), (AxisSource(ROWS, "x", 2),), (rows,))
    weight = np.ones((4, 4, 3), np.float32)
    weight.flags.writeable = False
    outputs = (nodes[-1].output, more) if more else (nodes[-1].output,)
    made = Graph("model", ("x", SIZES), outputs, tuple(nodes), types, {"w": weight}, signature)
    verify_graph(made)
    return made


def test_a_skip_connection_reads_what_the_convolution_reads() -> None:
    given = graph(
        ("exp", ("x",), {}),
        ("fill", ("v0", SIZES), FILL),
        ("conv", ("v1", "w"), {"pads": (1, 1)}),
        ("add", ("v0", "v2"), {}),
    )
    placed = place_fills.run(given)
    verify_graph(placed)
    assert [node.output for node in consumers(placed)["v0"]] == ["v1"]
    calls = [c for c in extract_kernels(placed).calls if isinstance(c, KernelCall)]
    assert [call.operators for call in calls] == [("exp", "fill"), ("conv", "add")]


def test_a_fold_over_the_axis_has_a_fill_of_its_own() -> None:
    given = graph(
        ("exp", ("x",), {}),
        ("fill", ("v0", SIZES), FILL),
        ("conv", ("v1", "w"), {"pads": (1, 1)}),
        ("reduce_sum", ("v1",), {"axes": (2,), "keepdims": True}),
        ("add", ("v2", "v3"), {}),
    )
    placed = place_fills.run(given)
    verify_graph(placed)
    calls = [c.operators for c in extract_kernels(placed).calls if isinstance(c, KernelCall)]
    assert ("fill", "reduce_sum") in calls and ("exp", "fill") in calls


def test_a_value_that_is_folded_only_stays_without() -> None:
    given = graph(
        ("exp", ("x",), {}),
        ("fill", ("v0", SIZES), FILL),
        ("reduce_sum", ("v1",), {"axes": (2,), "keepdims": True}),
        ("mul", ("v0", "v2"), {}),
    )
    placed = place_fills.run(given)
    assert [node.operator for node in consumers(placed)["v0"]] == ["fill", "mul"]


def test_zeros_that_are_known_stay_for_those_who_read_them() -> None:
    lowest = {**FILL, "value": "lowest"}
    given = graph(
        ("softmax", ("x",), {"axis": 2}),
        ("reduce_sum", ("v0",), {"axes": (2,), "keepdims": True}),
        ("fill", ("v0", SIZES), lowest),
        ("conv", ("v2", "w"), {"pads": (1, 1)}),
        ("add", ("v3", "v1"), {}),
    )
    (port,) = given.signature.inputs
    placed = place_fills.run(replace(given, zeros={"v0": port.padded}))
    assert [node.operator for node in consumers(placed)["v0"]] == ["reduce_sum", "fill"]
    plain = place_fills.run(given)
    assert [node.operator for node in consumers(plain)["v0"]] == ["fill"]


@pytest.mark.parametrize("operator", ["softmax", "log_softmax"])
def test_what_reads_whole_rows_fills_them_itself(operator: str) -> None:
    lowest = {**FILL, "value": "lowest"}
    given = graph(
        ("exp", ("x",), {}),
        ("fill", ("v0", SIZES), lowest),
        (operator, ("v1",), {"axis": 2}),
        ("add", ("v2", "v0"), {}),
    )
    placed = place_fills.run(given)
    assert [node.operator for node in consumers(placed)["v0"]] == ["fill", "add"]


def test_graphs_of_fixed_sizes_stay_as_they_are() -> None:
    given = graph(("exp", ("x",), {}))
    assert place_fills.run(given) is given


def test_an_output_that_is_filled_for_others_keeps_its_name() -> None:
    given = graph(
        ("exp", ("x",), {}),
        ("fill", ("v0", SIZES), FILL),
        ("conv", ("v1", "w"), {"pads": (1, 1)}),
        ("add", ("v0", "v2"), {}),
        more="v0",
    )
    placed = place_fills.run(given)
    verify_graph(placed)
    assert placed.outputs == given.outputs
    assert [node.operator for node in placed.nodes] == ["exp", "fill", "conv", "add"]
