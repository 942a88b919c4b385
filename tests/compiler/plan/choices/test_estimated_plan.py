from __future__ import annotations

from tests.benchmarks.chains import residual
from tests.compiler.graph.graph_helpers import GraphMaker
from tests.targets import target_named
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan.choices.estimated_plan import estimated_plan
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, Chain
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType

SPACES = SpaceCache(target_named("sapphirerapids"))


def test_chains_that_pay_are_in_the_plan() -> None:
    block = residual(112, 16, 96, 32, 2, SPACES.target.lanes(DType.F32))
    assert list(estimated_plan(block.graph, SPACES).of(Chain))


def test_nothing_pays_in_a_small_graph() -> None:
    maker = GraphMaker()
    x = maker.input(1, 16, 7, 7)
    graph = maker.graph(maker.node("conv", x, maker.weights(16, 16, 3, 3), pads=(1,) * 4))
    assert estimated_plan(graph, SPACES) == DEFAULT_PLAN


def test_a_build_without_a_plan_has_the_kernels_of_the_estimated_one() -> None:
    target = host_target()
    graph = residual(14, 16, 96, 32, 2, target.lanes(DType.F32)).graph
    plan = estimated_plan(graph, SpaceCache(target))
    found = compile_model(graph, plan=None).program.kernel_calls()
    assert list(found) == list(compile_model(graph, plan=plan).program.kernel_calls())
