"""What a decision costs is the kernels that come with it, against those that go."""

from __future__ import annotations

from tests.compiler.plan.choices.test_graph_sites import branches
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.choices.plan_costs import PlanCosts
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan, Merged
from tunefarm.compiler.target import host_target

MERGED = Merged(("conv_0", "conv_1"))


def by_stages(kernel: FusedKernel) -> float:
    """A second for the kernel and one for each of its stages."""
    return 1.0 + len(kernel.stages)


def test_a_merge_costs_its_kernels_against_those_apart() -> None:
    costs = PlanCosts(branches(), host_target(), by_stages)
    apart, merged = costs.differing(DEFAULT_PLAN, MERGED)
    assert apart != merged
    total, other = costs.total(DEFAULT_PLAN), costs.total(GraphPlan((MERGED,)))
    assert other - total == merged - apart


def test_each_kernel_is_asked_about_once() -> None:
    asked: list[str] = []

    def cost(kernel: FusedKernel) -> float:
        asked.append(repr(kernel))
        return by_stages(kernel)

    costs = PlanCosts(branches(), host_target(), cost)
    for _ in range(2):
        costs.differing(DEFAULT_PLAN, MERGED)
        costs.total(DEFAULT_PLAN)
    assert len(asked) == len(set(asked))
