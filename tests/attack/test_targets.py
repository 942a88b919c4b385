"""Attacks build for each CPU that this one can stand for."""

from __future__ import annotations

from collections import Counter

from tests.attack.attack import Outcome
from tests.attack.targets import drawn_target, with_target
from tests.compiler.runnable_targets import runnable_targets
from tunefarm.compiler.target import host_target

SEEDS = range(500)


def test_each_target_has_its_share_of_the_seeds() -> None:
    drawn = Counter(drawn_target(seed).key for seed in SEEDS)
    assert set(drawn) == {target.key for target in runnable_targets()}
    assert min(drawn.values()) > len(SEEDS) / len(runnable_targets()) / 2
    assert [drawn_target(seed) for seed in range(9)] == [drawn_target(seed) for seed in range(9)]


def test_this_cpu_comes_first_and_has_the_features_of_all() -> None:
    host, *lesser = runnable_targets()
    assert host == host_target()
    assert lesser
    assert all(set(target.features) <= set(host.features) for target in lesser)


def test_a_finding_names_the_cpu_that_was_built_for() -> None:
    told = with_target(Outcome("wrong", broke=True, detail="y[0]"), host_target())
    assert told.detail == f"built for {host_target().cpu}\ny[0]"
