"""Attention that is spelled out becomes one operator, and means the same."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_close,
    assert_same_meaning,
    evaluate_graph,
    operators,
    random_inputs,
)
from tunefarm.compiler.graph import attention, fold_constants, infer_types
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.types.dtypes import DType

B, H, M, N, D, V = 2, 3, 5, 7, 4, 6
SWAP = (0, 1, 3, 2)
HEADS = (0, 2, 1, 3)  # [batch, position, head, feature] as a stack of matrices, and back


def _scores(maker: GraphMaker) -> str:
    query, key = maker.input(B, H, M, D), maker.input(B, H, N, D)
    return maker.node("matmul", query, maker.node("transpose", key, perm=SWAP))


def _weighted(maker: GraphMaker, scores: str, axis: int = 3) -> str:
    weights = maker.node("softmax", scores, axis=axis)
    return maker.node("matmul", weights, maker.input(B, H, N, V))


def plain(maker: GraphMaker) -> str:
    return _weighted(maker, _scores(maker))


def scaled_scores(maker: GraphMaker) -> str:
    return _weighted(maker, maker.node("mul", maker.scalar(0.3), _scores(maker)))


def divided_scores(maker: GraphMaker) -> str:
    return _weighted(maker, maker.node("div", _scores(maker), maker.scalar(math.sqrt(3))))


def added_mask(maker: GraphMaker) -> str:
    scaled = maker.node("mul", _scores(maker), maker.scalar(0.3))
    return _weighted(maker, maker.node("add", scaled, maker.input(B, 1, M, N)))


def bias_and_mask(maker: GraphMaker) -> str:
    biased = maker.node("add", maker.input(H, M, N), _scores(maker))
    return _weighted(maker, maker.node("add", biased, maker.input(B, 1, 1, N)))


def chosen_scores(maker: GraphMaker) -> str:
    mask, low = maker.input(1, 1, M, N, dtype=DType.BOOL), maker.scalar(-1e9)
    return _weighted(maker, maker.node("where", mask, _scores(maker), low))


def chosen_number(maker: GraphMaker) -> str:
    mask, low = maker.input(M, N, dtype=DType.BOOL), maker.scalar(-math.inf)
    return _weighted(maker, maker.node("where", mask, low, _scores(maker)))


def scaled_on_both_sides(maker: GraphMaker) -> str:
    """As torch exports it: the root of the scale on query and key, whose stack is made flat."""
    root = maker.scalar(0.6)
    query = maker.node("mul", maker.input(B, H, M, D), root)
    flat = maker.node("reshape", maker.input(B, H, N, D), shape=(B * H, N, D))
    turned = maker.node("transpose", flat, perm=(0, 2, 1))
    key = maker.node("mul", maker.node("reshape", turned, shape=(B, H, D, N)), root)
    scores = maker.node("matmul", query, key)
    return _weighted(maker, maker.node("add", scores, maker.input(1, 1, M, N)))


def soft_cap(maker: GraphMaker) -> str:
    scaled = maker.node("mul", _scores(maker), maker.scalar(0.3))
    small = maker.node("div", scaled, maker.scalar(2.0))
    capped = maker.node("mul", maker.node("tanh", small), maker.scalar(2.0))
    return _weighted(maker, maker.node("add", capped, maker.input(B, 1, M, N)))


def soft_cap_with_a_scale_behind(maker: GraphMaker) -> str:
    capped = maker.node("mul", maker.scalar(3.0), maker.node("tanh", _scores(maker)))
    return _weighted(maker, maker.node("div", capped, maker.scalar(2.0)))


def sink_as_the_last_column(maker: GraphMaker) -> str:
    sink = maker.node("expand", maker.input(H, 1, 1), shape=(B, H, M, 1))
    masked = maker.node("add", _scores(maker), maker.input(B, 1, M, N))
    weights = maker.node("softmax", maker.node("concat", masked, sink, axis=3), axis=3)
    return _without_the_sink(maker, weights, 0)


def sink_as_the_first_column(maker: GraphMaker) -> str:
    joined = maker.node("concat", maker.input(B, H, M, 1), _scores(maker), axis=3)
    return _without_the_sink(maker, maker.node("softmax", joined, axis=3), 1)


def _without_the_sink(maker: GraphMaker, weights: str, start: int) -> str:
    part = {"shape": (B, H, M, N), "starts": (0, 0, 0, start), "steps": (1, 1, 1, 1)}
    return maker.node("matmul", maker.node("slice", weights, **part), maker.input(B, H, N, V))


def heads_of_projections(maker: GraphMaker) -> str:
    """All operands as [batch, position, head, feature], the result back to that order."""
    shapes = ((M, D), (N, D), (N, V))
    perms = (HEADS, (0, 2, 3, 1), HEADS)
    query, key, value = (
        maker.node("transpose", maker.input(B, rows, H, features), perm=perm)
        for (rows, features), perm in zip(shapes, perms, strict=True)
    )
    scores = maker.node("mul", maker.node("matmul", query, key), maker.scalar(0.5))
    product = maker.node("matmul", maker.node("softmax", scores, axis=3), value)
    return maker.node("transpose", product, perm=HEADS)


def transposed_operand(maker: GraphMaker) -> str:
    query, key = maker.input(B, H, M, D), maker.input(B, H, N, D)
    return _weighted(maker, maker.node("matmul", query, key, transpose_b=True))


def keys_by_feature(maker: GraphMaker) -> str:
    return _weighted(maker, maker.node("matmul", maker.input(B, H, M, D), maker.input(B, H, D, N)))


def one_stack(maker: GraphMaker) -> str:
    key = maker.node("transpose", maker.input(N, D), perm=(1, 0))
    scores = maker.node("matmul", maker.input(M, D), key)
    return maker.node("matmul", maker.node("softmax", scores, axis=1), maker.input(N, V))


def broadcast_stack(maker: GraphMaker) -> str:
    key = maker.node("transpose", maker.input(B, 1, N, D), perm=SWAP)
    scores = maker.node("matmul", maker.input(B, H, M, D), key)
    return maker.node("matmul", maker.node("softmax", scores, axis=3), maker.input(B, 1, N, V))


def guarded_rows(maker: GraphMaker) -> str:
    """As ONNX's operator is expanded: rows without a key are zeros, not undefined."""
    mask, zero = maker.input(M, N), maker.scalar(0.0)
    biased = maker.node("add", _scores(maker), mask)
    weights = maker.node("softmax", biased, axis=3)
    empty = maker.node("equal", maker.node("reduce_max", mask, axes=(1,)), maker.scalar(-math.inf))
    whole = maker.node("where", empty, zero, weights)
    return maker.node("transpose", maker.node("matmul", whole, maker.input(B, H, N, V)), perm=HEADS)


