"""Contractions in int8: which values are quantised, how finely, and what comes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.compiler.frontend.onnx_models import model, tensor
from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    evaluate_graph,
    operators,
    random_inputs,
)
from tunefarm import compiler
from tunefarm.compiler.errors import SettingsError
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.operators.recurrence import BATCH, RECURRENCE
from tunefarm.compiler.operators.registry import complete_attributes
from tunefarm.compiler.plan.apply_precisions import apply_precisions, prepare
from tunefarm.compiler.plan.precision import quantise
from tunefarm.compiler.plan.precision.contractions import contractions, identities
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.precision import Calibration, Precision, PrecisionPlan
from tunefarm.compiler.types.tensor_type import Attribute


def conv(maker: GraphMaker, x: str, outputs: int, bias: bool = True) -> str:
    channels = maker.types[x].shape[1]
    operands = [x, maker.weights(outputs, channels, 3, 3, scale=0.2)]
    operands += [maker.weights(outputs)] if bias else []
    return maker.node("conv", *operands, pads=(1, 1, 1, 1))


def calibration(graph: Graph, method: str = "minmax") -> Calibration:
    """Ranges of every value, of one random run."""
    found = replace(graph, outputs=tuple(node.output for node in graph.nodes))
    inputs = random_inputs(graph)
    values = {**inputs, **dict(zip(found.outputs, evaluate_graph(found, inputs), strict=True))}
    names = identities(graph)
    ranges = {names[n]: (float(v.min()), float(v.max())) for n, v in values.items()}
    return Calibration(method, 1, "", ranges)


def all_int8(graph: Graph, method: str = "minmax") -> PrecisionPlan:
    able = (item.identity for item in contractions(graph) if item.quantisable)
    return PrecisionPlan(dict.fromkeys(able, Precision.INT8), calibration(graph, method))


def error(graph: Graph, lowered: Graph) -> float:
    inputs = random_inputs(graph)
    expected, actual = evaluate_graph(graph, inputs), evaluate_graph(lowered, inputs)
    return max(
        float(np.abs(np.subtract(found, array)).max() / np.abs(array).max())
        for found, array in zip(actual, expected, strict=True)
    )


def residual() -> Graph:
    """conv, relu, max_pool, conv, + skip, relu, mean, product."""
    maker = GraphMaker()
    x = maker.input(1, 3, 8, 8)
    first = maker.node("relu", conv(maker, x, 5))
    pooled = maker.node("max_pool", first, kernel=(2, 2), strides=(2, 2), shape=(4, 4))
    second = conv(maker, pooled, 5, bias=False)
    summed = maker.node("relu", maker.node("add", second, pooled))
    mean = maker.node("reduce_mean", summed, axes=(2, 3), keepdims=False)
    return maker.graph(maker.node("matmul", mean, maker.weights(5, 7)))


@pytest.mark.parametrize("method", ["minmax", "mse"])
def test_quantised_network_errs_by_a_few_steps(method: str) -> None:
    graph = residual()
    lowered = quantise.run(graph, all_int8(graph, method))
    assert 0.0 < error(graph, lowered) < 0.03


def test_values_are_quantised_once_and_moved_in_8_bits() -> None:
    graph = residual()
    lowered = quantise.run(graph, all_int8(graph))
    assert operators(lowered).count("quantize") == 4  # x, relu, max_pool, mean
    by_output = {node.output: node for node in lowered.nodes}
    for node in lowered.nodes:
        if node.operator in ("conv", "matmul", "max_pool"):
            assert by_output[node.inputs[0]].operator == "dequantize"
        if node.operator == "add":  # the skip connection in 8 bits, the sums as they are
            kinds = [by_output[name].operator for name in node.inputs]
            assert kinds == ["conv", "dequantize"]
    assert lowered.types[lowered.outputs[0]].dtype is DType.F32


def test_a_value_that_others_need_in_f32_stays_f32_for_them() -> None:
    maker = GraphMaker()
    x = maker.input(1, 3, 6, 6)
    y = maker.node("relu", conv(maker, x, 4))
    z = conv(maker, y, 4)
    norm = maker.node("softmax", y, axis=1)
    graph = maker.graph(maker.node("add", z, norm))
    lowered = quantise.run(graph, all_int8(graph))
    (softmax,) = (node for node in lowered.nodes if node.operator == "softmax")
    assert {n.output: n for n in lowered.nodes}[softmax.inputs[0]].operator == "relu"


def test_only_the_contractions_of_the_plan_are_quantised() -> None:
    graph = residual()
    first, second, third = contractions(graph)
    plan = replace(all_int8(graph), precisions={second.identity: Precision.INT8})
    lowered = quantise.run(graph, plan)
    kinds = {
        node.output: {n.output: n for n in lowered.nodes}.get(node.inputs[0])
        for node in lowered.nodes
        if node.operator in ("conv", "matmul")
    }
    narrow = [name for name, by in kinds.items() if by and by.operator == "dequantize"]
    assert narrow == [second.value]
    assert quantise.run(graph, PrecisionPlan()) is graph
    assert {first.value, third.value}.isdisjoint(narrow)


def test_plans_that_do_not_fit_are_refused() -> None:
    graph = residual()
    plan = all_int8(graph)
    with pytest.raises(SettingsError, match="int8 needs ranges"):
        quantise.run(graph, replace(plan, calibration=None))
    empty = Calibration("minmax", 1, "", {})
    with pytest.raises(SettingsError, match="no range of what onnx_conv_0 reads"):
        quantise.run(graph, replace(plan, calibration=empty))
    maker = GraphMaker()
    x = maker.input(4, 4)
    product = maker.graph(maker.node("matmul", x, x))
    (item,) = contractions(product)
    with pytest.raises(SettingsError, match="has no int8 form"):
        quantise.run(product, PrecisionPlan({item.identity: Precision.INT8}, empty))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 7),
    st.booleans(),
    st.sampled_from([0.0, 1e-30, 1.0, 1e6]),
    st.sampled_from([0.0, 1e-3, 1e4]),
)
def test_any_scale_of_weights_and_biases_gives_finite_and_near_results(
    channels: int, columns: int, transposed: bool, scale: float, bias: float
) -> None:
    maker = GraphMaker()
    x = maker.input(3, channels)
    shape = (columns, channels) if transposed else (channels, columns)
    y = maker.node("matmul", x, maker.weights(*shape, scale=scale), transpose_b=transposed)
    image = maker.node("reshape", y, shape=(1, 3, columns, 1))
    kernel, shift = maker.weights(2, 3, 1, 1, scale=scale), maker.weights(2, scale=bias)
    graph = maker.graph(maker.node("conv", image, kernel, shift))
    lowered = quantise.run(graph, all_int8(graph))
    inputs = random_inputs(graph)
    (expected,), (actual,) = evaluate_graph(graph, inputs), evaluate_graph(lowered, inputs)
    assert np.isfinite(actual).all()
    absolute = replace(graph, constants={n: np.abs(array) for n, array in graph.constants.items()})
    (summed,) = evaluate_graph(absolute, {name: np.abs(array) for name, array in inputs.items()})
    error = np.abs(np.subtract(actual, expected)).max()
    assert error <= 0.05 * summed.max() + 1e-20  # terms may cancel, and their errors do not


def test_weights_have_a_scale_for_each_output_channel() -> None:
    weights = np.array([[127.0, 1.0], [0.254, -0.1], [0.0, 0.0]])
    scales = quantise.weight_scales(weights, 0)
    assert scales[:2] == pytest.approx([1.0, 0.002])
    assert scales[2] > 0
    assert quantise.weight_scales(weights.T, 1).tolist() == scales.tolist()


def test_searched_clips_err_no_more_than_the_largest_weight() -> None:
    weights = np.random.default_rng(0).standard_normal((4, 30_000))
    weights[0, 0] = 12.0
    found = []
    for search in (False, True):
        scales = quantise.weight_scales(weights, 0, search_clips=search)[:, None]
        rounded = np.clip(np.rint(weights / scales), -127, 127) * scales
        found.append(np.square(rounded - weights).sum(axis=1))
    assert (found[1] <= found[0]).all()
    assert (found[1] < found[0]).any()


def test_ranges_are_widened_to_hold_zero() -> None:
    for low, high in ((2.0, 5.0), (-5.0, -2.0), (-1.0, 3.0), (0.0, 0.0)):
        kept = quantise.Quantisation.of(low, high)
        assert kept.scale > 0 and 0 <= kept.zero_point <= 255
        for value in (0.0, low, high):
            step = np.clip(round(value / kept.scale) + kept.zero_point, 0, 255) - kept.zero_point
            assert step * kept.scale == pytest.approx(value, abs=kept.scale)


def test_pass_keeps_the_operators_attributes() -> None:
    graph = residual()
    lowered = quantise.run(graph, all_int8(graph))

    def pads(found: Graph) -> list[object]:
        return [complete_attributes(n)["pads"] for n in found.nodes if n.operator == "conv"]

    assert pads(lowered) == pads(graph)


FUNCTIONS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
ROUNDED = [("RNN", False), ("GRU", True), ("LSTM", False)]


def recurrent(kind: str, linear: bool, directions: int = 2) -> Graph:
    """Four steps of two rows of 24 units."""
    maker = GraphMaker()
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    apart = kind == "GRU" and not linear
    x = maker.input(directions, 4, 2, gates, 24)
    weights = [maker.weights(directions, 24, gates - apart, 24, scale=0.2)]
    weights += [maker.weights(directions, 24, 24, scale=0.2)] if apart else []
    names = FUNCTIONS[kind]
    zeros = (0.0,) * len(names)
    attributes: dict[str, Attribute] = {
        "kind": kind, "activations": names, "alphas": zeros, "betas": zeros,
        "linear_before_reset": linear,
    }  # fmt: skip
    return maker.graph(maker.node("recurrence", x, *weights, **attributes))


@pytest.mark.parametrize(("kind", "linear"), ROUNDED)
def test_recurrences_round_their_states_without_ranges(kind: str, linear: bool) -> None:
    graph = recurrent(kind, linear)
    (item,) = contractions(graph)
    assert item.rounds_states
    assert [kind for kind in Precision if item.has(kind)] == [Precision.F32, Precision.INT8]
    assert item.work == 4 * 2 * graph.types[item.weight].size
    lowered = quantise.run(graph, PrecisionPlan({item.identity: Precision.INT8}))
    (node,) = lowered.nodes
    weights = lowered.constants[node.inputs[RECURRENCE]]
    assert weights.dtype == np.int8 and abs(weights).max() == 127
    assert 0.0 < error(graph, lowered) < 0.03


def test_recurrences_whose_products_are_not_all_of_states_stay_f32() -> None:
    assert contractions(recurrent("GRU", linear=False)) == ()


def layer(kind: str) -> onnx.ModelProto:
    """Both directions of a layer over dynamic steps and rows, with lengths."""
    rows, rng = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind] * 19, np.random.default_rng(0)
    constants = {
        name: (rng.uniform(-1, 1, shape) / 4).astype(np.float32)
        for name, shape in (("w", (2, rows, 5)), ("r", (2, rows, 19)), ("b", (2, 2 * rows)))
    }
    further: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
    node = helper.make_node(
        kind, ["x", "w", "r", "b", "n"], ["y", "y_h"], None, hidden_size=19,
        direction="bidirectional", **further,
    )  # fmt: skip
    ports = [tensor("x", ("steps", "rows", 5)), tensor("n", ("rows",), onnx.TensorProto.INT32)]
    return model([node], ports, ["y", "y_h"], constants, opset=17)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_rounded_recurrences_of_dynamic_shapes_are_those_of_fixed_ones(kind: str) -> None:
    """A step's range is that of the rows that a run gives."""
    proto, rng = layer(kind), np.random.default_rng(1)

    def built(sizes: dict[str, list[str]]) -> tuple[Graph, Executable]:
        prepared = prepare(import_model_proto(proto, sizes))
        able = (item.identity for item in contractions(prepared) if item.rounds_states)
        lowered, _ = apply_precisions(prepared, PrecisionPlan(dict.fromkeys(able, Precision.INT8)))
        return lowered, compiler.build(lowered)

    graph, executable = built({"steps": ["1..6"], "rows": ["1..4"]})
    (node,) = (node for node in graph.nodes if node.operator == "recurrence")
    assert graph.constants[node.inputs[RECURRENCE]].dtype == np.int8
    assert node.inputs[BATCH] in graph.inputs
    for steps, rows in ((6, 4), (3, 1), (5, 2)):
        feeds = {
            "x": rng.uniform(-1, 1, (steps, rows, 5)).astype(np.float32),
            "n": rng.integers(1, steps, rows, np.int32, endpoint=True),
        }
        found = executable.run(feeds)
        _, fixed = built({"steps": [str(steps)], "rows": [str(rows)]})
        for name, expected in fixed.run(feeds).items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)
