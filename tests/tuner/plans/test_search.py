"""The search measures what the choice hangs on, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from tunefarm.compiler.errors import PlanError
from tunefarm.compiler.plan.decisions.graph_plan import DEFAULT_PLAN, Chain, GraphPlan
from tunefarm.tuner.plans.costs import KernelCost, KernelCosts
from tunefarm.tuner.plans.problems import Kind, LocalParts, Part
from tunefarm.tuner.plans.programs import PlannedProgram, Programs
from tunefarm.tuner.plans.search import PlanSearch, Proposals


class FakePrograms:
    """A program of kernels named after values; a chained value has a kernel of another name."""

    def __init__(self, values: Sequence[str], arenas: Mapping[str, int] | None = None) -> None:
        self.values, self.arenas = values, arenas or {}
        self.kernels: dict[str, Any] = {name: name for v in values for name in (v, f"{v}'")}

    def of(self, plan: GraphPlan) -> PlannedProgram:
        chained = {decision.value for decision in plan.of(Chain)}
        if chained - set(self.values):
            raise PlanError("does not fit")
        makers = {value: f"{value}'" if value in chained else value for value in self.values}
        arena = 100 + sum(self.arenas.get(value, 0) for value in chained)
        return PlannedProgram(plan, dict.fromkeys(makers.values(), 1), makers, arena)

    def fitting(self, plan: GraphPlan) -> PlannedProgram | None:
        try:
            return self.of(plan)
        except PlanError:
            return None


@dataclass
class FakeCosts:
    """Kernels take what they really do once they were measured, before that an estimate."""

    real: Mapping[str, float]
    guessed: Mapping[str, float]
    deviation: float = 0.5

    def __post_init__(self) -> None:
        self.measured: list[str] = []

    def learn(self, keys: Sequence[str]) -> None:
        self.measured += keys

    def __getitem__(self, key: str) -> KernelCost:
        if key in self.measured:
            return KernelCost(self.real[key], 0.02, measured=True)
        return KernelCost(self.guessed.get(key, self.real[key]), self.deviation, measured=False)

    def of_calls(self, calls: Mapping[str, int]) -> float:
        return math.fsum(self[key].seconds * count for key, count in calls.items())

    def is_measured(self, calls: Mapping[str, int]) -> bool:
        return all(key in self.measured for key in calls)


def local(
    values: Sequence[str], kind: Kind = Kind.CHAINS
) -> Callable[[Programs, GraphPlan], LocalParts]:
    def make(programs: Programs, before: GraphPlan) -> LocalParts:
        parts = [Part((Chain(v),), {v: -1, f"{v}'": 1}, frozenset([v])) for v in values]
        return LocalParts(kind, parts)

    return make


def search(
    programs: FakePrograms,
    costs: FakeCosts,
    *,
    most: int = 1000,
    most_bytes: int | None = None,
    kinds: Sequence[Any] | None = None,
) -> tuple[Proposals, list[str]]:
    asked: list[str] = []

    def measure(_kind: Kind, kernels: Mapping[str, Any]) -> list[str]:
        taken = list(kernels)[: most - len(asked)]
        asked.extend(taken)
        return taken

    found = PlanSearch(
        cast(Programs, programs),
        cast(KernelCosts, costs),
        [local(programs.values)] if kinds is None else kinds,
        measure,
        most_bytes,
    ).run()
    return found, asked


REAL = {"a": 1.0, "a'": 0.5, "b": 1.0, "b'": 2.0, "c": 1.0, "c'": 0.9}


def test_what_is_faster_is_proposed() -> None:
    found, _ = search(FakePrograms("abc"), FakeCosts(REAL, {}))
    assert found.joint is not None
    assert found.joint.plan == GraphPlan((Chain("a"), Chain("c")))
    assert found.joint.gain == pytest.approx(0.6 / 3)
    assert found.candidates == {"chains": 3}


def test_a_guess_that_promises_too_much_is_measured_and_given_up() -> None:
    found, asked = search(FakePrograms("b"), FakeCosts(REAL, {"b'": 0.2}))
    assert asked == ["b", "b'"] and found.joint is None


def test_what_cannot_be_part_of_the_best_is_not_measured() -> None:
    found, asked = search(FakePrograms("b"), FakeCosts(REAL, {"b'": 5.0}))
    assert asked == ["b"] and found.joint is None


def test_a_guess_within_its_doubt_is_measured() -> None:
    found, asked = search(FakePrograms("a"), FakeCosts(REAL, {"a'": 1.2}))
    assert asked == ["a", "a'"] and found.joint is not None


def test_the_least_certain_are_measured_first() -> None:
    values = [chr(ord("a") + number) for number in range(20)]
    real = {v: 1.0 + number for number, v in enumerate(values)}
    real |= {f"{v}'": 100.0 for v in values}
    _, asked = search(FakePrograms(values), FakeCosts(real, {}), most=3)
    assert asked == ["t", "s", "r"]


def test_it_ends_when_nothing_more_can_be_measured() -> None:
    costs = FakeCosts(REAL, {"a'": 0.9, "b'": 0.9})
    found, asked = search(FakePrograms("abc"), costs, most=2)
    assert len(asked) == 2
    assert found.joint == found.single[0]  # a gain in doubt is for the whole model to decide


def test_what_is_known_is_not_measured_again() -> None:
    costs = FakeCosts(REAL, {})
    costs.measured += REAL
    found, asked = search(FakePrograms("abc"), costs)
    assert asked == [] and found.joint is not None


def test_plans_beyond_the_memory_are_not_proposed() -> None:
    programs = FakePrograms("ab", {"a": 50})
    found, _ = search(programs, FakeCosts(REAL, {}), most_bytes=120)
    assert found.joint is None
    found, _ = search(programs, FakeCosts(REAL, {}), most_bytes=150)
    assert found.joint is not None


def test_kinds_are_proposed_together_and_one_by_one() -> None:
    kinds = [local("a", Kind.MERGES), local("bc")]
    found, _ = search(FakePrograms("abc"), FakeCosts({**REAL, "b'": 0.3}, {}), kinds=kinds)
    assert found.joint is not None and found.joint.kind == "merges and chains"
    assert found.joint.plan == DEFAULT_PLAN.with_decisions(Chain("a"), Chain("b"), Chain("c"))
    assert [item.kind for item in found.single] == ["chains", "merges"]


def test_a_gain_within_its_doubt_is_for_the_whole_model_to_decide() -> None:
    found, _ = search(FakePrograms("a"), FakeCosts({"a": 1.0, "a'": 0.99}, {}))
    assert found.joint is not None and found.joint.plan == GraphPlan((Chain("a"),))
    assert search(FakePrograms("a"), FakeCosts({"a": 1.0, "a'": 1.01}, {}))[0].joint is None


def test_guesses_are_proposed_though_their_kernels_take_longer_alone() -> None:
    guess = GraphPlan((Chain("b"),))
    found = PlanSearch(
        cast(Programs, FakePrograms("ab")),
        cast(KernelCosts, FakeCosts(REAL, {})),
        [local("a")],
        lambda _, kernels: list(kernels),
        guesses=lambda *_: [guess, DEFAULT_PLAN],
    ).run()
    assert found.joint is not None and found.joint.plan == GraphPlan((Chain("a"),))
    assert [item.plan for item in found.single] == [guess, found.joint.plan]
