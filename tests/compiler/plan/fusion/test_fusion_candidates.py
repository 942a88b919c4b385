"""Where kernels can be cut: behind cores, before reductions, in long groups; every cut works."""

from __future__ import annotations

from tests.compiler.graph.graph_helpers import (
    GraphMaker,
    assert_close,
    evaluate_graph,
    evaluate_program,
    random_inputs,
)
from tunefarm.compiler.graph.ir import Graph
from tunefarm.compiler.plan.decisions.graph_plan import GraphPlan
from tunefarm.compiler.plan.fusion.extract_kernels import extract_kernels
from tunefarm.compiler.plan.fusion.fuse import fuse
from tunefarm.compiler.plan.fusion.fusion_candidates import LONG, Cut, Edge, fusion_candidates
from tunefarm.compiler.plan.optimise import optimise


def cuts(graph: Graph) -> list[Cut]:
    """The candidates; each makes one kernel more, and the kernels are right."""
    found = fusion_candidates(graph)
    inputs = random_inputs(graph)
    expected, count = evaluate_graph(graph, inputs), len(fuse(graph))
    for cut in found:
        plan = GraphPlan((cut.decision,))
        assert len(fuse(graph, plan=plan)) > count, cut
        program = extract_kernels(graph, plan=plan)
        assert_close(evaluate_program(program, inputs), expected, tolerance=1e-4)
    return list(found)


def conv(maker: GraphMaker, x: str) -> str:
    return maker.node("conv", x, maker.weights(4, 4, 3, 3), pads=(1,) * 4)


def test_contraction_can_end_before_its_epilogue() -> None:
    maker = GraphMaker()
    x = maker.input(1, 4, 6, 6)
    y = conv(maker, x)
    graph = maker.graph(maker.node("add", maker.node("relu", y), x))
    assert cuts(graph) == [Cut(y, Edge.EPILOGUE, ("conv",), ("relu", "add"), 4 * 4 * 36)]


def test_operand_of_an_epilogue_can_be_computed_before() -> None:
    maker = GraphMaker()
    y = conv(maker, maker.input(1, 4, 6, 6))
    other = maker.node("tanh", maker.input(1, 4, 6, 6))
    found = cuts(maker.graph(maker.node("add", y, other)))
    assert [(cut.value, cut.edge) for cut in found] == [
        (y, Edge.EPILOGUE),
        (other, Edge.OPERAND),
    ]


def test_reduction_can_read_what_was_computed_before() -> None:
    maker = GraphMaker()
    y = maker.node("mul", maker.input(5, 7), maker.input(5, 7))
    z = maker.node("reduce_sum", y, axes=(1,))
    found = cuts(maker.graph(maker.node("sqrt", z)))
    assert [(cut.value, cut.edge) for cut in found] == [
        (y, Edge.PROLOGUE),
        (z, Edge.EPILOGUE),
    ]


def test_long_group_can_be_halved_where_one_value_is_open() -> None:
    maker = GraphMaker()
    y = maker.input(5, 7)
    names = []
    for _ in range(LONG):
        y = maker.node("tanh", y)
        names.append(y)
    found = cuts(maker.graph(y))
    assert [(cut.value, cut.edge) for cut in found] == [(names[LONG // 2 - 1], Edge.POINTWISE)]
    assert found[0].before == found[0].after == ("tanh",) * (LONG // 2)


def test_short_group_and_lone_nodes_have_no_cut() -> None:
    maker = GraphMaker()
    y = maker.node("relu", maker.node("tanh", maker.input(5, 7)))
    assert cuts(maker.graph(y)) == []
    other = GraphMaker()
    assert cuts(other.graph(conv(other, other.input(1, 4, 6, 6)))) == []


def test_cuts_are_named_as_before_layouts() -> None:
    maker = GraphMaker()
    y = maker.input(1, 16, 14, 14)
    names = []
    for _ in range(2):
        names.append(maker.node("conv", y, maker.weights(16, 16, 3, 3), pads=(1,) * 4))
        y = maker.node("relu", names[-1])
    graph = optimise(maker.graph(y), 8)
    known = {node.output for node in maker.nodes}
    assert [cut.value for cut in fusion_candidates(graph, known=known)] == names
    assert fusion_candidates(graph, known=()) == ()


def test_what_is_cut_is_no_candidate_any_more() -> None:
    maker = GraphMaker()
    graph = maker.graph(maker.node("relu", conv(maker, maker.input(1, 4, 6, 6))))
    (cut,) = fusion_candidates(graph)
    assert fusion_candidates(graph, GraphPlan((cut.decision,))) == ()
