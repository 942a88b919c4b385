"""Proposals for one task: an Optuna study whose trials are candidates of the schedule space.

A candidate maps to a trial as one categorical parameter "sketch" and one integer per choice of
that sketch, "<sketch>.<choice>", the position of the value in the choice's domain.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from compiler.errors import SettingsError
from compiler.schedule.space import Candidate, ScheduleSpace

Score = Callable[[Sequence[Candidate]], npt.NDArray[np.float32]]

SAMPLERS = ("cost_model", "evolution", "random", "tpe")
ENUMERATED = 2048  # spaces up to this size are ranked whole instead of searched
DUPLICATE_ATTEMPTS = 8  # proposals already known, before an unknown candidate is drawn instead


def distributions(space: ScheduleSpace) -> dict[str, BaseDistribution]:
    """All parameters of the space's trials; a trial has those of its own sketch only."""
    result: dict[str, BaseDistribution] = {
        "sketch": CategoricalDistribution([sketch.name for sketch in space.sketches])
    }
    for sketch in space.sketches:
        for choice in sketch.choices:
            name = f"{sketch.name}.{choice.name}"
            result[name] = IntDistribution(0, len(choice.values) - 1)
    return result


def to_parameters(space: ScheduleSpace, candidate: Candidate) -> dict[str, Any]:
    """The trial parameters of a candidate."""
    sketch = space.sketch(candidate.sketch)
    positions = {
        f"{sketch.name}.{choice.name}": position
        for choice, position in zip(sketch.choices, candidate.positions, strict=True)
    }
    return {"sketch": sketch.name, **positions}


def from_parameters(space: ScheduleSpace, parameters: Mapping[str, Any]) -> Candidate:
    """The inverse of `to_parameters`."""
    sketch = space.sketch(parameters["sketch"])
    names = (f"{sketch.name}.{choice.name}" for choice in sketch.choices)
    return Candidate(sketch.name, tuple(int(parameters[name]) for name in names))


