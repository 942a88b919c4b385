"""The default strategy: how its batches cover a space, and what it expects of the rest."""

from __future__ import annotations

import math

from tests.contracts.test_strategy_contract import Searched
from tests.tuner.synthetic import latency, tile_space

WITHIN = math.log2(1.02)


def test_a_first_batch_is_of_many_kinds() -> None:
    """Nothing is known but that candidates are alike whose choices are."""
    space = tile_space()
    batch = Searched("cost_model", space).search.ask(8)
    assert {candidate.sketch for candidate in batch} == {"direct", "packed"}
    assert len({space.choices(candidate)["tile"] for candidate in batch}) >= 5


def test_headroom_falls_as_the_best_are_found() -> None:
    space = tile_space()
    best = min(latency(space, space.candidate(number)) for number in range(space.size))
    searched = Searched("cost_model", space, first=(space.default(),))
    searched.run(8, latency)
    early = searched.search.headroom
    assert early > WITHIN
    searched.run(160, latency)
    assert searched.search.headroom < early / 4
    assert min(searched.latencies) < 1.02 * best


def test_nothing_is_expected_of_a_space_that_was_measured() -> None:
    space = tile_space()
    searched = Searched("cost_model", space)
    for number in range(space.size):
        searched.search.add(space.candidate(number), 1e-3)
    assert searched.search.ask(4) == []
    assert searched.search.headroom == -math.inf
