"""Proposals for one task: an Optuna study whose trials are candidates of the schedule space.

A candidate maps to a trial as one categorical parameter "sketch" and one integer per choice of
that sketch, "<sketch>.<choice>", the position of the value in the choice's domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from compiler.errors import SettingsError
from compiler.schedule.space import Candidate, ScheduleSpace
from tuner.model.cost_model import Scores
from tuner.search.packed import Numbers, PackedSpace, Rows, distances

Score = Callable[[Rows], Scores]

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
    """Evolutionary search over the space, ranked by a cost model, proposed in diverse batches.

    Parents are the fastest measured candidates and random ones; children come from mutation and
    crossover. Of all candidates that were met and never proposed the batch takes those of the
    highest score, as far as they differ from each other: every other one by its mean score, the
    ones between by mean and spread, which tries what the model is not sure of. A share
    `exploration` of it is random. About `pool` candidates are scored for a batch. Without a score
    the children of the fastest measured candidates are proposed as they come.
    """

    def __init__(
        self,
        space: ScheduleSpace,
        score: Score | None,
        seed: int,
        *,
        exploration: float = 0.05,
        pool: int = 512,
        generations: int = 2,
    ) -> None:
        self._space = space
        self._packed = PackedSpace(space)
        self._score = score
        self._rng = np.random.default_rng(seed)
        self._exploration = exploration
        self._population = max(8, pool // generations)
        self._generations = generations
        self._distributions = distributions(space)
        self._queue: list[Candidate] = []
        self._batch = 1
        self._numbers: dict[int, int] = {}  # the candidate's, by the number of its trial
        self.headroom = math.inf  # log2 of the speed-up that the model still thinks possible

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
        if "fixed_params" in trial.system_attrs:
            return {}  # it was enqueued: nothing is left to propose
        if not self._queue:
            self._queue = self._propose(study, trial.number)
        if not self._queue:
            row = self._packed.sample(1, self._rng)[0]
            return to_parameters(self._space, self._packed.unpack(row))
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
            return param_distribution.choices[self._rng.integers(len(param_distribution.choices))]
        assert isinstance(param_distribution, IntDistribution)
        return int(self._rng.integers(param_distribution.low, param_distribution.high + 1))

    def _propose(self, study: optuna.Study, asked: int) -> list[Candidate]:
        known: list[int] = []
        measured: list[tuple[float, int]] = []
        for trial in study.get_trials(deepcopy=False):
            if trial.number == asked:
                continue
            number = self._number(trial)
            known.append(number)
            if trial.state is TrialState.COMPLETE and trial.value is not None:
                measured.append((trial.value, number))
        measured.sort()
        taken = np.unique(np.array(known, np.int64))
        best = np.array([number for _, number in measured], np.int64)
        parents = self._packed.rows(best)
        if self._score is None:
            rows = self._children(parents, taken)
            return self._pick(rows, None, taken)
        if self._packed.size <= ENUMERATED:
            numbers = np.arange(self._packed.size)
            rows = self._packed.rows(numbers)
            scores = self._score(rows)
        else:
            rows, numbers, scores = self._evolve(parents, self._score)
        rows, scores = self._unknown(rows, numbers, scores, taken)
        return self._pick(rows, scores, taken)

    def _number(self, trial: FrozenTrial) -> int:
        """The number of a trial's candidate, whose parameters never change."""
        found = self._numbers.get(trial.number)
        if found is None:
            parameters = trial.params or trial.system_attrs["fixed_params"]
            candidate = from_parameters(self._space, parameters)
            found = self._numbers[trial.number] = self._space.number(candidate)
        return found

    def _children(self, parents: Rows, taken: Numbers) -> Rows:
        """Unknown children of the fastest, in random order; none before there are two parents."""
        elite = parents[: max(4, len(parents) // 8)]
        if len(elite) < 2:
            return parents[:0]
        rows = self._offspring(elite, 8 * self._batch)
        _, first = np.unique(self._packed.numbers(rows), return_index=True)
        rows = rows[np.sort(first)]
        return rows[~np.isin(self._packed.numbers(rows), taken)]

    def _unknown(
        self, rows: Rows, numbers: Numbers, scores: Scores, taken: Numbers
    ) -> tuple[Rows, Scores]:
        """The candidates that were never proposed; by how much they may be better, as headroom."""
        new = ~np.isin(numbers, taken)
        self.headroom = -math.inf
        if new.any():
            known = -math.inf if new.all() else float(scores.mean[~new].max())
            self.headroom = float((scores.mean + scores.spread)[new].max()) - known
        return rows[new], Scores(scores.mean[new], scores.spread[new])

    def _evolve(self, parents: Rows, score: Score) -> tuple[Rows, Numbers, Scores]:
        """Candidates met during the search, with their numbers and scores."""
        packed, rng, size = self._packed, self._rng, self._population
        elite = parents[: size // 4]
        near = [packed.neighbours(row) for row in parents[:2]]
        children = self._offspring(elite, size // 2) if len(elite) > 1 else elite
        fresh = packed.sample(max(size // 4, size - len(elite) - len(children)), rng)
        population = np.concatenate([elite, *near, children, fresh])
        rows, numbers = population[:0], np.empty(0, np.int64)
        mean, spread = np.empty(0, np.float32), np.empty(0, np.float32)
        for generation in range(self._generations):
            found, first = np.unique(packed.numbers(population), return_index=True)
            new = ~np.isin(found, numbers)
            if new.any():
                fresh = population[first[new]]
                scores = score(fresh)
                rows = np.concatenate([rows, fresh])
                numbers = np.concatenate([numbers, found[new]])
                mean = np.concatenate([mean, scores.mean])
                spread = np.concatenate([spread, scores.spread])
            if generation == self._generations - 1:
                break
            elite = rows[np.argsort(-(mean + 0.5 * spread), kind="stable")[: size // 4]]
            immigrants = packed.sample(size // 8, rng)
            population = np.concatenate([self._offspring(elite, size), immigrants])
        return rows, numbers, Scores(mean, spread)

    def _offspring(self, elite: Rows, count: int) -> Rows:
        """Children of the elite, whose first members are parents more often."""
        rng, packed = self._rng, self._packed
        mothers = rng.integers(len(elite), size=(2, count)).min(axis=0)
        children = elite[mothers]
        crossed = packed.crossover(children, elite[rng.integers(len(elite), size=count)], rng)
        children = np.where(rng.random((count, 1)) < 0.4, crossed, children)
        mutants = packed.mutate(children, rng)
        return np.where(rng.random((count, 1)) < 0.8, mutants, children)

    def _pick(self, rows: Rows, scores: Scores | None, taken: Numbers) -> list[Candidate]:
        """A batch: the best that differ in two choices or more, some random, then the rest."""
        surprises = int((self._rng.random(self._batch) < self._exploration).sum())
        guided = min(self._batch - surprises, len(rows))
        picked: list[int] = []
        near = np.zeros(len(rows), np.bool_)  # to one that was picked
        done = np.zeros(len(rows), np.bool_)
        if scores is None:
            orders = [np.arange(len(rows))]
        else:
            orders = [
                np.argsort(-scores.mean, kind="stable"),
                np.argsort(-(scores.mean + scores.spread), kind="stable"),
            ]
        for slot in range(guided):
            order = orders[slot % len(orders)]
            free = order[~done[order]]
            apart = free[~near[free]]
            choice = int(apart[0] if len(apart) else free[0])
            picked.append(choice)
            done[choice] = True
            near |= distances(rows, rows[choice]) <= 1
        batch = [self._packed.unpack(rows[choice]) for choice in picked]
        known = set(taken.tolist()) | {self._space.number(candidate) for candidate in batch}
        while len(batch) < self._batch:
            filler = unknown_candidate(self._packed, known, self._rng)
            if filler is None:
                break
            known.add(self._space.number(filler))
            batch.append(filler)
        return batch


def unknown_candidate(
    packed: PackedSpace, known: Container[int], rng: np.random.Generator
) -> Candidate | None:
    """A random candidate whose number is not in `known`, or None when there is none."""
    for number in packed.numbers(packed.sample(32, rng)).tolist():
        if number not in known:
            return packed.space.candidate(number)
    size = packed.size
    start = int(rng.integers(size))  # few are unknown: the next one from a random place on
    for step in range(size):
        number = (start + step) % size
        if number not in known:
            return packed.space.candidate(number)
    return None


def make_sampler(
    name: str,
    space: ScheduleSpace,
    score: Score,
    seed: int,
    *,
    exploration: float = 0.05,
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
        self._packed = PackedSpace(space)
        self._rng = np.random.default_rng(seed)
        self._distributions = distributions(space)
        self._study = optuna.create_study(sampler=sampler)
        self._known: set[int] = set()  # numbers of candidates
        self._first = list(dict.fromkeys(first))
        self._trials: dict[int, optuna.Trial] = {}

    @property
    def exhausted(self) -> bool:
        """Whether every candidate of the space has been proposed."""
        return len(self._known) >= self._space.size

    @property
    def headroom(self) -> float:
        """log2 of the speed-up that the cost model still thinks possible; infinity if unknown."""
        sampler = self._sampler
        return sampler.headroom if isinstance(sampler, EvolutionarySampler) else math.inf

    def propose_first(self, candidates: Iterable[Candidate]) -> None:
        """Propose these before any of the sampler's own, after those that already wait."""
        waiting = dict.fromkeys((*self._first, *candidates))
        self._first = [c for c in waiting if self._space.number(c) not in self._known]

    def add(self, candidate: Candidate, latency: float) -> None:
        """A result from elsewhere (an earlier run); infinity for a failure."""
        number = self._space.number(candidate)
        if number in self._known:
            return
        self._known.add(number)
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
            if self._space.number(candidate) not in self._known:
                self._study.enqueue_trial(to_parameters(self._space, candidate))
                return self._register(self._study.ask())
        for _ in range(DUPLICATE_ATTEMPTS):
            trial = self._study.ask()
            if self._space.number(self._suggest(trial)) not in self._known:
                return self._register(trial)
            self._study.tell(trial, state=TrialState.FAIL)
        unknown = unknown_candidate(self._packed, self._known, self._rng)
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
        self._known.add(self._space.number(candidate))
        self._trials[trial.number] = trial
        return Proposal(trial.number, candidate)
