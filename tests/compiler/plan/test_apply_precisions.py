"""A plan applied to a model: its graph, its numerics, and that it is the same every time."""

from __future__ import annotations

import numpy as np

from tests.compiler.graph.graph_helpers import GraphMaker, evaluate_graph, random_inputs
from tests.compiler.plan.precision.test_quantise import calibration, residual
from tunefarm.compiler.graph.serialize import structurally_equal
from tunefarm.compiler.limits import ResourceBudget
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan.apply_precisions import apply_precisions, prepare
from tunefarm.compiler.plan.precision.contractions import contractions
from tunefarm.compiler.runtime.execution.executable import Executable
from tunefarm.compiler.types.dtypes import DType
from tunefarm.compiler.types.precision import Precision, PrecisionPlan


def plan_of(*kinds: Precision) -> PrecisionPlan:
    """A plan for the contractions of `residual`, in order."""
    found = contractions(prepare(residual()))
    precisions = {item.identity: kind for item, kind in zip(found, kinds, strict=True)}
    return PrecisionPlan(precisions, calibration(prepare(residual())))


def test_every_contraction_has_a_source_of_its_own() -> None:
    maker = GraphMaker()
    x = maker.input(4, 4)
    for _ in range(3):
        x = maker.node("tanh", maker.node("matmul", x, maker.weights(4, 4)))
    graph = maker.graph(x)
    same = tuple(
        type(node)(node.operator, node.inputs, node.output, node.attributes, "layer")
        for node in graph.nodes
    )
    prepared = prepare(
        type(graph)("g", graph.inputs, graph.outputs, same, graph.types, graph.constants)
    )
    sources = [item.source for item in contractions(prepared)]
    assert sources == ["layer", "layer#2", "layer#3"]


def test_f32_changes_nothing() -> None:
    prepared = prepare(residual())
    graph, numerics = apply_precisions(prepared, PrecisionPlan())
    assert graph is prepared
    assert numerics.contractions == ()


def test_each_contraction_is_compiled_in_its_precision() -> None:
    prepared = prepare(residual())
    plan = plan_of(Precision.F32, Precision.INT8, Precision.BF16)
    graph, numerics = apply_precisions(prepared, plan)
    compiled = compile_model(graph, numerics=numerics)
    kinds = [
        compiled.graph.types[node.inputs[0]].dtype
        for node in compiled.graph.nodes
        if node.operator in ("conv", "matmul")
    ]
    assert kinds[0] is DType.F32
    assert kinds[1] in (DType.U8, DType.I8)
    assert kinds[2] is DType.BF16
    inputs = random_inputs(residual())
    (expected,) = evaluate_graph(residual(), inputs)
    (actual,) = Executable(compiled.spec).run(inputs).values()
    assert 0 < np.abs(actual - expected).max() < 0.03 * np.abs(expected).max()


def test_a_plan_that_went_through_json_makes_the_same_graph() -> None:
    plan = plan_of(Precision.INT8, Precision.INT8, Precision.BF16)
    again = PrecisionPlan.from_json(plan.to_json())
    assert again.digest == plan.digest
    first, second = (apply_precisions(prepare(residual()), item) for item in (plan, again))
    assert structurally_equal(first[0], second[0])
    assert first[1] == second[1]


def test_a_quantised_graph_is_the_same_after_the_passes_ran_again() -> None:
    graph, _ = apply_precisions(prepare(residual()), plan_of(*[Precision.INT8] * 3))
    inputs = random_inputs(graph)
    again = prepare(graph, ResourceBudget())
    (expected,), (actual,) = evaluate_graph(graph, inputs), evaluate_graph(again, inputs)
    assert (
        np.abs(np.subtract(actual, expected)).max() <= 0.01 * np.abs(expected).max()
    )  # a step of 8 bits
