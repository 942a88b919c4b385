"""What a decision costs is the kernels that come with it, against those that go."""

from __future__ import annotations

from tests.compiler.plan.choices.test_verify_plan import network
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.choices.plan_costs import Cost, PlanCosts
from tunefarm.compiler.plan.decisions.graph_plan import (
    DEFAULT_PLAN,
    FusionBarrier,
    GraphPlan,
    KeepDecomposed,
)
from tunefarm.compiler.target import host_target


def by_stages(kernel: FusedKernel) -> Cost:
    """A second for the kernel and one for each of its stages, measured where it has a sum."""
    seconds = 1.0 + len(kernel.stages)
    return Cost(seconds, seconds if "conv" in kernel.name else 0.0)


def test_cut_costs_its_two_kernels_against_one() -> None:
    costs = PlanCosts(network(), host_target(), by_stages)
    fused, cut = costs.differing(DEFAULT_PLAN, FusionBarrier("conv_0"))
    assert fused is not None and cut is not None
    assert cut.seconds > fused.seconds
    assert fused.is_measured and not cut.is_measured
    total, other = costs.total(DEFAULT_PLAN), costs.total(GraphPlan((FusionBarrier("conv_0"),)))
    assert total is not None and other is not None
    assert other.seconds - total.seconds == cut.seconds - fused.seconds


def test_each_kernel_is_asked_about_once() -> None:
    asked: list[str] = []

    def cost(kernel: FusedKernel) -> Cost:
        asked.append(repr(kernel))
        return by_stages(kernel)

    costs = PlanCosts(network(), host_target(), cost)
    for decision in (FusionBarrier("conv_0"), FusionBarrier("conv_2"), KeepDecomposed("mul_4")):
        costs.differing(DEFAULT_PLAN, decision)
        costs.differing(DEFAULT_PLAN, decision)
    assert len(asked) == len(set(asked))


def test_what_nobody_knows_is_not_summed() -> None:
    def cost(kernel: FusedKernel) -> Cost | None:
        return None if kernel.name == "conv_relu" else by_stages(kernel)

    costs = PlanCosts(network(), host_target(), cost)
    assert costs.total(DEFAULT_PLAN) is None
    assert costs.differing(DEFAULT_PLAN, FusionBarrier("conv_0"))[0] is None
    assert costs.differing(DEFAULT_PLAN, FusionBarrier("conv_2"))[0] is not None
