from __future__ import annotations

import pytest

from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators
from tunefarm.compiler.graph import turned_operands


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("flag", [False, True])
def test_a_turned_operand_is_read_as_it_lies(batch: tuple[int, ...], flag: bool) -> None:
    maker = GraphMaker()
    rank = len(batch) + 2
    perm = (*range(rank - 2), rank - 1, rank - 2)
    x, y = maker.input(*batch, 7, 5), maker.input(*batch, *((7, 9) if flag else (9, 7)))
    left = maker.node("transpose", x, perm=perm)
    right = maker.node("transpose", y, perm=perm)
    graph = maker.graph(maker.node("matmul", left, right, transpose_b=flag))
    read = turned_operands.run(graph)
    product = read.nodes[-1]
    assert product.inputs == (x, y)
    assert product.attributes == {"transpose_a": True, "transpose_b": not flag}
    assert_same_meaning(graph, read)
    assert turned_operands.run(read) == read


def test_one_column_is_read_as_a_row() -> None:
    maker = GraphMaker()
    graph = maker.graph(maker.node("matmul", maker.input(3, 5, 7), maker.input(7, 1)))
    read = turned_operands.run(graph)
    assert operators(read) == ["reshape", "matmul"]
    assert read.nodes[-1].attributes["transpose_b"] is True
    assert_same_meaning(graph, read)


def test_transposes_of_other_axes_stay() -> None:
    maker = GraphMaker()
    x, y = maker.input(2, 3, 5), maker.input(5, 2, 7)
    turned = maker.node("transpose", y, perm=(1, 0, 2))
    graph = maker.graph(maker.node("matmul", x, turned))
    assert turned_operands.run(graph) == graph
