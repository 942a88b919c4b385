"""Whole models decide which of the proposed plans is taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.tuner.plans.test_job_plans import latency
from tunefarm.compiler.errors import LoweringError, MeasureError
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, Chain, GraphPlan, Layout
from tunefarm.tuner.confirm.latency import ModelLatency
from tunefarm.tuner.plans.confirm import (
    MOST_REGIONS,
    REPEATS,
    ConfirmPlans,
    ConfirmRegions,
    confirmed_choice,
)
from tunefarm.tuner.plans.search import Proposal, Proposals
from tunefarm.tuner.records.graph_choice import GraphChoice
from tunefarm.tuner.records.plan_region import PlanRegion


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


def test_a_region_that_is_all_of_a_plan_gains_what_the_plan_does() -> None:
    plan, part = GraphPlan((Layout("a", 8), Layout("b", 8))), GraphPlan((Layout("a", 8),))
    choice = GraphChoice(plan, regions=(PlanRegion(plan, "all"), PlanRegion(part, "a part")))
    found = confirmed_choice(choice, latency(0.8))
    assert found.speedup == pytest.approx(1.25) and found.seconds == pytest.approx(0.8e-3)
    assert [region.speedup for region in found.regions] == [pytest.approx(1.25), None]


def _never(*_: object) -> Any:
    raise AssertionError("nothing is to be built or compared")


DOUBT = 0.01


def plan(names: str) -> GraphPlan:
    return GraphPlan(tuple(map(Chain, names)))


def names(of: GraphPlan) -> str:
    return "".join(sorted(item.value for item in of.of(Chain)))


class Models:
    """Whole models whose time falls by a share for each decision; `met` are those compared, each
    time within `doubt`."""

    def __init__(
        self, gains: Mapping[str, float], late: int = 100, doubt: float = DOUBT, over: int = 100
    ) -> None:
        self.gains, self.late, self.doubt, self.over = gains, late, doubt, over
        self.met: list[tuple[str, str]] = []
        self.said: list[str] = []

    def seconds(self, of: GraphPlan) -> float:
        time = 1e-3
        for name in names(of):
            time *= 1.0 - self.gains[name]
        return time

    def compare(self, specs: Sequence[Any]) -> ModelLatency:
        first, second = specs
        self.met.append((names(first), names(second)))
        ratio = self.seconds(second) / self.seconds(first)
        low, high = ratio * (1 - self.doubt), ratio * (1 + self.doubt)
        return ModelLatency(1e-3, 1e-3 * ratio, 0.0, 0.0, ratio, low, high)

    def judged(
        self,
        arena_of: Callable[[GraphPlan], int | None] = lambda _: 64,
        base: GraphPlan = DEFAULT_PLAN,
    ) -> GraphChoice:
        whole = plan("".join(self.gains))
        build: Callable[[GraphPlan], Any] = lambda plan: plan  # noqa: E731
        plans = ConfirmPlans(build, self.compare, names, self.said.append, before=base)
        choice = plans.confirmed(whole, 128)
        assert choice is not None
        self.met.clear()
        regions = [PlanRegion(plan(name), name, "apart", 0.1) for name in self.gains]
        found = ConfirmRegions(
            plans,
            arena_of,
            lambda: len(self.met) >= self.late,
            lambda: len(self.met) >= self.over,
            base,
        )
        return found.judged(choice, regions)


def gains(choice: GraphChoice) -> dict[str, str]:
    return {region.described: region.gain for region in choice.regions}


def test_each_region_is_measured_against_the_plan_without_it() -> None:
    models = Models({"a": 0.1, "b": 0.05})
    choice = models.judged()
    assert models.met == [("b", "ab"), ("a", "ab")]
    assert names(choice.plan) == "ab" and choice.notes == ()
    assert gains(choice) == {
        "a": "11 % faster than apart, confirmed (10 to 12 %)",
        "b": "5 % faster than apart, confirmed (4.2 to 6.3 %)",
    }


@pytest.mark.parametrize("gain", [-0.001, -0.05])
def test_a_region_without_a_gain_is_left_out(gain: float) -> None:
    models = Models({"a": 0.1, "b": gain})
    choice = models.judged()
    assert models.met == [("b", "ab"), ("a", "ab"), ("", "a")]  # the rest is confirmed anew
    assert names(choice.plan) == "a" and list(gains(choice)) == ["a"]
    assert choice.speedup == pytest.approx(1 / 0.9) and choice.arena_bytes == 64
    (note,) = choice.notes
    assert note.startswith("left out: b: ") and f"plan: {note}" in models.said


@pytest.mark.parametrize(("gain", "stays"), [(0.015, True), (-0.004, False)])
def test_a_region_that_noise_hides_is_measured_again_until_it_is_decided(
    gain: float, stays: bool
) -> None:
    models = Models({"a": 0.1, "b": gain}, doubt=0.02)
    choice = models.judged()
    assert 1 < models.met.count(("a", "ab")) <= 1 + REPEATS
    assert (names(choice.plan) == "ab") == stays
    told = gains(choice)["b"] if stays else choice.notes[0]
    assert ("faster than apart, confirmed (" if stays else "no difference found") in told


@pytest.mark.parametrize("over", [100, 2])
def test_a_region_that_stays_in_doubt_is_kept(over: int) -> None:
    models = Models({"a": 0.2, "b": 0.0}, doubt=0.1, over=over)
    choice = models.judged()
    assert names(choice.plan) == "ab" and choice.notes == ()
    assert models.met == [("b", "ab")] + [("a", "ab")] * (1 if over == 2 else 1 + REPEATS)
    assert gains(choice)["b"].startswith("no difference found to apart (-")


def test_small_gains_that_are_much_together_stay() -> None:
    models = Models({"a": 0.1, "b": 0.008, "c": 0.008, "d": 0.008})
    choice = models.judged()
    assert models.met[-1] == ("a", "abcd")
    assert names(choice.plan) == "abcd" and choice.notes == ()
    assert gains(choice) == {
        "bcd": "2 % faster than without them, confirmed (1.4 to 3.5 %)",
        "a": "11 % faster than apart, confirmed (10 to 12 %)",
    }


def test_a_loss_is_left_out_where_small_gains_stay() -> None:
    models = Models({"a": 0.1, "e": -0.02} | dict.fromkeys("bcdf", 0.009))
    choice = models.judged()
    assert names(choice.plan) == "abcdf"
    assert [note.split(" (")[0] for note in choice.notes] == [
        "left out: e: 2 % slower than apart, confirmed"
    ]


def test_a_plan_is_not_made_shorter_if_what_is_left_is_not_confirmed() -> None:
    models = Models({"a": 0.008, "b": 0.008})
    choice = models.judged()
    assert names(choice.plan) == "ab"  # nothing would be left
    assert set(gains(choice).values()) == {"no difference found to apart (-0.2 to 1.8 %)"}


def test_regions_that_there_is_no_time_for_are_not_measured_alone() -> None:
    models = Models({"a": 0.1, "b": 0.0, "c": 0.0}, late=1)
    choice = models.judged()
    assert models.met == [("bc", "abc")] and names(choice.plan) == "abc"
    assert gains(choice)["b"] == gains(choice)["c"] == "not measured alone"


def test_without_a_limit_of_time_the_number_of_regions_is_limited() -> None:
    models = Models(dict.fromkeys("abcdefghijklmnop", 0.05))
    assert sum(region.is_measured for region in models.judged().regions) == MOST_REGIONS
    assert len(models.met) == MOST_REGIONS


def test_the_only_region_gains_what_the_plan_does() -> None:
    models = Models({"a": 0.2})
    choice = models.judged()
    assert models.met == []
    assert gains(choice) == {"a": "25 % faster than apart, confirmed (24 to 26 %)"}


def test_what_cannot_be_left_out_stays_as_it_is() -> None:
    models = Models({"a": 0.1, "b": 0.0})
    choice = models.judged(lambda plan: None if names(plan) == "a" else 64)
    assert names(choice.plan) == "ab" and gains(choice)["b"] == "not measured alone"

    def differ(specs: Sequence[Any]) -> ModelLatency:
        raise MeasureError("the tuned model's output 'y' differs from the untuned one's")

    models = Models({"a": 0.1, "b": 0.1})
    plans = ConfirmPlans(lambda plan: plan, differ, names, models.said.append)  # type: ignore[arg-type, return-value]
    regions = [PlanRegion(plan(name), name) for name in "ab"]
    choice = ConfirmRegions(plans, lambda _: 64).judged(GraphChoice(plan("ab")), regions)
    assert set(gains(choice).values()) == {"not measured alone"}
    assert models.said[-1].startswith("plan: not measured: ")


def test_a_region_that_changes_no_code_is_unchanged_and_left_out() -> None:
    models = Models({"a": 0.05, "b": 0.0}, doubt=0.0)
    assert names(models.judged().plan) == "a"
    assert any("b: unchanged: the same build as apart" in text for text in models.said)
    assert models.met.count(("a", "ab")) == 1  # and not again: nothing is in doubt