def zeroed_weights(maker: GraphMaker) -> str:
    """As torch exports it: weights that are no numbers are zeros."""
    biased = maker.node("add", _scores(maker), maker.input(M, N))
    weights = maker.node("softmax", biased, axis=3)
    whole = maker.node("where", maker.node("isnan", weights), maker.scalar(0.0), weights)
    return maker.node("matmul", whole, maker.input(B, H, N, V))


def kept_weights(maker: GraphMaker) -> str:
    biased = maker.node("add", _scores(maker), maker.input(M, N))
    weights = maker.node("softmax", biased, axis=3)
    number = maker.node("not", maker.node("isnan", weights))
    whole = maker.node("where", number, weights, maker.scalar(0.0))
    return maker.node("matmul", whole, maker.input(B, H, N, V))


def guarded_by_no_row(maker: GraphMaker) -> str:
    weights = maker.node("softmax", _scores(maker), axis=3)
    never, zero = maker.constant(np.zeros((M, 1), np.bool_)), maker.scalar(0.0)
    whole = maker.node("where", never, zero, weights)
    return maker.node("matmul", whole, maker.input(B, H, N, V))


def shared_heads(maker: GraphMaker) -> str:
    return _shared_heads(maker, M)


def shared_heads_of_one_query(maker: GraphMaker) -> str:
    return _shared_heads(maker, 1)


