"""Candidates drawn uniformly: what every other strategy has to beat."""

from __future__ import annotations

from optuna.samplers import RandomSampler

from tunefarm.tuner.search.strategy import SearchProblem
from tunefarm.tuner.search.study_strategy import StudyStrategy


def make_strategy(problem: SearchProblem) -> StudyStrategy:
    """See `tunefarm.tuner.search.strategy`."""
    return StudyStrategy(problem, RandomSampler(seed=problem.seed))