class EvolutionarySampler(BaseSampler):
    """Evolutionary search over the space, ranked by a score, proposed in diverse batches.

    Parents are the fastest measured candidates and random ones; children come from mutation and
    crossover; the candidates of highest score among all that were seen and never proposed make the
    batch, as far as they differ from each other. A share `exploration` of it is random. About
    `pool` candidates are scored for a batch. Without a score the children of the fastest measured
    candidates are proposed as they come.
    """

    def __init__(
        self,
        space: ScheduleSpace,
        score: Score | None,
        seed: int,
        *,
        exploration: float = 0.1,
        pool: int = 512,
        generations: int = 4,
    ) -> None:
        self._space = space
        self._score = score
        self._rng = random.Random(seed)
        self._exploration = exploration
        self._population = max(8, pool // generations)
        self._generations = generations
        self._distributions = distributions(space)
        self._queue: list[Candidate] = []
        self._batch = 1
        self._candidates: dict[int, Candidate] = {}  # by the number of their trial

    def start_batch(self, count: int) -> None:
        """The next `count` proposals are chosen together, by the score as it is now."""
        self._queue = []
        self._batch = count

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Every parameter of the space: a proposal is a whole candidate."""
        return self._distributions

    def sample_relative(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
    ) -> dict[str, Any]:
        """The parameters of the next candidate of the batch (any candidate when none is left)."""
        if not self._queue:
            self._queue = self._propose(study, trial.number)
        if not self._queue:
            return to_parameters(self._space, self._space.sample(self._rng))
        return to_parameters(self._space, self._queue.pop(0))

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Positions outside the proposal, as of a trial that was enqueued in part: uniform."""
        if isinstance(param_distribution, CategoricalDistribution):
            return self._rng.choice(param_distribution.choices)
        assert isinstance(param_distribution, IntDistribution)
        return self._rng.randint(param_distribution.low, param_distribution.high)

    def _propose(self, study: optuna.Study, asked: int) -> list[Candidate]:
        known: set[Candidate] = set()
        measured: list[tuple[float, Candidate]] = []
        for trial in study.get_trials(deepcopy=False):
            if trial.number == asked:
                continue
            candidate = self._candidate(trial)
            known.add(candidate)
            if trial.state is TrialState.COMPLETE and trial.value is not None:
                measured.append((trial.value, candidate))
        measured.sort(key=lambda pair: pair[0])
        parents = [candidate for _, candidate in measured]
        if self._score is None:
            ranked = self._children(parents, known)
        elif self._space.size <= ENUMERATED:
            everything = (self._space.candidate(number) for number in range(self._space.size))
            unknown = [candidate for candidate in everything if candidate not in known]
            ranked = self._rank(unknown, self._score)
        else:
            ranked = self._evolve(parents, known, self._score)
        return self._pick(ranked, known)

    def _candidate(self, trial: FrozenTrial) -> Candidate:
        """The candidate of a trial, whose parameters never change."""
        found = self._candidates.get(trial.number)
        if found is None:
            parameters = trial.params or trial.system_attrs["fixed_params"]
            found = self._candidates[trial.number] = from_parameters(self._space, parameters)
        return found

    def _rank(self, candidates: Sequence[Candidate], score: Score) -> list[Candidate]:
        if not candidates:
            return []
        order = np.argsort(-score(candidates), kind="stable")
        return [candidates[i] for i in order]

    def _children(self, parents: Sequence[Candidate], known: set[Candidate]) -> list[Candidate]:
        """Unknown children of the fastest, in random order; none before there are two parents."""
        elite = parents[: max(4, len(parents) // 8)]
        if len(elite) < 2:
            return []
        children = dict.fromkeys(self._child(elite) for _ in range(8 * self._batch))
        return [child for child in children if child not in known]

    def _evolve(
        self, parents: Sequence[Candidate], known: set[Candidate], score: Score
    ) -> list[Candidate]:
        """Unknown candidates met during the search, best score first."""
        space, rng, size = self._space, self._rng, self._population
        population = list(parents[: size // 4])
        population += [space.sample(rng) for _ in range(size - len(population))]
        scores: dict[Candidate, float] = {}
        for generation in range(self._generations):
            fresh = [c for c in dict.fromkeys(population) if c not in scores]
            if fresh:
                scores.update(zip(fresh, map(float, score(fresh)), strict=True))
            if generation == self._generations - 1:
                break
            ranked = sorted(dict.fromkeys(population), key=lambda c: -scores[c])
            elite = ranked[: max(2, size // 4)]
            children = [self._child(elite) for _ in range(size - len(elite) - size // 8)]
            immigrants = [space.sample(rng) for _ in range(size // 8)]
            population = elite + children + immigrants
        unknown = [candidate for candidate in scores if candidate not in known]
        return sorted(unknown, key=lambda c: -scores[c])

    def _child(self, elite: Sequence[Candidate]) -> Candidate:
        space, rng = self._space, self._rng
        mother = min(rng.randrange(len(elite)), rng.randrange(len(elite)))
        child = elite[mother]
        if rng.random() < 0.4:
            child = space.crossover(child, rng.choice(elite), rng)
        if rng.random() < 0.8:
            child = space.mutate(child, rng)
        return child

    def _pick(self, ranked: Sequence[Candidate], known: set[Candidate]) -> list[Candidate]:
        """A batch: the best that differ in two choices or more, some random, then the rest."""
        taken: dict[Candidate, None] = {}
        surprises = sum(self._rng.random() < self._exploration for _ in range(self._batch))
        guided = self._batch - surprises
        for candidate in ranked:
            if len(taken) == guided:
                break
            if all(_distance(candidate, other) > 1 for other in taken):
                taken[candidate] = None
        for candidate in ranked:
            if len(taken) >= guided:
                break
            taken[candidate] = None
        while len(taken) < self._batch:
            filler = unknown_candidate(self._space, known.union(taken), self._rng)
            if filler is None:
                break
            taken[filler] = None
        return list(taken)


def _distance(left: Candidate, right: Candidate) -> int:
    """Number of choices in which they differ; candidates of different sketches are far apart."""
    if left.sketch != right.sketch:
        return 1 + max(len(left.positions), len(right.positions))
    return sum(a != b for a, b in zip(left.positions, right.positions, strict=True))


def unknown_candidate(
    space: ScheduleSpace, known: set[Candidate], rng: random.Random
) -> Candidate | None:
    """A random candidate that is not in `known`, or None when there is none."""
    for _ in range(32):
        candidate = space.sample(rng)
        if candidate not in known:
            return candidate
    size = space.size
    if len(known) >= size:
        return None
    start = rng.randrange(size)  # few are unknown: the next one from a random place on
    for step in range(size):
        candidate = space.candidate((start + step) % size)
        if candidate not in known:
            return candidate
    return None


def make_sampler(
    name: str,
    space: ScheduleSpace,
    score: Score,
    seed: int,
    *,
    exploration: float = 0.1,
    pool: int = 512,
) -> BaseSampler:
    """The sampler of that name (see `SAMPLERS`); `SettingsError` for an unknown one.

    `cost_model` is an evolutionary search ranked by `score`, `evolution` the same without a score,
    `random` and `tpe` are Optuna's own.
    """
    match name:
        case "cost_model":
            return EvolutionarySampler(space, score, seed, exploration=exploration, pool=pool)
        case "evolution":
            return EvolutionarySampler(space, None, seed, exploration=exploration, pool=pool)
        case "random":
            return RandomSampler(seed=seed)
        case "tpe":
            return TPESampler(seed=seed, n_startup_trials=16, constant_liar=True)
    raise SettingsError(f"unknown sampler {name!r}", hint=f"known: {', '.join(SAMPLERS)}")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate to measure; `number` identifies it when its result is told."""

    number: int
    candidate: Candidate


class TaskSearch:
    """The search of one task: candidates are asked for in batches and their latencies told.

    No candidate is proposed twice, nor one that was added as known. The same sampler, seed, seeds
    and answers give the same proposals.
    """

    def __init__(
        self,
        space: ScheduleSpace,
        sampler: BaseSampler,
        *,
        seed: int,
        first: Iterable[Candidate] = (),
    ) -> None:
        """`first` are proposed before any of the sampler's own (the default, known good ones)."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._sampler = sampler
        self._rng = random.Random(seed)
        self._distributions = distributions(space)
        self._study = optuna.create_study(sampler=sampler)
        self._known: set[Candidate] = set()
        self._first = list(dict.fromkeys(first))
        self._trials: dict[int, optuna.Trial] = {}

    @property
    def exhausted(self) -> bool:
        """Whether every candidate of the space has been proposed."""
        return len(self._known) >= self._space.size

    def add(self, candidate: Candidate, latency: float) -> None:
        """A result from elsewhere (an earlier run); infinity for a failure."""
        if candidate in self._known:
            return
        self._known.add(candidate)
        parameters = to_parameters(self._space, candidate)
        failed = latency == float("inf")
        self._study.add_trial(
            optuna.trial.create_trial(
                params=parameters,
                distributions={name: self._distributions[name] for name in parameters},
                value=None if failed else latency,
                state=TrialState.PRUNED if failed else TrialState.COMPLETE,
            )
        )

    def ask(self, count: int) -> list[Proposal]:
        """Up to `count` new candidates; fewer, or none, when the space is exhausted."""
        if isinstance(self._sampler, EvolutionarySampler):
            self._sampler.start_batch(count)
        proposals: list[Proposal] = []
        while len(proposals) < count and not self.exhausted:
            proposals.append(self._ask_one())
        return proposals

    def tell(self, number: int, latency: float) -> None:
        """The latency of a proposal in seconds; infinity for a failure."""
        trial = self._trials.pop(number)
        if latency == float("inf"):
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, latency)

    def forget(self, number: int) -> None:
        """A proposal that was never measured, through no fault of its own."""
        self._study.tell(self._trials.pop(number), state=TrialState.FAIL)

    def _ask_one(self) -> Proposal:
        while self._first:
            candidate = self._first.pop(0)
            if candidate not in self._known:
                self._study.enqueue_trial(to_parameters(self._space, candidate))
                return self._register(self._study.ask())
        for _ in range(DUPLICATE_ATTEMPTS):
            trial = self._study.ask()
            if self._suggest(trial) not in self._known:
                return self._register(trial)
            self._study.tell(trial, state=TrialState.FAIL)
        unknown = unknown_candidate(self._space, self._known, self._rng)
        assert unknown is not None, "asked of an exhausted space"
        self._study.enqueue_trial(to_parameters(self._space, unknown))
        return self._register(self._study.ask())

    def _suggest(self, trial: optuna.Trial) -> Candidate:
        names = [sketch.name for sketch in self._space.sketches]
        sketch = self._space.sketch(trial.suggest_categorical("sketch", names))
        positions = tuple(
            trial.suggest_int(f"{sketch.name}.{choice.name}", 0, len(choice.values) - 1)
            for choice in sketch.choices
        )
        return Candidate(sketch.name, positions)

    def _register(self, trial: optuna.Trial) -> Proposal:
        candidate = self._suggest(trial)
        self._known.add(candidate)
        self._trials[trial.number] = trial
        return Proposal(trial.number, candidate)
