"""Evolutionary search ranked by the cost model: the default."""

from __future__ import annotations

from tunefarm.tuner.search.strategies.evolution import Evolution
from tunefarm.tuner.search.strategy import SearchProblem


def make_strategy(problem: SearchProblem) -> Evolution:
    """See `tunefarm.tuner.search.strategy`."""
    return Evolution(problem, problem.score)
