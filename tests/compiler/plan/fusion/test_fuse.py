from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, extracted
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.fusion.fuse import MAXIMUM_NODES, fuse
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.tensor_type import Attribute


def groups(graph: Graph) -> list[str]:
    """The operators of each group; the kernels are checked against the graph."""
    found = fuse(graph)
    assert sorted(n.output for g in found for n in g.nodes) == sorted(n.output for n in graph.nodes)
    extracted(graph)
    return ["_".join(node.operator for node in group.nodes) for group in found]


def conv(maker: GraphMaker, x: str, outputs: int = 4, size: int = 3) -> str:
    weight = maker.weights(outputs, maker.types[x].shape[1], size, size)
    return maker.node("conv", x, weight, maker.weights(outputs), pads=(size // 2,) * 4)


# --- contractions -------------------------------------------------------------------------------


def test_contraction_takes_its_epilogue() -> None:
    maker = GraphMaker()
    x = maker.input(1, 4, 6, 6)
    y = maker.node("mul", conv(maker, x), maker.weights(4, 1, 1))
    y = maker.node("clip", maker.node("add", y, x), min=0.0, max=6.0)
    assert groups(maker.graph(maker.node("cast", y, to="f64"))) == ["conv_mul_add_clip_cast"]


def test_epilogue_may_read_its_values_more_than_once() -> None:
    maker = GraphMaker()
    y = maker.node("matmul", maker.input(5, 3), maker.weights(3, 4))
    y = maker.node("add", y, maker.weights(4))
    inner = maker.node("erf", maker.node("mul", y, maker.scalar(0.7)))
    y = maker.node("mul", y, maker.node("add", inner, maker.scalar(1)))
    assert groups(maker.graph(y)) == ["matmul_add_mul_erf_add_mul"]


def test_what_makes_elements_larger_is_left_to_its_reader() -> None:
    maker = GraphMaker()
    x = maker.input(1, 4, 6, 6, dtype=DType.U8)
    filters = maker.constant(np.ones((4, 4, 1, 1), np.int8))
    sums = maker.node("conv", x, filters, accumulator="i32")
    narrow = maker.node("saturate", maker.node("cast", sums, to="f32"), to="u8")
    wide = maker.node("dequantize", narrow, maker.scalar(0.5), to="f32")
    other = conv(maker, maker.input(1, 8, 6, 6))
    total = maker.node("add", other, wide)
    assert groups(maker.graph(total)) == ["conv_cast_saturate", "dequantize_conv_add"]


def test_value_that_is_needed_elsewhere_ends_the_group() -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 4, 6, 6))
    left = maker.node("relu", y)
    assert groups(maker.graph(left, y)) == ["conv", "relu"]
    assert groups(maker.graph(left, maker.node("softmax", y, axis=1))) == [
        "conv",
        "relu",
        "softmax",
    ]


@pytest.mark.parametrize(
    ("operator", "attributes", "expected"),
    [
        ("cast", {"to": "bf16"}, ["attention_cast"]),
        ("quantize", {"to": "u8"}, ["attention", "quantize"]),
        ("relu", {}, ["attention", "relu"]),
    ],
)
def test_attention_ends_in_a_cast_or_as_it_is(
    operator: str, attributes: dict[str, Attribute], expected: list[str]
) -> None:
    maker = GraphMaker()
    query, key, value = (maker.input(2, 5, 4) for _ in range(3))
    y = maker.node("attention", query, key, value)
    scale = [maker.scalar(0.1)] if operator == "quantize" else []
    assert groups(maker.graph(maker.node(operator, y, *scale, **attributes))) == expected


def test_nothing_is_fused_behind_what_reads_its_own_result() -> None:
    maker = GraphMaker()
    projected, states = maker.input(3, 1, 2, 1, 4), maker.weights(3, 4, 1, 4)
    cell: dict[str, Attribute] = {"alphas": (0.0,), "betas": (0.0,)}
    y = maker.node("recurrence", projected, states, kind="RNN", activations=("tanh",), **cell)
    assert groups(maker.graph(maker.node("relu", y))) == ["recurrence", "relu"]


@pytest.mark.parametrize("pooled", [True, False])
def test_narrow_floats_are_stored_and_widened_by_their_reader(pooled: bool) -> None:
    maker = GraphMaker()
    narrow = maker.node("cast", conv(maker, maker.input(1, 4, 6, 6)), to="bf16")
    wide = maker.node("cast", narrow, to="f32")
    if pooled:
        graph = maker.graph(maker.node("reduce_mean", wide, axes=(2, 3)))
        assert groups(graph) == ["conv_cast", "cast_reduce_mean"]
    else:  # the model's output has nobody else who could
        assert groups(maker.graph(wide)) == ["conv_cast_cast"]