def _shared_heads(maker: GraphMaker, queries: int) -> str:
    """Two groups of three heads that share their keys and values, which are repeated for them."""
    groups, members = 2, 3

    def repeated(features: int) -> str:
        one = maker.node(
            "reshape", maker.input(B, groups, N, features), shape=(B, groups, 1, N, features)
        )
        wide = maker.node("expand", one, shape=(B, groups, members, N, features))
        return maker.node("reshape", wide, shape=(B, groups * members, N, features))

    query = maker.node("transpose", maker.input(B, queries, groups * members, D), perm=HEADS)
    key = maker.node("transpose", repeated(D), perm=SWAP)
    scores = maker.node("add", maker.node("matmul", query, key), maker.input(B, 1, queries, N))
    biased = maker.node("add", scores, maker.input(groups * members, 1, N))
    product = maker.node("matmul", maker.node("softmax", biased, axis=3), repeated(V))
    return maker.node("transpose", product, perm=HEADS)


SPELLINGS = (
    plain,
    scaled_scores,
    divided_scores,
    added_mask,
    bias_and_mask,
    chosen_scores,
    chosen_number,
    scaled_on_both_sides,
    soft_cap,
    soft_cap_with_a_scale_behind,
    sink_as_the_last_column,
    sink_as_the_first_column,
    heads_of_projections,
    transposed_operand,
    keys_by_feature,
    one_stack,
    broadcast_stack,
    guarded_rows,
    guarded_by_no_row,
    zeroed_weights,
    kept_weights,
    shared_heads,
    shared_heads_of_one_query,
)
OTHERS = {"reshape", "not", "reduce_max", "equal", "transpose", "where"}


def _fused(graph: Graph) -> Graph:
    return attention.run(fold_constants.run(infer_types.run(graph), ResourceBudget()))


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda spelling: spelling.__name__)
def test_spelled_out_attention_is_one_operator(
    spelling: Callable[[GraphMaker], str],
) -> None:
    maker = GraphMaker()
    graph = maker.graph(spelling(maker))
    fused = _fused(graph)
    assert [name for name in operators(fused) if name not in OTHERS] == ["attention"]
    assert_same_meaning(graph, fused)


def scores_are_an_output(maker: GraphMaker) -> tuple[str, ...]:
    scores = _scores(maker)
    return _weighted(maker, scores), scores


def weights_are_read_twice(maker: GraphMaker) -> tuple[str, ...]:
    weights = maker.node("softmax", _scores(maker), axis=3)
    product = maker.node("matmul", weights, maker.input(B, H, N, V))
    return product, maker.node("relu", weights)


def softmax_over_queries(maker: GraphMaker) -> tuple[str, ...]:
    return (_weighted(maker, _scores(maker), axis=2),)


def scaled_after_the_mask(maker: GraphMaker) -> tuple[str, ...]:
    masked = maker.node("add", _scores(maker), maker.input(M, N))
    return (_weighted(maker, maker.node("mul", masked, maker.scalar(0.3))),)


def factor_of_each_feature(maker: GraphMaker) -> tuple[str, ...]:
    scores = maker.node("mul", _scores(maker), maker.input(M, N))
    return (_weighted(maker, scores),)


def chosen_between_scores(maker: GraphMaker) -> tuple[str, ...]:
    mask = maker.input(M, N, dtype=DType.BOOL)
    return (_weighted(maker, maker.node("where", mask, _scores(maker), maker.input(M, N))),)


