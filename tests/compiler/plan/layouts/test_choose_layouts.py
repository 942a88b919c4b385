from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_same_meaning,
    conv,
    conversions,
    evaluate_graph,
    operators,
    random_inputs,
)
from tunefarm.compiler.graph import dead_code, fold_constants, simplify
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.serialize import structurally_equal
from tunefarm.compiler.plan.layouts import choose_layouts
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.padded_shape import whole
from tunefarm.compiler.types.signature import Signature, SizedPort

BLOCK = 8


def blocked(graph: Graph) -> Graph:
    result = choose_layouts.run(graph, BLOCK)
    assert_same_meaning(graph, result)
    assert structurally_equal(choose_layouts.run(result, BLOCK), result)
    return result


def layouts(graph: Graph) -> list[str]:
    return [
        str(node.attributes.get("layout", "NCHW"))
        for node in graph.nodes
        if node.operator == "conv"
    ]


@pytest.mark.parametrize("channels", [16, 20])
def test_chain_is_converted_at_its_ends_only(channels: int) -> None:
    maker = GraphMaker()
    y = maker.node("relu", conv(maker, maker.input(2, channels, 9, 7), channels))
    y = maker.node("max_pool", y, kernel=(2, 2), strides=(2, 2), shape=(4, 3))
    graph = maker.graph(conv(maker, y, channels))
    assert operators(blocked(graph)) == [
        "to_blocked",
        "conv",
        "relu",
        "max_pool",
        "conv",
        "from_blocked",
    ]


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_data_of_16_bits_is_blocked_as_that_of_f32(dtype: DType) -> None:
    maker = GraphMaker()

    def narrow(x: str, outputs: int) -> str:
        shape = outputs, maker.types[x].shape[1], 3, 3
        weight = maker.constant((maker.rng.standard_normal(shape) / 16).astype(dtype.numpy))
        return maker.node("conv", x, weight, pads=(1, 1, 1, 1))

    y = maker.node("sigmoid", narrow(maker.input(1, 20, 9, 7, dtype=dtype), 20))
    y = maker.node("max_pool", y, kernel=(2, 2), strides=(2, 2), shape=(4, 3))
    graph = maker.graph(narrow(y, 20))
    result = choose_layouts.run(graph, BLOCK)
    ends = ["to_blocked", "conv", "sigmoid", "max_pool", "conv", "from_blocked"]
    assert operators(result) == ends
    inputs = random_inputs(graph)
    (expected,), (found,) = evaluate_graph(graph, inputs), evaluate_graph(result, inputs)
    assert found.dtype == dtype.numpy
    near = 4 * dtype.epsilon  # what is rounded on the way may be rounded the other way
    wide, other = found.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_allclose(wide, other, rtol=near, atol=near)


def test_first_convolution_reads_plain_data() -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 3, 9, 9), 16)
    graph = maker.graph(conv(maker, maker.node("relu", y), 24))
    result = blocked(graph)
    assert layouts(result) == ["NCHW->NCHWc", "NCHWc"]
    assert conversions(result) == ["from_blocked"]


def test_depthwise_runs_blocked_and_other_groups_plain() -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 20, 9, 9), 20)
    y = conv(maker, maker.node("relu", y), 20, groups=20)
    y = conv(maker, y, 20)
    assert layouts(blocked(maker.graph(y))) == ["NCHWc"] * 3
    y = conv(maker, y, 20, groups=4)
    assert layouts(blocked(maker.graph(y))) == ["NCHWc"] * 3 + ["NCHW"]


@pytest.mark.parametrize(
    "build",
    [
        lambda m: conv(m, m.input(1, 16, 9, 9), 3),
        lambda m: conv(m, m.input(1, 64, 1, 1), 64, size=1),
        lambda m: m.node("conv", m.input(1, 16, 9, 9), m.input(16, 16, 3, 3)),
        lambda m: m.node("conv", m.input(1, 16, 9), m.weights(16, 16, 3)),
        lambda m: m.node(
            "conv",
            m.input(1, 16, 9, 9, dtype=DType.F64),
            m.constant(np.ones((16, 16, 3, 3))),
        ),
        lambda m: conv(m, m.input(1, 32, 9, 9), 32, groups=32),
    ],
    ids=["mostly padding", "1x1 image", "weights at run time", "1-D", "f64", "too little work"],
)
def test_convolution_that_does_not_gain_stays_plain(build: Callable[[GraphMaker], str]) -> None:
    maker = GraphMaker()
    graph = maker.graph(build(maker))
    assert choose_layouts.run(graph, BLOCK) == graph


