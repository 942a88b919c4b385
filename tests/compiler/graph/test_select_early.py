"""Selected rows are computed alone, and mean the same."""

from __future__ import annotations

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
from tunefarm.compiler.graph import select_early
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.graph.verify import verify_graph
from tunefarm.compiler.types.dtypes import DType

_ROWS, _FEATURES = 6, 4


def _block(maker: GraphMaker, x: str) -> str:
    """A residual block behind a norm: two readers of its input."""
    norm = maker.node("layer_norm", x, maker.weights(_FEATURES), axis=2)
    inner = maker.node("gelu", maker.node("matmul", norm, maker.weights(_FEATURES, 9)))
    outer = maker.node("matmul", inner, maker.weights(9, _FEATURES))
    return maker.node("add", outer, x)


def _row(maker: GraphMaker, x: str, row: int) -> str:
    shape = list(maker.types[x].shape)
    starts = (0, row, 0)
    return maker.node("slice", x, shape=(shape[0], 1, shape[2]), starts=starts, steps=(1, 1, 1))


def _shapes(graph: Graph, operator: str) -> list[tuple[int, ...]]:
    return [graph.types[node.output].shape for node in graph.nodes if node.operator == operator]


def test_a_row_is_selected_before_the_blocks_that_make_it() -> None:
    maker = GraphMaker()
    x = maker.input(2, _ROWS, _FEATURES)
    graph = maker.graph(_row(maker, _block(maker, _block(maker, x)), 3))
    early = select_early.run(graph)
    assert operators(early)[0] == "slice" and operators(early).count("slice") == 1
    assert _shapes(early, "matmul") == [(2, 1, 9), (2, 1, _FEATURES)] * 2
    assert_same_meaning(graph, early)


def test_attention_computes_the_selected_query() -> None:
    maker = GraphMaker()
    x = maker.input(2, _ROWS, _FEATURES)
    query = maker.node("matmul", x, maker.weights(_FEATURES, _FEATURES))
    scores = maker.node("matmul", query, x, transpose_b=True)
    mixed = maker.node("matmul", maker.node("softmax", scores, axis=2), x)
    graph = maker.graph(_row(maker, mixed, 0))
    early = select_early.run(graph)
    assert _shapes(early, "matmul") == [(2, 1, _FEATURES), (2, 1, _ROWS), (2, 1, _FEATURES)]
    assert_same_meaning(graph, early)


@pytest.mark.parametrize("other", ["all", "another row", "output"])
def test_what_somebody_else_reads_is_computed_whole(other: str) -> None:
    maker = GraphMaker()
    made = _block(maker, maker.input(1, _ROWS, _FEATURES))
    outputs = [_row(maker, made, 0)]
    if other == "all":
        outputs.append(maker.node("relu", made))
    elif other == "another row":
        outputs.append(_row(maker, made, 1))
    else:
        outputs.append(made)
    graph = maker.graph(*outputs)
    assert select_early.run(graph) == graph


def test_rows_that_depend_on_each_other_stay() -> None:
    maker = GraphMaker()
    made = _block(maker, maker.input(1, _ROWS, _FEATURES))
    graph = maker.graph(_row(maker, maker.node("softmax", made, axis=1), 0))
    assert select_early.run(graph) == graph


def test_nothing_moves_where_no_product_becomes_smaller() -> None:
    maker = GraphMaker()
    graph = maker.graph(_row(maker, maker.node("relu", maker.input(1, _ROWS, _FEATURES)), 0))
    assert select_early.run(graph) == graph


@pytest.mark.parametrize("is_known", [True, False])
def test_places_that_a_run_computes_stay_behind_what_computes_them(is_known: bool) -> None:
    maker = GraphMaker()
    x, last = maker.input(1, _ROWS, _FEATURES), maker.input(2, dtype=DType.I64)
    made = _block(maker, x)
    sizes = last if is_known else maker.node("add", last, maker.constant(np.array([1, 1])))
    chosen = maker.node("shift", made, sizes, axis=1, start=0, end=1, extent=1)
    graph = maker.graph(chosen)
    early = select_early.run(graph)
    assert (operators(early)[0] == "shift") == is_known
    assert (early == graph) != is_known


@pytest.mark.parametrize("bounds", [[1], [1, -2]])
@pytest.mark.parametrize("by_sizes", [True, False])
def test_bounds_of_keys_move_with_the_queries(bounds: list[int], by_sizes: bool) -> None:
    maker = GraphMaker()
    x, last = maker.input(2, _ROWS, _FEATURES), maker.input(2, dtype=DType.I64)
    query = maker.node("matmul", x, maker.weights(_FEATURES, _FEATURES))
    mixed = maker.node("attention", query, x, x, maker.constant(np.array(bounds)), causal=True)
    two = (
        maker.node("shift", mixed, last, axis=1, start=0, end=1, extent=2)
        if by_sizes
        else maker.node("slice", mixed, shape=(2, 2, _FEATURES), starts=(0, 3, 0), steps=(1, 1, 1))
    )
    graph = maker.graph(two)
    early = select_early.run(graph)
    assert _shapes(early, "attention") == _shapes(early, "matmul") == [(2, 2, _FEATURES)]
    inputs = {**random_inputs(graph), last: np.array([3, _ROWS])}
    verify_graph(early)
    assert_close(evaluate_graph(early, inputs), evaluate_graph(graph, inputs))