def weights_of_another_number(maker: GraphMaker) -> tuple[str, ...]:
    weights = maker.node("softmax", _scores(maker), axis=3)
    whole = maker.node("where", maker.node("isnan", weights), maker.scalar(1.0), weights)
    return (maker.node("matmul", whole, maker.input(B, H, N, V)),)


def zeroed_where_scores_are_no_numbers(maker: GraphMaker) -> tuple[str, ...]:
    scores = _scores(maker)
    weights = maker.node("softmax", scores, axis=3)
    whole = maker.node("where", maker.node("isnan", scores), maker.scalar(0.0), weights)
    return (maker.node("matmul", whole, maker.input(B, H, N, V)),)


def capped_twice(maker: GraphMaker) -> tuple[str, ...]:
    once = maker.node("mul", maker.node("tanh", _scores(maker)), maker.scalar(3.0))
    twice = maker.node("mul", maker.node("tanh", once), maker.scalar(3.0))
    return (_weighted(maker, twice),)


def capped_after_the_mask(maker: GraphMaker) -> tuple[str, ...]:
    masked = maker.node("add", _scores(maker), maker.input(M, N))
    capped = maker.node("mul", maker.node("tanh", masked), maker.scalar(3.0))
    return (_weighted(maker, capped),)


def capped_by_a_negative_number(maker: GraphMaker) -> tuple[str, ...]:
    capped = maker.node("mul", maker.node("tanh", _scores(maker)), maker.scalar(-3.0))
    return (_weighted(maker, capped),)


def sink_instead_of_a_key(maker: GraphMaker) -> tuple[str, ...]:
    sink = maker.input(B, H, M, 1)
    weights = maker.node("softmax", maker.node("concat", _scores(maker), sink, axis=3), axis=3)
    return (_without_the_sink(maker, weights, 1),)


def two_sinks(maker: GraphMaker) -> tuple[str, ...]:
    sinks = maker.input(B, H, M, 2)
    weights = maker.node("softmax", maker.node("concat", _scores(maker), sinks, axis=3), axis=3)
    return (_without_the_sink(maker, weights, 0),)


NEIGHBOURS = (
    sink_instead_of_a_key,
    two_sinks,
    capped_twice,
    capped_after_the_mask,
    capped_by_a_negative_number,
    weights_of_another_number,
    zeroed_where_scores_are_no_numbers,
    scores_are_an_output,
    weights_are_read_twice,
    softmax_over_queries,
    scaled_after_the_mask,
    factor_of_each_feature,
    chosen_between_scores,
)


@pytest.mark.parametrize("neighbour", NEIGHBOURS, ids=lambda neighbour: neighbour.__name__)
def test_neighbours_of_attention_stay(
    neighbour: Callable[[GraphMaker], tuple[str, ...]],
) -> None:
    maker = GraphMaker()
    graph = maker.graph(*neighbour(maker))
    assert "attention" not in operators(_fused(graph))


def test_a_step_of_a_decoder_stays_two_products() -> None:
    maker = GraphMaker()
    key = maker.node("transpose", maker.input(B, H, N, D), perm=SWAP)
    scores = maker.node("matmul", maker.input(B, H, 1, D), key)
    weights = maker.node("softmax", scores, axis=3)
    graph = maker.graph(maker.node("matmul", weights, maker.input(B, H, N, V)))
    assert _fused(graph) == infer_types.run(graph)


def test_a_row_without_a_key_is_undefined_as_in_the_spelled_out_form() -> None:
    maker = GraphMaker()
    scores = maker.node("add", _scores(maker), maker.input(M, N))
    graph = maker.graph(_weighted(maker, scores))
    inputs = random_inputs(graph)
    mask = np.zeros((M, N), np.float32)
    mask[1], mask[2, 3:] = -np.inf, -np.inf
    inputs["x2"] = mask
    (expected,), (found,) = (evaluate_graph(g, inputs) for g in (graph, _fused(graph)))
    assert np.isnan(expected[:, :, 1]).all()
    assert_close([found[:, :, [0, 2, 3, 4]]], [expected[:, :, [0, 2, 3, 4]]])
    assert np.isnan(found[:, :, 1]).all()