def test_a_lone_convolution_is_blocked_for_winograd_alone() -> None:
    def lone(size: int, **attributes: tuple[int, ...]) -> Graph:
        maker = GraphMaker()
        weight = maker.weights(32, 32, size, size)
        pads = (size // 2,) * 4
        x = maker.input(1, 32, 12, 12)
        return maker.graph(maker.node("conv", x, weight, pads=pads, **attributes))

    assert conversions(blocked(lone(3))) == ["to_blocked", "from_blocked"]
    for plain in (lone(5), lone(1), lone(3, strides=(2, 2)), lone(3, dilations=(2, 2))):
        assert conversions(blocked(plain)) == []


def test_value_needed_in_both_forms_is_converted_once() -> None:
    maker = GraphMaker()
    x = maker.input(1, 16, 9, 9)
    y = conv(maker, x, 16)
    turned = maker.node("transpose", y, perm=(0, 1, 3, 2))
    soft = maker.node("softmax", y, axis=3)
    graph = maker.graph(turned, soft, conv(maker, y, 16), conv(maker, x, 16))
    result = blocked(graph)
    assert conversions(result).count("to_blocked") == 1
    assert conversions(result).count("from_blocked") == 3  # y, and the two outputs


OPERANDS: dict[str, Callable[[GraphMaker], str]] = {
    "scalar": lambda m: m.scalar(1.5),
    "per channel": lambda m: m.weights(20, 1, 1),
    "per channel and image": lambda m: m.weights(2, 20, 1, 1),
    "one element of rank 4": lambda m: m.weights(1, 1, 1, 1),
    "scalar at run time": lambda m: m.input(1),
    "per channel at run time": lambda m: m.input(2, 20, 1, 1),
    "per channel at run time, rank 3": lambda m: m.input(20, 1, 1),
}


@pytest.mark.parametrize("build", OPERANDS.values(), ids=OPERANDS.keys())
def test_operand_is_brought_to_the_blocked_side(build: Callable[[GraphMaker], str]) -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(2, 20, 9, 9), 20)
    y = maker.node("mul", build(maker), y)
    graph = maker.graph(conv(maker, y, 20))
    result = blocked(graph)
    runs_plain = graph.nodes[1].inputs[0] == "x1" and graph.types["x1"].size == 1
    assert layouts(result) == ["NCHWc", "NCHWc"]
    assert conversions(result).count("from_blocked") == (2 if runs_plain else 1)


@pytest.mark.parametrize("shape", [(1, 1, 9, 9), (9,), (9, 1), (2, 1, 9, 9)])
@pytest.mark.parametrize("constant", [True, False])
def test_operand_over_pixels_broadcasts_over_whole_blocks(
    shape: tuple[int, ...], constant: bool
) -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(2, 16, 9, 9), 16)
    y = maker.node("add", y, maker.weights(*shape) if constant else maker.input(*shape))
    result = blocked(maker.graph(conv(maker, y, 16)))
    assert conversions(result) == ["to_blocked", "from_blocked"]


@pytest.mark.parametrize("operator", ["exp", "cos", "sigmoid", "hard_swish", "softplus"])
def test_padding_lanes_that_stay_finite_pass(operator: str) -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 20, 9, 9), 20)
    y = maker.node(operator, y)
    result = blocked(maker.graph(conv(maker, y, 20)))
    assert conversions(result) == ["to_blocked", "from_blocked"]


@pytest.mark.parametrize("operator", ["log", "reciprocal"])
@pytest.mark.parametrize(("channels", "plain"), [(16, 1), (20, 2)])
def test_padding_lanes_that_would_be_infinite_do_not_pass(
    operator: str, channels: int, plain: int
) -> None:
    maker = GraphMaker()
    y = maker.node("relu", conv(maker, maker.input(1, channels, 9, 9), channels))
    above_zero = maker.constant(np.full((channels, 1, 1), 0.5, np.float32))
    y = maker.node(operator, maker.node("add", y, above_zero))
    graph = maker.graph(conv(maker, y, channels))
    assert conversions(blocked(graph)).count("from_blocked") == plain


def test_divisor_is_padded_with_ones() -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 20, 9, 9), 20)
    divisor = maker.constant(np.linspace(1, 2, 20, dtype=np.float32).reshape(20, 1, 1))
    result = blocked(maker.graph(conv(maker, maker.node("div", y, divisor), 20)))
    assert conversions(result) == ["to_blocked", "from_blocked"]


