from __future__ import annotations

from tests.benchmarks.chains import residual
from tests.compiler.plan.choices.test_estimated_merges import SPACES, heads
from tunefarm.compiler.pipeline import compile_model
from tunefarm.compiler.plan.choices.estimated_plan import estimated_plan
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, Chain, Merged
from tunefarm.compiler.schedule.spaces import SpaceCache
from tunefarm.compiler.target import host_target
from tunefarm.compiler.types.dtypes import DType


def test_merges_and_chains_are_in_one_plan() -> None:
    assert list(estimated_plan(heads(28, 32, 16, 32), SPACES).of(Merged))
    block = residual(112, 16, 96, 32, 2, SPACES.target.lanes(DType.F32))
    assert list(estimated_plan(block.graph, SPACES).of(Chain))


def test_nothing_pays_in_a_small_graph() -> None:
    assert estimated_plan(heads(7, 16, 16), SPACES) == DEFAULT_PLAN


def test_a_build_without_a_plan_has_the_kernels_of_the_estimated_one() -> None:
    graph = heads(12, 16, 16, 24)
    plan = estimated_plan(graph, SpaceCache(host_target()))
    found = compile_model(graph, plan=None).program.kernel_calls()
    assert list(found) == list(compile_model(graph, plan=plan).program.kernel_calls())