@pytest.mark.parametrize(
    ("spelling", "mask_name"),
    [(guarded_rows, "x0"), (zeroed_weights, "x2"), (kept_weights, "x2")],
    ids=["guarded", "zeroed", "kept"],
)
def test_a_row_without_a_key_is_zero_where_the_model_says_so(
    spelling: Callable[[GraphMaker], str], mask_name: str
) -> None:
    maker = GraphMaker()
    graph = maker.graph(spelling(maker))
    inputs = random_inputs(graph)
    mask = np.zeros((M, N), np.float32)
    mask[1] = -np.inf
    inputs[mask_name] = mask
    (expected,), (found,) = (evaluate_graph(g, inputs) for g in (graph, _fused(graph)))
    row = (slice(None), 1) if spelling is guarded_rows else (slice(None), slice(None), 1)
    assert not expected[row].any()
    assert_close([found], [expected])


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_attention_in_16_bits_is_computed_in_f32(dtype: DType) -> None:
    graph = _half(dtype)
    after = attention.run(graph)
    assert operators(after).count("attention") == 1
    inputs = random_inputs(graph)
    (found,), (expected,) = (evaluate_graph(each, inputs) for each in (after, graph))
    wide = expected.astype(np.float32)
    assert_close([found.astype(np.float32)], [wide], tolerance=8 * dtype.epsilon)
    node = next(node for node in after.nodes if node.operator == "attention")
    assert after.types[node.output].dtype is DType.F32


def test_attention_stays_in_a_type_whose_products_are_summed() -> None:
    graph = _half(DType.BF16)
    assert attention.run(graph, summed=(DType.BF16,)) == graph
    assert attention.run(graph, rounds_each=True) == graph


def test_attention_that_tiles_hold_multiplies_narrow_operands() -> None:
    """They are the model's own; masks are widened, and so is the result before it is rounded."""
    bf16, size = DType.BF16, {"queries": 20, "keys": 24, "features": 16, "columns": 32}
    graph = _half(bf16, **size)
    after = attention.run(graph, summed=(bf16,), tiled=(bf16,))
    (node,) = (node for node in after.nodes if node.operator == "attention")
    assert [after.types[name].dtype for name in node.inputs] == [bf16] * 3 + [DType.F32]
    assert after.types[node.output].dtype is DType.F32
    inputs = random_inputs(graph)
    (found,), (expected,) = (evaluate_graph(each, inputs) for each in (after, graph))
    wide = expected.astype(np.float32)
    assert_close([found.astype(np.float32)], [wide], tolerance=8 * bf16.epsilon)
    for others in ({"queries": 8}, {"features": 12}):
        few = _half(bf16, **(size | others))
        assert attention.run(few, summed=(bf16,), tiled=(bf16,)) == few
    assert attention.run(graph, rounds_each=True, tiled=(bf16,)) == graph


def _half(
    dtype: DType, queries: int = M, keys: int = N, features: int = D, columns: int = V
) -> Graph:
    """With a mask, and with the softmax in f32."""
    maker = GraphMaker()
    query = maker.input(B, H, queries, features, dtype=dtype)
    key = maker.input(B, H, keys, features, dtype=dtype)
    scores = maker.node("matmul", query, maker.node("transpose", key, perm=SWAP))
    scale = maker.constant(np.array(0.25, dtype.numpy))
    masked = maker.node(
        "add", maker.node("mul", scores, scale), maker.input(B, 1, 1, keys, dtype=dtype)
    )
    softmax = maker.node("softmax", maker.node("cast", masked, to="f32"), axis=3)
    weights = maker.node("cast", softmax, to=str(dtype))
    value = maker.input(B, H, keys, columns, dtype=dtype)
    return maker.graph(maker.node("matmul", weights, value))