def test_choice_between_values_of_the_group_stays_in_it_for_its_one_result() -> None:
    maker = GraphMaker()
    x = maker.input(2, 3)
    total = maker.node("reduce_sum", x, axes=(0,), keepdims=False)
    none = maker.node("isinf", total)  # a bool, and so narrower than what is chosen by it
    safe = maker.node("where", none, maker.weights(3), total)
    assert groups(maker.graph(maker.node("div", x, safe))) == ["reduce_sum_isinf_where", "div"]


def test_result_of_another_shape_ends_the_group() -> None:
    maker = GraphMaker()
    y = maker.node("matmul", maker.input(1, 3), maker.weights(3, 4))
    wide = maker.node("relu", maker.node("add", y, maker.weights(5, 4)))
    assert groups(maker.graph(wide)) == ["matmul", "add_relu"]


def test_reshape_ends_the_group() -> None:
    maker = GraphMaker()
    y = maker.node("matmul", maker.input(2, 3), maker.weights(3, 4))
    y = maker.node("relu", maker.node("reshape", y, shape=(8,)))
    assert groups(maker.graph(y)) == ["matmul", "reshape", "relu"]


@pytest.mark.parametrize("larger_first", [True, False])
def test_residual_addition_joins_the_larger_contraction(larger_first: bool) -> None:
    maker = GraphMaker()
    x = maker.input(1, 4, 6, 6)
    sizes = (3, 1) if larger_first else (1, 3)
    y = maker.node("add", *(conv(maker, x, size=size) for size in sizes))
    graph = maker.graph(maker.node("relu", y))
    assert groups(graph) == ["conv", "conv_add_relu"]
    large = next(group for group in fuse(graph) if len(group.nodes) == 3)
    assert graph.types[large.nodes[0].inputs[1]].shape == (4, 4, 3, 3)


def test_contraction_takes_nothing_before_it() -> None:
    maker = GraphMaker()
    x = maker.node("relu", maker.input(1, 4, 6, 6))
    assert groups(maker.graph(conv(maker, x))) == ["relu", "conv"]
    turned = maker.node("transpose", maker.input(4, 3), perm=(1, 0))
    graph = maker.graph(maker.node("matmul", turned, maker.weights(4, 2)))
    assert "transpose" in groups(graph)


def test_operand_that_only_the_epilogue_reads_is_computed_there() -> None:
    maker = GraphMaker()
    x, other = maker.input(1, 4, 6, 6), maker.input(1, 4, 6, 6)
    y = maker.node("add", conv(maker, x), maker.node("tanh", other))
    assert groups(maker.graph(y)) == ["conv_tanh_add"]


def test_expensive_operand_is_not_computed_again_for_every_pixel() -> None:
    maker = GraphMaker()
    x, gate = maker.input(1, 4, 6, 6), maker.input(1, 4, 1, 1)
    y = maker.node("mul", conv(maker, x), maker.node("sigmoid", gate))
    assert groups(maker.graph(y)) == ["sigmoid", "conv_mul"]
    z = maker.node("mul", conv(maker, x), maker.node("relu", gate))
    assert "conv_relu_mul" in groups(maker.graph(z))


def test_group_cannot_wait_for_itself() -> None:
    maker = GraphMaker()
    x = maker.input(1, 4, 6, 6)
    first = conv(maker, x)
    second = conv(maker, first)
    graph = maker.graph(maker.node("add", first, second))
    assert groups(graph) == ["conv", "conv_add"]


# --- reductions and kernels of several stages ---------------------------------------------------


def test_reduction_takes_prologue_and_epilogue() -> None:
    maker = GraphMaker()
    x = maker.node("exp", maker.node("transpose", maker.input(3, 4), perm=(1, 0)))
    y = maker.node("sqrt", maker.node("reduce_sum", x, axes=(1,)))
    assert groups(maker.graph(y)) == ["transpose_exp_reduce_sum_sqrt"]


def test_overlapping_windows_take_no_prologue_and_separate_ones_do() -> None:
    maker = GraphMaker()
    x = maker.node("exp", maker.input(1, 2, 6, 6))
    overlapping = maker.node("max_pool", x, kernel=(3, 3), strides=(1, 1), shape=(4, 4))
    assert groups(maker.graph(overlapping)) == ["exp", "max_pool"]
    maker = GraphMaker()
    x = maker.node("exp", maker.input(1, 2, 6, 6))
    separate = maker.node("max_pool", x, kernel=(2, 2), strides=(2, 2), shape=(3, 3))
    assert groups(maker.graph(separate)) == ["exp_max_pool"]


