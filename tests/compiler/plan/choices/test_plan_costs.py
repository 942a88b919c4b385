"""What a decision costs is the kernels that come with it, against those that go."""

from __future__ import annotations

from tests.compiler.plan.choices.test_graph_sites import branches
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.choices.plan_costs import Cost, PlanCosts
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan, Merged
from tunefarm.compiler.target import host_target

MERGED = Merged(("matmul_0", "matmul_1"))


def by_stages(kernel: FusedKernel) -> Cost:
    """A second for the kernel and one for each of its stages, measured where it has a sum."""
    seconds = 1.0 + len(kernel.stages)
    return Cost(seconds, seconds if "matmul" in kernel.name else 0.0)


def test_a_merge_costs_its_kernels_against_those_apart() -> None:
    costs = PlanCosts(branches(), host_target(), by_stages)
    apart, merged = costs.differing(DEFAULT_PLAN, MERGED)
    assert apart is not None and merged is not None
    assert apart.seconds != merged.seconds
    assert apart.is_measured
    total, other = costs.total(DEFAULT_PLAN), costs.total(GraphPlan((MERGED,)))
    assert total is not None and other is not None
    assert other.seconds - total.seconds == merged.seconds - apart.seconds


def test_each_kernel_is_asked_about_once() -> None:
    asked: list[str] = []

    def cost(kernel: FusedKernel) -> Cost:
        asked.append(repr(kernel))
        return by_stages(kernel)

    costs = PlanCosts(branches(), host_target(), cost)
    for _ in range(2):
        costs.differing(DEFAULT_PLAN, MERGED)
        costs.total(DEFAULT_PLAN)
    assert len(asked) == len(set(asked))


def test_what_nobody_knows_is_not_summed() -> None:
    costs = PlanCosts(branches(), host_target(), lambda kernel: None)
    assert costs.total(DEFAULT_PLAN) is None
    assert costs.differing(DEFAULT_PLAN, MERGED) == (None, None)