def test_lanes_that_overflow_after_many_steps_are_found() -> None:
    """exp(exp(… exp(0))) is infinite after five steps, where the channels' own values are not."""
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 20, 9, 9), 20)
    y = maker.node("sub", maker.node("clip", y, min=-1.0, max=1.0), maker.scalar(9))
    y = maker.node("mul", y, maker.constant(np.full((20, 1, 1), 1.0, np.float32)))
    for _ in range(5):
        y = maker.node("exp", y)
    graph = maker.graph(conv(maker, y, 20))
    result = blocked(graph)
    assert conversions(result) == ["to_blocked", "from_blocked", "to_blocked", "from_blocked"]
    (output,) = evaluate_graph(result, {"x0": np.full((1, 20, 9, 9), 0.1, np.float32)})
    assert np.isfinite(np.asarray(output, np.float64)).all()


def test_residual_addition_stays_blocked() -> None:
    maker = GraphMaker()
    x = conv(maker, maker.input(1, 20, 9, 9), 20)
    y = conv(maker, maker.node("relu", x), 20)
    graph = maker.graph(conv(maker, maker.node("add", y, x), 20))
    assert conversions(blocked(graph)) == ["to_blocked", "from_blocked"]


def test_smaller_side_is_converted() -> None:
    maker = GraphMaker()
    gate = conv(maker, maker.input(1, 16, 4, 4), 16)
    gate = maker.node("reduce_max", gate, axes=(2, 3))
    image = maker.input(1, 16, 40, 40)
    graph = maker.graph(maker.node("mul", image, maker.node("sigmoid", gate)))
    result = blocked(graph)
    assert conversions(result) == ["to_blocked"]  # the image stays plain, the gate is a reshape
    assert result.nodes[-1].operator == "mul"


@pytest.mark.parametrize(
    ("parts", "inside"),
    [((16, 8), True), ((12, 12), True), ((1, 20, 7), True), ((4,) * 20, False)],
)
def test_concat_of_few_pieces_stays_blocked(parts: tuple[int, ...], inside: bool) -> None:
    maker = GraphMaker()
    x = maker.input(1, 16, 9, 9)
    joined = maker.node("concat", *(conv(maker, x, part) for part in parts), axis=1)
    graph = maker.graph(conv(maker, joined, 16))
    result = blocked(graph)
    apart = 0 if inside else len(parts)
    expected = ["to_blocked"] * (1 + (apart > 0)) + ["from_blocked"] * (1 + apart)
    assert sorted(conversions(result), reverse=True) == expected
    assert_same_meaning(graph, result)


@pytest.mark.parametrize(("parts", "inside"), [((16, 8), True), ((12, 12), False)])
def test_concat_that_is_read_plain_puts_no_blocks_together(
    parts: tuple[int, ...], inside: bool
) -> None:
    maker = GraphMaker()
    x = maker.input(1, 16, 9, 9)
    joined = maker.node("concat", *(conv(maker, x, part) for part in parts), axis=1)
    graph = maker.graph(maker.node("softmax", joined, axis=3))
    result = blocked(graph)
    assert conversions(result).count("from_blocked") == (1 if inside else len(parts))
    assert_same_meaning(graph, result)


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.parametrize("operator", ["reduce_mean", "reduce_max"])
def test_global_pool_reads_blocked_data(operator: str, channels: int, keepdims: bool) -> None:
    maker = GraphMaker()
    y = maker.node("relu", conv(maker, maker.input(1, 16, 9, 9), channels))
    graph = maker.graph(maker.node(operator, y, axes=(2, 3), keepdims=keepdims))
    result = blocked(graph)
    whole = channels % BLOCK == 0
    assert conversions(result) == (["to_blocked"] if whole else ["to_blocked", "from_blocked"])
    reduction = next(node for node in result.nodes if node.operator == operator)
    assert len(result.types[reduction.inputs[0]].shape) == 5


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (1,), (1, 3)])
@pytest.mark.parametrize("keepdims", [True, False])
def test_a_fold_of_channels_reads_blocked_data_where_any_order_will_do(
    axes: tuple[int, ...], keepdims: bool
) -> None:
    maker = GraphMaker()
    y = conv(maker, conv(maker, maker.input(1, 16, 9, 7), 16), 16)
    exact = maker.node("reduce_max", y, axes=axes, keepdims=keepdims)
    assert conversions(blocked(maker.graph(exact))) == ["to_blocked"]
    summed = maker.node("reduce_sum", y, axes=axes, keepdims=keepdims)
    assert conversions(blocked(maker.graph(summed))) == ["to_blocked", "from_blocked"]


def test_a_fold_of_channels_that_do_not_fill_blocks_reads_plain_data() -> None:
    maker = GraphMaker()
    y = conv(maker, conv(maker, maker.input(1, 16, 9, 7), 16), 20)
    graph = maker.graph(maker.node("reduce_max", y, axes=(1,), keepdims=True))
    assert conversions(blocked(graph)) == ["to_blocked", "from_blocked"]


