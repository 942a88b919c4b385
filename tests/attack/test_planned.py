"""Drawn networks under drawn plans give what onnxruntime gives; every kind of decision is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.drawn_networks import draw_network
from tests.attack.drawn_plans import drawn_plan
from tests.attack.graphs import CONDITION, NO_REFERENCE, REWRITTEN, SAME
from tests.attack.planned import Plans
from tunefarm.compiler.frontend.import_onnx import import_model_proto
from tunefarm.compiler.target import host_target

BY_DAY = 25
BY_NIGHT = 500
EQUAL = {SAME, REWRITTEN, CONDITION, NO_REFERENCE}


def attempted(folder: Path, seeds: range) -> None:
    attack = Plans(folder)
    outcomes = {seed: attack.attempt(seed) for seed in seeds}
    wrong = {seed: out for seed, out in outcomes.items() if out.label not in EQUAL}
    assert not wrong
    same = sum(outcome.label == SAME for outcome in outcomes.values())
    assert same >= 0.95 * len(outcomes)


@pytest.mark.nightly
def test_networks_under_drawn_plans_are_equal(tmp_path: Path) -> None:
    attempted(tmp_path, range(BY_DAY))


@pytest.mark.nightly
def test_five_hundred_networks_under_drawn_plans_are_equal(tmp_path: Path) -> None:
    attempted(tmp_path, range(BY_NIGHT))


def test_network_and_plan_depend_on_their_seed_alone() -> None:
    first, again = (draw_network(3).proto().SerializeToString() for _ in range(2))
    assert first == again
    graph, target = import_model_proto(draw_network(3).proto()), host_target()
    assert drawn_plan(graph, target, 3) == drawn_plan(graph, target, 3)


def test_every_kind_of_decision_is_drawn() -> None:
    target = host_target()
    plans = [
        drawn_plan(import_model_proto(draw_network(seed).proto()), target, seed)
        for seed in range(24)
    ]
    kinds = {decision.kind for plan in plans for decision in plan.decisions}
    assert kinds == {"chain", "layout"}
