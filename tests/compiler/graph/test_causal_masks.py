"""Masks that hide keys by their number become bounds; what else they hide stays a mask."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_close,
    evaluate_graph,
    random_inputs,
)
from tunefarm.compiler.graph import attention
from tunefarm.compiler.graph.attention import FEWEST_KEYS
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.node import Node
from tunefarm.compiler.types.tensor_type import Array

B, M, N, D = 2, 9, FEWEST_KEYS + 5, 4
LOWEST = float(np.finfo(np.float32).min)
PAST = "x0"  # how many keys are before the first query
Mask = Callable[[GraphMaker], str]


def _keys(maker: GraphMaker) -> str:
    return maker.constant(np.arange(N))


def _last(maker: GraphMaker) -> str:
    """[M, 1]: the last key that each query sees."""
    rows = maker.node("add", maker.constant(np.arange(M)), PAST)
    return maker.node("reshape", rows, shape=(M, 1))


def _hidden(maker: GraphMaker, later: str, low: float = LOWEST) -> str:
    return maker.node("where", later, maker.scalar(low), maker.scalar(0.0))


def compared(maker: GraphMaker) -> str:
    return _hidden(maker, maker.node("greater", _keys(maker), _last(maker)))


def compared_and_inverted(maker: GraphMaker) -> str:
    seen = maker.node("greater_equal", _last(maker), _keys(maker))
    return _hidden(maker, maker.node("not", seen), -np.inf)


def differences(maker: GraphMaker) -> str:
    """Of constants [1, M, N], as caches of fixed length have them."""
    apart = np.arange(N) - np.arange(M)[:, None]
    seen = maker.node("less_equal", maker.constant(apart.reshape(1, M, N)), PAST)
    return maker.node("where", seen, maker.scalar(0.0), maker.scalar(LOWEST))


def multiplied(maker: GraphMaker) -> str:
    """The upper triangle of low numbers times a comparison, as transformers has it."""
    upper = maker.constant(np.triu(np.full((M, N), LOWEST, np.float32), 1))
    later = maker.node("greater", _keys(maker), _last(maker))
    return maker.node("mul", upper, maker.node("cast", later, to="f32"))


def triangle(maker: GraphMaker) -> str:
    """Trilu of ones, dynamic, and then bools of it."""
    later = maker.node("greater", _keys(maker), _last(maker))
    ones = maker.constant(np.ones((M, N), np.int64))
    chosen = maker.node("where", later, ones, maker.constant(np.zeros((), np.int64)))
    return _hidden(maker, maker.node("cast", chosen, to="bool"))


def window(maker: GraphMaker) -> str:
    last = _last(maker)
    first = maker.node("sub", last, maker.constant(np.array(5)))
    early = maker.node("less_equal", _keys(maker), first)
    later = maker.node("greater", _keys(maker), last)
    return _hidden(maker, maker.node("or", early, later))


def constant(maker: GraphMaker) -> str:
    seen = np.tri(M, N, 7, dtype=bool) & ~np.tri(M, N, 1, dtype=bool)
    return maker.constant(np.where(seen, np.float32(0), np.float32(LOWEST)))


WHOLE = (
    compared,
    compared_and_inverted,
    differences,
    multiplied,
    triangle,
    window,
    constant,
)


def _attention(mask: Mask) -> Graph:
    maker = GraphMaker()
    maker.input(1, dtype=DType.I64)
    query, key, value = maker.input(B, M, D), maker.input(B, D, N), maker.input(B, N, D)
    scores = maker.node("matmul", query, key)
    scores = maker.node("add", scores, mask(maker))
    weights = maker.node("softmax", scores, axis=2)
    return maker.graph(maker.node("matmul", weights, value))


def _found(graph: Graph) -> tuple[Graph, Node]:
    result = attention.run(graph)
    (node,) = (node for node in result.nodes if node.operator == "attention")
    return result, node


def _same(graph: Graph, result: Graph, inputs: dict[str, Array]) -> None:
    assert_close(evaluate_graph(result, inputs), evaluate_graph(graph, inputs))


@pytest.mark.parametrize("mask", WHOLE)
def test_a_mask_by_numbers_becomes_bounds(mask: Mask) -> None:
    graph = _attention(mask)
    result, node = _found(graph)
    assert node.attributes["causal"]
    assert len(node.inputs) == 4  # query, key, value and bounds: no mask
    for past in (0, 3, 11, N - M):
        _same(graph, result, {**random_inputs(graph), PAST: np.array([past])})


@pytest.mark.parametrize("mask", [window, constant])
def test_a_window_has_two_bounds(mask: Mask) -> None:
    result, node = _found(_attention(mask))
    assert result.types[node.inputs[-1]].shape == (2,)


def padded(maker: GraphMaker) -> str:
    """A causal mask, and keys that are padding: [B, 1, N] of 0 and 1."""
    given = maker.node("cast", maker.input(B, 1, N, dtype=DType.I64), to="bool")
    return maker.node("where", given, compared(maker), maker.scalar(LOWEST))


def padded_window(maker: GraphMaker) -> str:
    given = maker.node("cast", maker.input(B, 1, N, dtype=DType.I64), to="bool")
    return maker.node("where", given, window(maker), maker.scalar(LOWEST))


@pytest.mark.parametrize("mask", [padded, padded_window])
@pytest.mark.parametrize("hidden", [0, 4, N])
def test_queries_that_see_no_key_weigh_all_of_them_alike(mask: Mask, hidden: int) -> None:
    graph = _attention(mask)
    result, node = _found(graph)
    assert node.attributes["causal"]
    assert len(node.inputs) == 5
    given = np.ones((B, 1, N), np.int64)
    given[1, :, :hidden] = 0
    inputs = {**random_inputs(graph), PAST: np.array([2]), graph.inputs[-1]: given}
    _same(graph, result, inputs)


def test_rows_of_a_batch_have_ends_of_their_own() -> None:
    def own(maker: GraphMaker) -> str:
        past = maker.node("reshape", maker.input(B, dtype=DType.I64), shape=(B, 1, 1))
        rows = maker.constant(np.arange(M).reshape(M, 1))
        later = maker.node("greater", _keys(maker), maker.node("add", past, rows))
        return _hidden(maker, later)

    graph = _attention(own)
    result, node = _found(graph)
    assert len(node.inputs) == 5
    inputs = {**random_inputs(graph), graph.inputs[-1]: np.array([3, 17])}
    _same(graph, result, inputs)


def small_numbers(maker: GraphMaker) -> str:
    """-1e4 hides nothing for sure: a score may be as low."""
    return _hidden(maker, maker.node("greater", _keys(maker), _last(maker)), -1e4)


def twice_as_steep(maker: GraphMaker) -> str:
    return _hidden(maker, maker.node("greater", maker.constant(2 * np.arange(N)), _last(maker)))


def given_by_the_caller(maker: GraphMaker) -> str:
    return _hidden(maker, maker.input(M, N, dtype=DType.BOOL))


def no_triangle(maker: GraphMaker) -> str:
    seen = np.ones((M, N), bool)
    seen[2, 3] = False
    return maker.constant(np.where(seen, np.float32(0), np.float32(LOWEST)))


@pytest.mark.parametrize("mask", [small_numbers, twice_as_steep, given_by_the_caller, no_triangle])
def test_other_masks_stay_as_they_are(mask: Mask) -> None:
    graph = _attention(mask)
    result, node = _found(graph)
    assert "causal" not in node.attributes
    assert len(node.inputs) == 4
    _same(graph, result, {**random_inputs(graph), PAST: np.array([2])})


def test_few_keys_keep_their_mask() -> None:
    maker = GraphMaker()
    query, key = maker.input(M, D), maker.input(D, FEWEST_KEYS - 1)
    mask = maker.constant(np.triu(np.full((M, FEWEST_KEYS - 1), LOWEST, np.float32), 1))
    scores = maker.node("add", maker.node("matmul", query, key), mask)
    weights = maker.node("softmax", scores, axis=1)
    small = maker.graph(maker.node("matmul", weights, maker.input(FEWEST_KEYS - 1, D)))
    _, node = _found(small)
    assert "causal" not in node.attributes