@pytest.mark.parametrize(
    ("pads", "channels", "value", "inside"),
    [
        ((0, 0, 1, 2, 0, 0, 0, 1), 16, 3.0, True),
        ((0, 0, 1, 2, 0, 0, 0, 1), 20, 0.0, True),
        ((0, 0, 1, 2, 0, 0, 0, 1), 20, 3.0, False),
        ((0, 8, 1, 2, 0, 0, 0, 1), 16, 0.0, False),
    ],
)
def test_pixels_are_padded_in_blocks(
    pads: tuple[int, ...], channels: int, value: float, inside: bool
) -> None:
    maker = GraphMaker()
    y = maker.node("pad", conv(maker, maker.input(1, 16, 9, 7), channels), pads=pads, value=value)
    graph = blocked(maker.graph(conv(maker, conv(maker, y, 16), 16)))
    assert len(conversions(graph)) == (2 if inside else 4)


def test_pixels_are_padded_in_blocks_with_a_number_of_the_run() -> None:
    maker = GraphMaker()
    value = maker.input()
    padded = conv(maker, maker.input(1, 16, 9, 7), 16)
    y = maker.node("pad", padded, value, pads=(0, 0, 1, 1, 0, 0, 1, 1))
    assert len(conversions(blocked(maker.graph(conv(maker, y, 16))))) == 2


def test_a_lone_convolution_of_bytes_is_blocked() -> None:
    """Dot products run along channels, which lie next to each other in blocks alone."""
    maker = GraphMaker()
    x = maker.input(1, 32, 12, 12, dtype=DType.U8)
    weight = maker.constant(maker.rng.integers(-127, 128, (32, 32, 5, 5)).astype(np.int8))
    graph = maker.graph(maker.node("conv", x, weight, pads=(2, 2, 2, 2), accumulator="i32"))
    result = choose_layouts.run(graph, BLOCK)
    assert conversions(result) == ["to_blocked", "from_blocked"]


def test_average_pool_of_lanes_that_are_not_zero_runs_plain() -> None:
    maker = GraphMaker()
    y = maker.node("cos", conv(maker, maker.input(1, 16, 4, 4), 20))
    y = maker.node(
        "average_pool", y, kernel=(2, 2), strides=(2, 2), pads=(1, 1, 1, 1), shape=(3, 3)
    )
    graph = maker.graph(y)
    result = choose_layouts.run(graph, BLOCK)
    pool = next(node for node in result.nodes if node.operator == "average_pool")
    # cos(0) is not 0: averages over lanes and padding would differ from place to place.
    assert pool.attributes.get("layout", "NCHW") == "NCHW"
    assert_same_meaning(graph, result)


def test_conversions_of_constants_are_folded() -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 16, 9, 9), 16)
    joined = maker.node("concat", y, maker.weights(1, 8, 9, 9), axis=1)
    graph = maker.graph(conv(maker, joined, 16))
    result = dead_code.run(fold_constants.run(simplify.run(blocked(graph))))
    assert conversions(result) == ["to_blocked", "from_blocked"]
    assert_same_meaning(graph, result)


@pytest.mark.parametrize(("axis", "inside"), [(0, True), (2, True), (3, True), (1, False)])
def test_filled_pixels_stay_blocked_and_filled_channels_do_not(axis: int, inside: bool) -> None:
    maker = GraphMaker()
    sizes = maker.constant(np.array([1], np.int64))
    data = conv(maker, maker.input(2, 16, 5, 6), 16)
    filled = maker.node("fill", data, sizes, axis=axis, number=0)
    graph = blocked(maker.graph(conv(maker, conv(maker, filled, 16), 16)))
    assert len(conversions(graph)) == (2 if inside else 4)


@pytest.mark.parametrize("begin", [8, 4])
def test_slices_of_whole_blocks_stay_blocked_where_shapes_are_dynamic(begin: int) -> None:
    maker = GraphMaker()
    data = conv(maker, maker.input(2, 16, 9, 9), 16)
    part = maker.node(
        "slice", data, starts=(0, begin, 0, 0), steps=(1, 1, 1, 1), shape=(2, 8, 9, 9)
    )
    graph = maker.graph(conv(maker, maker.node("relu", part), 16))
    shape = graph.types["x0"].shape
    port = SizedPort("x0", DType.F32, shape, tuple(map(whole, shape)))
    dynamic = replace(graph, dynamic=Signature((port,), (), (), ()))
    assert len(conversions(blocked(graph))) == 4
    assert len(conversions(blocked(dynamic))) == (2 if begin == 8 else 4)
