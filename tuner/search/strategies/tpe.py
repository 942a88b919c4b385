"""Tree-structured Parzen estimators (Bergstra et al., NeurIPS 2011), as Optuna has them."""

from __future__ import annotations

from optuna.samplers import TPESampler

from tunefarm.tuner.search.strategy import SearchProblem
from tunefarm.tuner.search.study_strategy import StudyStrategy


def make_strategy(problem: SearchProblem) -> StudyStrategy:
    """See `tunefarm.tuner.search.strategy`."""
    sampler = TPESampler(seed=problem.seed, n_startup_trials=16, constant_liar=True)
    return StudyStrategy(problem, sampler)
