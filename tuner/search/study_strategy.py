"""StudyStrategy: any sampler of Optuna as a strategy; a study's trials are candidates.

A candidate is one categorical parameter "sketch" and one integer per choice of that sketch,
"<sketch>.<choice>", the position of the value in the choice's domain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from tunefarm.compiler.schedule.space import Candidate
from tunefarm.tuner.model.packed_space import PackedSpace
from tunefarm.tuner.search.strategy import SearchProblem

DUPLICATE_ATTEMPTS = 8  # proposals that were taken already, before another one is drawn instead


class StudyStrategy:
    """Asks a study for candidates and tells it what they take."""

    headroom = math.inf  # Optuna does not say

    def __init__(self, problem: SearchProblem, sampler: BaseSampler) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = problem.space
        self._packed = PackedSpace(problem.space)
        self._rng = np.random.default_rng(problem.seed)
        self._study = optuna.create_study(sampler=sampler)
        self._taken: set[int] = set()  # numbers of candidates
        self._trials: dict[Candidate, optuna.Trial] = {}

    def propose(self, count: int) -> Iterator[Candidate]:
        """See `Strategy.propose`; each is asked for by itself."""
        for _ in range(count):
            candidate = self._ask()
            if candidate is None:
                return
            yield candidate

    def take(self, candidate: Candidate) -> None:
        """See `Strategy.take`."""
        self._taken.add(self._space.number(candidate))
        if candidate not in self._trials:
            sketch = self._space.sketch(candidate.sketch)
            names = [f"{sketch.name}.{choice.name}" for choice in sketch.choices]
            positions = dict(zip(names, candidate.positions, strict=True))
            self._study.enqueue_trial({"sketch": sketch.name, **positions})
            trial = self._study.ask()
            self._trials[self._suggest(trial)] = trial

    def learn(self, candidate: Candidate, latency: float | None) -> None:
        """See `Strategy.learn`; a study believes what it learns first."""
        trial = self._trials.pop(candidate, None)
        if trial is None:
            return
        if latency is None:
            self._study.tell(trial, state=TrialState.FAIL)
        elif latency == math.inf:
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, latency)

    def _ask(self) -> Candidate | None:
        """A candidate that was not taken; None at the end of the space."""
        for _ in range(DUPLICATE_ATTEMPTS):
            if len(self._taken) == self._space.size:
                return None
            trial = self._study.ask()
            candidate = self._suggest(trial)
            if self._space.number(candidate) not in self._taken:
                self._trials[candidate] = trial
                return candidate
            self._study.tell(trial, state=TrialState.FAIL)
        return self._packed.unknown(self._taken, self._rng)

    def _suggest(self, trial: optuna.Trial) -> Candidate:
        names = [sketch.name for sketch in self._space.sketches]
        sketch = self._space.sketch(trial.suggest_categorical("sketch", names))
        positions = tuple(
            trial.suggest_int(f"{sketch.name}.{choice.name}", 0, len(choice.values) - 1)
            for choice in sketch.choices
        )
        return Candidate(sketch.name, positions)
