"""Candidates drawn uniformly: what every other strategy has to beat."""

from __future__ import annotations

from optuna.samplers import RandomSampler

from tuner.search.strategy import SearchProblem
from tuner.search.study_strategy import StudyStrategy


def make_strategy(problem: SearchProblem) -> StudyStrategy:
    """See `tuner.search.strategy`."""
    return StudyStrategy(problem, RandomSampler(seed=problem.seed))
