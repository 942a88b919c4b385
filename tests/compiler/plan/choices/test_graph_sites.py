"""What can be decided of a graph is told in one order, under any plan."""

from __future__ import annotations

from tests.compiler.plan.choices.test_verify_plan import network
from tunefarm.compiler.plan.choices.graph_sites import graph_sites
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, KeepDecomposed
from tunefarm.compiler.target import host_target

TARGET = host_target()


def test_sites_of_a_network() -> None:
    sites = graph_sites(network(), TARGET)
    assert [str(site) for site in sites.patterns] == ["swish mul_4"]
    assert [cut.value for cut in sites.cuts] == ["conv_0", "conv_2"]
    assert [node.output for node in sites.planned.nodes] == ["conv_0", "relu_1", "conv_2", "mul_4"]
    assert graph_sites(network(), TARGET).cuts == sites.cuts


def test_pattern_that_stays_is_still_a_site() -> None:
    plan = DEFAULT_PLAN.with_decisions(KeepDecomposed("mul_4"))
    sites = graph_sites(network(), TARGET, plan=plan)
    assert [site.value for site in sites.patterns] == ["mul_4"]
    assert [str(cut) for cut in sites.cuts] == ["conv | relu", "conv | sigmoid mul"]
