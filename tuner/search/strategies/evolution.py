"""Evolutionary search over the space; without a score, children of the fastest as they come."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from compiler.schedule.space import Candidate
from tuner.model.cost_model import Scores
from tuner.model.packed_space import Numbers, PackedSpace, Rows, distances
from tuner.search.strategy import Score, SearchProblem

ENUMERATED = 2048  # spaces up to this size are ranked whole instead of searched
GENERATIONS = 2


def make_strategy(problem: SearchProblem) -> Evolution:
    """See `tuner.search.strategy`."""
    return Evolution(problem, None)


class Evolution:
    """Evolutionary search over the space, ranked by a score, proposed in diverse batches.

    Parents are the fastest measured candidates and random ones; children come from mutation and
    crossover. Of all candidates that were met and never taken the batch gets those of the highest
    score, as far as they differ from each other: every other one by its mean score, the ones
    between by mean and spread, which tries what the model is not sure of. A share of it is random.
    Without a score the children of the fastest measured candidates are proposed as they come.
    """

    def __init__(self, problem: SearchProblem, score: Score | None) -> None:
        self.headroom = math.inf
        self._space = problem.space
        self._packed = PackedSpace(problem.space)
        self._score = score
        self._rng = np.random.default_rng(problem.seed)
        self._exploration = problem.exploration
        self._population = max(8, problem.pool // GENERATIONS)
        self._taken: set[int] = set()  # numbers of candidates
        self._measured: list[tuple[float, int]] = []  # seconds, number of the candidate

    def take(self, candidate: Candidate) -> None:
        """See `Strategy.take`."""
        self._taken.add(self._space.number(candidate))

    def learn(self, candidate: Candidate, latency: float | None) -> None:
        """See `Strategy.learn`."""
        if latency is not None and latency < math.inf:
            self._measured.append((latency, self._space.number(candidate)))

    def propose(self, count: int) -> Iterator[Candidate]:
        """See `Strategy.propose`; the whole batch is chosen when the first one is asked for."""
        packed = self._packed
        taken = np.array(sorted(self._taken), np.int64)
        best = np.array([number for _, number in sorted(self._measured)], np.int64)
        parents = packed.rows(best)
        if self._score is None:
            yield from self._pick(self._children(parents, taken, count), None, count)
            return
        if packed.size <= ENUMERATED:
            numbers = np.arange(packed.size)
            rows = packed.rows(numbers)
            scores = self._score(rows)
        else:
            rows, numbers, scores = self._evolve(parents, self._score)
        yield from self._pick(*self._unknown(rows, numbers, scores, taken), count)

    def _children(self, parents: Rows, taken: Numbers, count: int) -> Rows:
        """Unknown children of the fastest, in random order; none before there are two parents."""
        elite = parents[: max(4, len(parents) // 8)]
        if len(elite) < 2:
            return parents[:0]
        rows = self._offspring(elite, 8 * count)
        _, first = np.unique(self._packed.numbers(rows), return_index=True)
        rows = rows[np.sort(first)]
        return rows[~np.isin(self._packed.numbers(rows), taken)]

    def _unknown(
        self, rows: Rows, numbers: Numbers, scores: Scores, taken: Numbers
    ) -> tuple[Rows, Scores]:
        """The candidates that were never taken; by how much they may be better, as headroom."""
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
        for generation in range(GENERATIONS):
            found, first = np.unique(packed.numbers(population), return_index=True)
            new = ~np.isin(found, numbers)
            if new.any():
                fresh = population[first[new]]
                scores = score(fresh)
                rows = np.concatenate([rows, fresh])
                numbers = np.concatenate([numbers, found[new]])
                mean = np.concatenate([mean, scores.mean])
                spread = np.concatenate([spread, scores.spread])
            if generation == GENERATIONS - 1:
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

    def _pick(self, rows: Rows, scores: Scores | None, count: int) -> list[Candidate]:
        """A batch: the best that differ in two choices or more, some random, then the rest."""
        surprises = int((self._rng.random(count) < self._exploration).sum())
        guided = min(count - surprises, len(rows))
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
        known = self._taken | set(map(self._space.number, batch))
        while len(batch) < count:
            filler = self._packed.unknown(known, self._rng)
            if filler is None:
                break
            known.add(self._space.number(filler))
            batch.append(filler)
        return batch
