"""Operators between dequantize and quantize become operators on integers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.golden_files import check_golden
from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    evaluate_graph,
    operators,
    random_inputs,
)
from tunefarm.compiler.graph import fold_quantised
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.printer import format_graph
from tunefarm.compiler.types.dtypes import DType


class _Maker(GraphMaker):
    """Makes quantised values and weights."""

    def dequantized(self, name: str, scale: float = 0.5, zero: int = 128) -> str:
        kind = self.types[name].dtype.numpy
        offset = self.constant(np.array(zero, kind))
        return self.node("dequantize", name, self.scalar(scale), offset, to="f32")

    def quantized(self, name: str, scale: float = 0.5, zero: int = 0, to: str = "u8") -> str:
        offset = self.constant(np.array(zero, DType(to).numpy))
        return self.node("quantize", name, self.scalar(scale), offset, to=to)

    def filters(self, *shape: int) -> str:
        weights = self.constant(self.rng.integers(-127, 128, shape).astype(np.int8))
        scales = self.rng.choice([0.25, 0.125], (shape[0], *(1,) * (len(shape) - 1)))
        return self.node("dequantize", weights, self.constant(scales.astype(np.float32)), to="f32")


def _residual_block() -> Graph:
    """As onnxruntime writes it: a convolution with relu, one with a residual addition, a pool."""
    maker = _Maker()
    x = maker.input(1, 16, 6, 6, dtype=DType.U8)
    start = maker.dequantized(x)
    first = maker.node("conv", start, maker.filters(16, 16, 3, 3), pads=(1, 1, 1, 1))
    middle = maker.dequantized(maker.quantized(maker.node("relu", first)), 0.5, 0)
    second = maker.node("conv", middle, maker.filters(16, 16, 1, 1))
    total = maker.node("relu", maker.node("add", second, start))
    end = maker.dequantized(maker.quantized(total, 2.0), 2.0, 0)
    pool = maker.node("max_pool", end, kernel=(2, 2), shape=(3, 3), strides=(2, 2))
    return maker.graph(maker.quantized(pool, 2.0))


def _same(before: Graph, after: Graph) -> None:
    inputs = random_inputs(before)
    rng = np.random.default_rng(5)
    for name in inputs:
        kind = before.types[name].dtype.numpy
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            inputs[name] = rng.integers(limits.min, limits.max, inputs[name].shape).astype(kind)
    for found, expected in zip(
        evaluate_graph(after, inputs), evaluate_graph(before, inputs), strict=True
    ):
        np.testing.assert_array_equal(found, expected, strict=True)


def test_a_residual_block_is_integers_throughout(update_golden: bool) -> None:
    graph = _residual_block()
    folded = fold_quantised.run(graph)
    _same(graph, folded)
    check_golden("graph/residual_block_of_bytes.txt", format_graph(folded), update_golden)
    assert folded.types[folded.outputs[0]].dtype is DType.U8


def test_relu_goes_where_the_zero_point_cuts_the_same() -> None:
    assert operators(fold_quantised.run(_residual_block())).count("relu") == 0


def test_signed_data_becomes_unsigned_for_some_targets_and_stays_for_others() -> None:
    maker = _Maker()
    x = maker.input(1, 4, 5, 5)
    start = maker.dequantized(maker.quantized(x, 0.5, 3, "i8"), 0.5, 3)
    conv = maker.node("conv", start, maker.filters(4, 4, 1, 1))
    graph = maker.graph(maker.quantized(conv, 2.0, -1, "i8"))
    for wanted in (DType.U8, DType.I8):
        folded = fold_quantised.run(graph, wanted)
        _same(graph, folded)
        conv_node = next(node for node in folded.nodes if node.operator == "conv")
        assert folded.types[conv_node.inputs[0]].dtype is wanted
        assert "bitwise_xor" not in operators(folded)


def test_signed_inputs_are_turned_by_their_highest_bit() -> None:
    maker = _Maker()
    x = maker.input(1, 4, 5, 5, dtype=DType.I8)
    conv = maker.node("conv", maker.dequantized(x, 0.5, 3), maker.filters(4, 4, 1, 1))
    graph = maker.graph(conv)
    folded = fold_quantised.run(graph)
    assert "bitwise_xor" in operators(folded)
    _same(graph, folded)


def test_unsigned_weights_lose_their_zero_point() -> None:
    maker = _Maker()
    left = maker.dequantized(maker.input(3, 8, dtype=DType.U8), 0.5, 7)
    weights = maker.constant(maker.rng.integers(0, 256, (8, 5)).astype(np.uint8))
    right = maker.dequantized(weights, 0.25, 131)
    graph = maker.graph(maker.node("matmul", left, right))
    folded = fold_quantised.run(graph)
    _same(graph, folded)
    product = next(node for node in folded.nodes if node.operator == "matmul")
    assert folded.types[product.inputs[1]].dtype is DType.I8


def test_equal_parts_are_joined_as_integers_and_others_quantised_anew() -> None:
    maker = _Maker()
    first = maker.dequantized(maker.input(1, 3, 4, 4, dtype=DType.U8), 0.5, 0)
    second = maker.dequantized(maker.input(1, 5, 4, 4, dtype=DType.U8), 0.25, 9)
    graph = maker.graph(maker.quantized(maker.node("concat", first, second, axis=1)))
    folded = fold_quantised.run(graph)
    _same(graph, folded)
    assert operators(folded) == ["dequantize", "quantize", "concat"]


@pytest.mark.parametrize("operator", ["add", "sub"])
def test_sums_of_dequantized_data_are_not_divided(operator: str) -> None:
    maker = _Maker()
    first = maker.dequantized(maker.input(1, 3, 4, 4, dtype=DType.U8), 0.5, 3)
    second = maker.dequantized(maker.input(1, 3, 4, 4, dtype=DType.U8), 0.25, 9)
    total = maker.node("relu", maker.node(operator, first, second))
    graph = maker.graph(maker.quantized(total, 2.0, 7))
    folded = fold_quantised.run(graph)
    _same(graph, folded)
    assert operators(folded)[-2:] == ["relu", "saturate"]


def test_data_that_is_only_quantised_anew_is_divided() -> None:
    maker = _Maker()
    data = maker.dequantized(maker.input(1, 3, 4, 4, dtype=DType.U8), 0.3, 3)
    graph = maker.graph(maker.quantized(data, 0.7, 7))
    folded = fold_quantised.run(graph)
    _same(graph, folded)
    assert operators(folded) == ["dequantize", "quantize"]


def _activated(maker: _Maker, x: str) -> str:
    """x sigmoid(x) with a rounded sigmoid, as onnxruntime writes it."""
    start = maker.dequantized(x, 0.05, 120)
    gate = maker.quantized(maker.node("sigmoid", start), 1 / 256)
    product = maker.node("mul", start, maker.dequantized(gate, 1 / 256, 0))
    return maker.quantized(product, 0.03, 9)


def test_functions_of_bytes_are_one_table() -> None:
    maker = _Maker()
    graph = maker.graph(_activated(maker, maker.input(1, 5, 3, 7, dtype=DType.U8)))
    folded = fold_quantised.run(graph)
    assert operators(folded) == ["lookup"]
    _same(graph, folded)


def test_a_table_is_read_with_the_sign_that_its_data_has_for_others() -> None:
    maker = _Maker()
    x = maker.quantized(maker.input(1, 4, 5, 5), 0.0625, -8, "i8")
    start = maker.dequantized(x, 0.0625, -8)
    tanh = maker.quantized(maker.node("tanh", start), 1 / 64, 3, "i8")
    conv = maker.node("conv", maker.dequantized(tanh, 1 / 64, 3), maker.filters(4, 4, 1, 1))
    other = maker.node("conv", start, maker.filters(4, 4, 1, 1))
    graph = maker.graph(conv, other)
    for wanted in (DType.U8, DType.I8):
        folded = fold_quantised.run(graph, wanted)
        assert operators(folded).count("quantize") == 1
        assert operators(folded).count("lookup") == 1
        _same(graph, folded)


def test_a_bias_of_floats_is_divided_with_the_factors() -> None:
    maker = _Maker()
    start = maker.dequantized(maker.input(1, 4, 5, 5, dtype=DType.U8), 0.5, 120)
    bias = maker.constant(np.array([3, -5, 0, 9], np.float32))
    conv = maker.node("conv", start, maker.filters(4, 4, 1, 1), bias)
    graph = maker.graph(maker.quantized(conv, 4.0, 3))
    folded = fold_quantised.run(graph)
    assert operators(folded) == ["conv", "cast", "mul", "add", "saturate"]
    _same(graph, folded)


@pytest.mark.parametrize("padded", [False, True])
def test_averages_are_sums_of_integers(padded: bool) -> None:
    maker = _Maker()
    start = maker.dequantized(maker.input(1, 3, 7, 8, dtype=DType.U8), 0.5, 120)
    pool = maker.node(
        "average_pool",
        start,
        kernel=(2, 2),
        shape=(5, 5),
        strides=(2, 2),
        pads=(1, 1, 2, 1),
        count_include_pad=padded,
    )
    mean = maker.node("reduce_mean", pool, axes=(2, 3), keepdims=True)
    whole = maker.node("reduce_mean", start, axes=(3,), keepdims=False)
    graph = maker.graph(maker.quantized(pool, 1.0, 3), maker.quantized(whole, 0.25, 9), mean)
    folded = fold_quantised.run(graph)
    assert {"sum_pool", "reduce_sum"} <= set(operators(folded))
    assert "average_pool" not in operators(folded)
    _same(graph, folded)


def test_averages_over_windows_that_overlap_stay_floats() -> None:
    maker = _Maker()
    start = maker.dequantized(maker.input(1, 3, 6, 6, dtype=DType.U8))
    pool = maker.node("average_pool", start, kernel=(2, 2), shape=(5, 5), strides=(1, 1))
    assert "sum_pool" not in operators(fold_quantised.run(maker.graph(maker.quantized(pool))))


def test_what_is_reshaped_is_quantised_before() -> None:
    maker = _Maker()
    start = maker.dequantized(maker.input(2, 3, 4, dtype=DType.U8), 0.0625, 120)
    turned = maker.node("transpose", maker.node("tanh", start), perm=(1, 0, 2))
    flat = maker.node("reshape", turned, shape=(6, 4))
    graph = maker.graph(maker.quantized(flat, 1 / 128, 9))
    folded = fold_quantised.run(graph)
    assert operators(folded) == ["lookup", "transpose", "reshape"]
    _same(graph, folded)


def test_what_others_read_as_floats_is_quantised_where_it_was() -> None:
    maker = _Maker()
    product = maker.node("mul", maker.input(2, 6), maker.input(2, 6))
    flat = maker.node("reshape", product, shape=(12,))
    graph = maker.graph(maker.quantized(flat), flat)
    assert operators(fold_quantised.run(graph)) == ["mul", "reshape", "quantize"]


def test_functions_of_two_values_are_no_table() -> None:
    maker = _Maker()
    one, two = (maker.dequantized(maker.input(2, 3, dtype=DType.U8)) for _ in range(2))
    product = maker.node("mul", one, maker.node("sigmoid", two))
    assert "lookup" not in operators(fold_quantised.run(maker.graph(maker.quantized(product))))


def test_what_is_not_quantised_stays() -> None:
    maker = _Maker()
    x = maker.input(1, 4, 5, 5)
    by_channel = maker.constant(maker.rng.uniform(0.5, 1, (4, 1, 1)).astype(np.float32))
    q = maker.input(1, 4, 5, 5, dtype=DType.U8)
    data = maker.node("dequantize", q, by_channel, to="f32")  # scales that a sum runs over
    graph = maker.graph(
        maker.node("conv", data, maker.filters(4, 4, 1, 1)),
        maker.node("conv", x, maker.filters(4, 4, 1, 1)),
    )
    folded = fold_quantised.run(graph)
    assert operators(folded) == operators(graph)


def test_models_of_floats_are_left_alone() -> None:
    maker = GraphMaker()
    graph = maker.graph(maker.node("conv", maker.input(1, 3, 4, 4), maker.weights(2, 3, 1, 1)))
    assert fold_quantised.run(graph) is graph


@pytest.mark.parametrize("window", [(1, 1), (3, 2)])
@pytest.mark.parametrize("zero", [0, 131, None])
def test_weights_wider_than_a_byte_are_bytes_and_sums_of_windows(
    window: tuple[int, int], zero: int | None
) -> None:
    """u8 less a zero point: conv(x, w) = conv(x, w + c) - c * the sum of x under the window."""
    maker = _Maker()
    x = maker.input(2, 5, 9, 8, dtype=DType.U8)
    data = maker.node("cast", x, to="i32")
    if zero != 0:
        known = np.array(zero or 0, np.uint8)
        point = maker.input(dtype=DType.U8) if zero is None else maker.constant(known)
        data = maker.node("sub", data, maker.node("cast", point, to="i32"))
    given = maker.rng.integers(0, 256, (9, 5, *window)) - maker.rng.integers(60, 200, (9, 1, 1, 1))
    weights = maker.constant(given.astype(np.int32))
    pads = (window[0] // 2, window[1] // 2, 0, 1)
    y = maker.node("conv", data, weights, pads=pads, strides=(2, 1))
    graph = maker.graph(y)
    folded = fold_quantised.run(graph)
    _same(graph, folded)
    (products,) = (node for node in folded.nodes if node.attributes.get("accumulator"))
    assert folded.types[products.inputs[1]].dtype is DType.I8
    assert operators(folded).count("reduce_sum") == 1


def test_weights_whose_channel_spans_more_than_bytes_stay_wide() -> None:
    maker = _Maker()
    data = maker.node("cast", maker.input(1, 3, 6, 6, dtype=DType.U8), to="i32")
    weights = maker.rng.integers(-300, 300, (8, 3, 3, 3)).astype(np.int32)
    graph = maker.graph(maker.node("conv", data, maker.constant(weights)))
    folded = fold_quantised.run(graph)
    _same(graph, folded)
    (products,) = (node for node in folded.nodes if node.attributes.get("accumulator"))
    assert folded.types[products.inputs[1]].dtype is DType.I16


@pytest.mark.parametrize("form", ["integers", "floats"])
@pytest.mark.parametrize("is_known", [True, False])
def test_padding_of_dynamic_sizes_is_filled_with_the_zero_point(form: str, is_known: bool) -> None:
    """conv(fill(q - z)), zeros behind a size, is conv(fill(q)), z there, less the share of z."""
    maker = _Maker()
    x, sizes = maker.input(1, 16, 6, 9, dtype=DType.U8), maker.input(1, dtype=DType.I64)
    zero = maker.constant(np.array(117, np.uint8)) if is_known else maker.input(dtype=DType.U8)
    weights = maker.rng.integers(-127, 128, (8, 16, 3, 3)).astype(np.int8)
    if form == "integers":
        data = maker.node("cast", x, to="i32")
        data = maker.node("sub", data, maker.node("cast", zero, to="i32"))
        filters = maker.constant(weights.astype(np.int32))
    else:
        data = maker.node("dequantize", x, maker.scalar(0.5), zero, to="f32")
        filters = maker.node("dequantize", maker.constant(weights), maker.scalar(0.25), to="f32")
    data = maker.node("fill", data, sizes, axis=3, number=0)
    graph = maker.graph(maker.node("conv", data, filters, pads=(1, 1, 1, 1)))
    folded = fold_quantised.run(graph)
    (products,) = (node for node in folded.nodes if node.operator == "conv")
    assert products.attributes["accumulator"] == "i32"
    inputs = random_inputs(graph)
    inputs[x] = np.random.default_rng(2).integers(0, 256, (1, 16, 6, 9)).astype(np.uint8)
    inputs[sizes] = np.array([5], np.int64)
    if not is_known:
        inputs[zero] = np.array(140, np.uint8)
    (found,), (expected,) = evaluate_graph(folded, inputs), evaluate_graph(graph, inputs)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("outside", ["nothing", "zero", "one"])
def test_steps_from_a_place_of_the_run_on_are_moved_as_integers(outside: str) -> None:
    """As the other direction of a recurrent layer reads them: the last that is there first."""
    maker = _Maker()
    x, sizes = maker.input(7, 16, dtype=DType.U8), maker.input(2, dtype=DType.I64)
    given = [] if outside == "nothing" else [maker.scalar(float(outside == "one"))]
    start = maker.dequantized(x, 0.5, 117)
    moved = maker.node("shift", start, sizes, *given, axis=0, extent=7, step=-1, start=0, end=1)
    graph = maker.graph(maker.node("matmul", moved, maker.filters(16, 8)))
    folded = fold_quantised.run(graph)
    shift = next(node for node in folded.nodes if node.operator == "shift")
    assert folded.types[shift.output].dtype is (DType.F32 if outside == "one" else DType.U8)
    inputs = random_inputs(graph)
    inputs[x] = np.random.default_rng(2).integers(0, 256, (7, 16)).astype(np.uint8)
    inputs[sizes] = np.array([4, 5], np.int64)
    for found, expected in zip(
        evaluate_graph(folded, inputs), evaluate_graph(graph, inputs), strict=True
    ):
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-4)
