"""Whole models decide which of the proposed plans is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.tuner.plans.test_job_plans import latency
from tunefarm.compiler.errors import LoweringError
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, GraphPlan, Layout
from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.plans.job_plans import ConfirmPlans, confirmed_choice
from tunefarm.tuner.plans.search import Proposal, Proposals
from tunefarm.tuner.records.graph_choice import GraphChoice


def proposals(*gains: float) -> Proposals:
    plans = [Proposal(GraphPlan((Layout(f"v{n}", 8),)), f"k{n}", g, 0) for n, g in enumerate(gains)]
    joint = Proposal(GraphPlan(tuple(d for p in plans for d in p.plan.decisions)), "all", 0.5, 0)
    return Proposals(joint, tuple(plans))


def confirm(ratio_of: Callable[[GraphPlan], float]) -> tuple[GraphChoice | None, list[GraphPlan]]:
    built: list[GraphPlan] = []

    def build(plan: GraphPlan) -> Any:
        built.append(plan)
        return plan

    def compare(specs: Sequence[Any]) -> ModelLatency:
        return latency(ratio_of(specs[1]))

    found = ConfirmPlans(build, compare, str, lambda _: None).best(proposals(0.1, 0.2))
    return found, built


def test_what_is_faster_together_needs_no_more_runs() -> None:
    found, built = confirm(lambda plan: 0.8)
    assert found is not None and len(found.plan.decisions) == 2
    assert built == [DEFAULT_PLAN, found.plan]


def test_kinds_are_tried_one_by_one_where_all_together_are_slower() -> None:
    found, built = confirm(lambda plan: {2: 1.2}.get(len(plan.decisions), 0.9))
    assert found is not None and len(found.plan.decisions) == 1
    assert len(built) == 4
    assert confirm(lambda plan: 1.0)[0] is None


def test_a_plan_that_is_the_build_of_the_rules_is_unchanged_and_not_taken() -> None:
    said: list[str] = []
    same = ModelLatency(1e-3, 1e-3, 0.0, 0.0, 1.0, 1.0, 1.0)
    build: Any = lambda plan: plan  # noqa: E731
    confirm = ConfirmPlans(build, lambda _: same, lambda _: "this plan", said.append)
    assert confirm.best(proposals(0.1)) is None
    assert "plan: this plan is the build of the rules, unchanged" in said
    assert not any("1.00x" in text for text in said)


def test_a_late_search_compares_nothing() -> None:
    built: list[GraphPlan] = []
    confirm = ConfirmPlans(built.append, _never, str, lambda _: None, lambda: True)  # type: ignore[arg-type]
    assert confirm.best(proposals(0.1)) is None and built == []


def test_nothing_proposed_is_nothing_confirmed() -> None:
    assert ConfirmPlans(_never, _never, str, lambda _: None).best(Proposals()) is None


def test_a_plan_that_cannot_be_built_is_told_and_not_taken() -> None:
    said: list[str] = []

    def build(plan: GraphPlan) -> Any:
        if plan != DEFAULT_PLAN:
            raise LoweringError("no such loop")

    confirm = ConfirmPlans(build, _never, lambda _: "this plan", said.append)
    assert confirm.best(proposals(0.1)) is None
    assert "plan: this plan is not taken: no such loop" in said


def test_what_is_confirmed_beside_another_plan_names_that() -> None:
    before = GraphPlan((Layout("a", 8),))
    confirm = ConfirmPlans(
        lambda plan: plan,  # type: ignore[arg-type, return-value]
        lambda _: latency(0.5),
        lambda _: "this plan",
        lambda _: None,
        before=before,
    )
    found = confirm.confirmed(GraphPlan((Layout("b", 8),)), 64)
    assert found is not None and found.arena_bytes == 64
    assert found.notes == ("this plan: 100 % faster than the plan before, confirmed",)


def test_a_confirmed_choice_has_the_bounds_of_its_speed_up() -> None:
    found = confirmed_choice(GraphChoice(GraphPlan((Layout("a", 8),))), latency(0.8))
    assert found.speedup == pytest.approx(1.25) and found.seconds == pytest.approx(0.8e-3)
    assert found.low == pytest.approx(1.25 / 1.01) and found.high == pytest.approx(1.25 / 0.99)


def _never(*_: object) -> Any:
    raise AssertionError("nothing is to be built or compared")