def test_softmax_takes_a_cheap_prologue_and_an_epilogue() -> None:
    maker = GraphMaker()
    scores = maker.node("mul", maker.input(2, 5), maker.scalar(0.3))
    scores = maker.node("add", scores, maker.input(1, 5))
    y = maker.node("mul", maker.node("softmax", scores, axis=1), maker.weights(2, 5))
    assert groups(maker.graph(y)) == ["mul_add_softmax_mul"]


def test_softmax_does_not_take_an_expensive_prologue() -> None:
    maker = GraphMaker()
    y = maker.node("softmax", maker.node("tanh", maker.input(2, 5)), axis=1)
    assert groups(maker.graph(y)) == ["tanh", "softmax"]


def test_layer_norm_takes_the_residual_addition() -> None:
    maker = GraphMaker()
    total = maker.node("add", maker.input(2, 8), maker.input(2, 8))
    y = maker.node("layer_norm", total, maker.weights(8), maker.weights(8), axis=1)
    assert groups(maker.graph(y)) == ["add_layer_norm"]


def test_value_that_normalisation_and_others_read_stays() -> None:
    maker = GraphMaker()
    total = maker.node("add", maker.input(2, 8), maker.input(2, 8))
    y = maker.node("layer_norm", total, maker.weights(8), maker.weights(8), axis=1)
    assert groups(maker.graph(y, total)) == ["add", "layer_norm"]


# --- pointwise and injective nodes --------------------------------------------------------------


def test_pointwise_tree_is_one_group() -> None:
    maker = GraphMaker()
    left = maker.node("exp", maker.input(3, 4))
    right = maker.node("tanh", maker.node("neg", maker.input(3, 4)))
    assert groups(maker.graph(maker.node("add", left, right))) == ["exp_neg_tanh_add"]


def test_pointwise_and_injective_nodes_fuse() -> None:
    maker = GraphMaker()
    x = maker.node("transpose", maker.node("exp", maker.input(3, 4)), perm=(1, 0))
    y = maker.node("slice", x, starts=(3, 0), steps=(-1, 1), shape=(4, 2))
    assert groups(maker.graph(maker.node("relu", y))) == ["exp_transpose_slice_relu"]


def test_expensive_value_is_not_computed_again_by_broadcasting() -> None:
    maker = GraphMaker()
    deviation = maker.node("sqrt", maker.input(3, 1))
    y = maker.node("div", maker.input(3, 100), deviation)
    assert groups(maker.graph(y)) == ["sqrt", "div"]
    maker = GraphMaker()
    wide = maker.node("expand", maker.node("exp", maker.input(3, 1)), shape=(3, 100))
    assert groups(maker.graph(wide)) == ["exp", "expand"]


def test_concat_takes_its_parts() -> None:
    maker = GraphMaker()
    parts = [maker.node("exp", maker.input(2, 3)) for _ in range(3)]
    assert groups(maker.graph(maker.node("concat", *parts, axis=1))) == ["exp_exp_exp_concat"]


def test_paths_through_different_index_maps_are_not_copied() -> None:
    maker = GraphMaker()
    x = maker.node("exp", maker.input(4, 4))
    y = maker.node("add", x, maker.node("transpose", x, perm=(1, 0)))
    assert groups(maker.graph(y)) == ["exp", "transpose_add"]


def test_long_chains_are_cut() -> None:
    maker = GraphMaker()
    y = maker.input(3)
    for _ in range(MAXIMUM_NODES + 3):
        y = maker.node("neg", y)
    assert [len(group.nodes) for group in fuse(maker.graph(y))] == [MAXIMUM_NODES, 3]


def test_gather_of_indices_is_fused_only_where_nothing_is_repeated() -> None:
    maker = GraphMaker()
    table, picks = maker.weights(7, 5), maker.input(3, dtype=DType.I64)
    rows = maker.node("gather", table, picks, axis=0)
    assert groups(maker.graph(maker.node("relu", rows))) == ["gather_relu"]
    maker = GraphMaker()
    table, picks = maker.input(2, 5), maker.input(9, dtype=DType.I64)
    bounded = maker.node("clip", maker.node("cast", picks, to="f32"), min=0.0, max=1.0)
    whole = maker.node("cast", bounded, to="i64")
    rows = maker.node("gather", maker.node("exp", table), whole, axis=0)
    assert groups(maker.graph(rows)) == ["exp", "cast_clip_cast_gather"]


