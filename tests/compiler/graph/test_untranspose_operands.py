from __future__ import annotations

import pytest

from compiler.graph import untranspose_operands
from compiler.kernels.kernel import KernelCall
from compiler.plan.extract_kernels import extract_kernels
from compiler.plan.optimise import optimise
from tests.compiler.graph.graph_helpers import GraphMaker, assert_same_meaning, operators


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_a_computed_operand_is_turned_on_its_own(batch: tuple[int, ...]) -> None:
    maker = GraphMaker()
    x, y = maker.input(*batch, 5, 7), maker.input(*batch, 9, 7)
    graph = maker.graph(maker.node("matmul", x, y, transpose_b=True))
    plain = untranspose_operands.run(graph)
    assert operators(plain) == ["transpose", "matmul"]
    assert plain.nodes[1].attributes["transpose_b"] is False
    assert_same_meaning(graph, plain)
    assert untranspose_operands.run(plain) == plain


def test_a_constant_operand_and_a_plain_one_stay() -> None:
    maker = GraphMaker()
    x, y = maker.input(5, 7), maker.input(5, 9)
    product = maker.node("matmul", x, maker.weights(5, 7), transpose_b=True)
    graph = maker.graph(maker.node("matmul", product, y))
    assert untranspose_operands.run(graph) == graph


def test_the_turned_operand_is_a_kernel_of_its_own() -> None:
    maker = GraphMaker()
    x, y = maker.input(5, 7), maker.input(9, 7)
    graph = maker.graph(maker.node("matmul", x, maker.node("relu", y), transpose_b=True))
    calls = extract_kernels(optimise(graph, 8)).calls
    kernels = [call.kernel for call in calls if isinstance(call, KernelCall)]
    assert [kernel.name for kernel in kernels] == ["relu_transpose", "matmul"]