# --- what reads at computed positions ------------------------------------------------------------


def resized(maker: GraphMaker, x: str, axis: int, weighted: bool) -> str:
    size = 2 * maker.types[x].shape[axis]
    tables = [maker.weights(2, size)] if weighted else []
    offsets = (-1, 1) if weighted else (0,)
    window = {"size": size, "divisor": 2, "offsets": offsets, "weighted": weighted}
    return maker.node("resample", x, *tables, axis=axis, **window)


def test_nearest_positions_along_two_axes_are_one_kernel() -> None:
    maker = GraphMaker()
    y = resized(maker, resized(maker, maker.input(1, 4, 5, 6), 3, False), 2, False)
    y = maker.node("add", y, maker.input(1, 4, 10, 12))
    assert groups(maker.graph(y)) == ["resample_resample_add"]


def test_weighted_sums_along_two_axes_are_two_kernels() -> None:
    maker = GraphMaker()
    y = resized(maker, resized(maker, maker.input(1, 4, 5, 6), 3, True), 2, True)
    y = maker.node("relu", maker.node("add", y, maker.input(1, 4, 10, 12)))
    assert groups(maker.graph(y)) == ["resample", "resample_add_relu"]


@pytest.mark.parametrize("mover", ["transpose", "concat", "to_blocked", "slice"])
def test_weighted_sums_are_computed_in_rows_and_then_moved(mover: str) -> None:
    maker = GraphMaker()
    y = maker.node("relu", resized(maker, maker.input(1, 4, 5, 6), 3, True))
    if mover == "concat":
        y = maker.node("concat", y, maker.input(1, 4, 5, 12), axis=1)
    elif mover == "slice":
        y = maker.node("slice", y, starts=(0,) * 4, steps=(1,) * 4, shape=(1, 4, 5, 3))
    elif mover == "transpose":
        y = maker.node("transpose", y, perm=(0, 2, 3, 1))
    else:
        y = maker.node("to_blocked", y, block=8)
    assert groups(maker.graph(y)) == ["resample_relu", mover]


def test_softmax_and_reductions_take_no_weighted_sum() -> None:
    for reader in ("softmax", "reduce_sum"):
        maker = GraphMaker()
        y = resized(maker, maker.input(1, 4, 5, 6), 3, True)
        attributes = {"axis": 1} if reader == "softmax" else {"axes": (3,), "keepdims": False}
        y = maker.node(reader, maker.node("relu", y), **attributes)
        assert groups(maker.graph(y)) == ["resample", f"relu_{reader}"]


def test_turns_share_no_kernel_with_pieces() -> None:
    maker = GraphMaker()
    x, z = maker.input(1, 4, 5, 6), maker.input(1, 3, 5, 6)
    y = maker.node("to_blocked", maker.node("concat", x, z, axis=1), block=8)
    assert groups(maker.graph(y)) == ["concat", "to_blocked"]
    maker = GraphMaker()
    turned = maker.node("transpose", maker.input(6, 4), perm=(1, 0))
    y = maker.node("concat", turned, maker.input(3, 6), axis=0)
    assert groups(maker.graph(y)) == ["transpose", "concat"]
    maker = GraphMaker()
    kept = maker.node("transpose", maker.input(6, 4, 5), perm=(1, 0, 2))
    y = maker.node("concat", kept, maker.input(3, 6, 5), axis=0)
    assert groups(maker.graph(y)) == ["transpose_concat"]


def test_windows_take_no_turn_and_folded_axes_one_of_all_that_is_as_large() -> None:
    maker = GraphMaker()
    turned = maker.node("transpose", maker.input(1, 4, 6, 8), perm=(0, 3, 1, 2))
    pooled = maker.node("average_pool", turned, kernel=(2, 2), strides=(2, 2), shape=(2, 3))
    assert groups(maker.graph(pooled)) == ["transpose", "average_pool"]
    turned = maker.node("transpose", maker.input(1, 4, 6, 8), perm=(0, 3, 1, 2))
    scaled = maker.node("mul", turned, maker.weights(8, 1, 1))
    folded = maker.node("reduce_mean", scaled, axes=(2, 3))
    assert groups(maker.graph(folded))[-1] == "transpose_mul_reduce_mean"
    turned = maker.node("transpose", maker.input(1, 4, 6, 8), perm=(0, 3, 1, 2))
    summed = maker.node("add", turned, maker.input(1, 8, 4, 6))
    folded = maker.node("reduce_mean", summed, axes=(2, 3))
    assert groups(maker.graph(folded))[-2:] == ["transpose", "add_reduce_mean"]
