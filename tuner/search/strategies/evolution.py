"""Evolution: candidates by an evolutionary search, batches by expected improvement.

Candidates come from mutation and crossover of the fastest measured ones. They are ranked by two
predictions, the cost model's and a Gaussian process over the task's own measurements, weighted by
past accuracy. A batch is chosen greedily by expected improvement, each candidate as if the ones
before it had been measured (Ginsbourger, Le Riche and Carraro, 2010). Without a cost model the
children of the fastest are proposed as they come.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.schedule.space import Candidate
from tunefarm.tuner.model.packed_space import Numbers, PackedSpace, Rows
from tunefarm.tuner.model.space_process import (
    Outlook,
    SpaceProcess,
    Values,
    expected_improvement,
    product,
)
from tunefarm.tuner.search.strategy import Score, SearchProblem

# Forecasts: what was predicted of candidates when they were proposed, against what they came to.
#
# Residuals of this kind (prequential ones: Dawid, J. Royal Stat. Soc. A 147, 1984) are honest: no
# prediction knew the measurement, and it was made of just such candidates as are proposed, which
# are those that look better than they are.


LAST = 64  # forecasts that count
WORST = 1.0  # residual, in log2: how much further off does not matter
USUAL_COUNT = 8  # forecasts that this is worth:
USUAL_PROCESS, USUAL_MODEL = 0.2, 0.3  # residuals of the process and of the model, in log2
LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0  # of the deviation
MEMORY = 0.8  # of what batches promised, from one to the next
TRUST = 0.05  # gain that is taken as promised and kept before there is any, in log2


class Forecast(NamedTuple):
    """Log2 of throughput by the process and by the model, by both together, and the deviation."""

    process: float
    model: float
    together: float
    deviation: float


@dataclass(slots=True)
class Forecasts:
    """Of one task."""

    _open: dict[int, Forecast] = field(default_factory=dict)  # by number of the candidate
    _closed: list[tuple[Forecast, float]] = field(default_factory=list)  # and what was measured
    _promised: float = 0.0  # gain expected of the last batches
    _gained: float = 0.0

    def expect(self, number: int, forecast: Forecast) -> None:
        """The candidate with this number is to be measured."""
        self._open[number] = forecast

    def learn(self, number: int, label: float) -> None:
        """It came to this; only the first time counts, and not if it was not expected."""
        forecast = self._open.pop(number, None)
        if forecast is not None:
            self._closed = [*self._closed[1 - LAST :], (forecast, label)]

    def promise(self, gain: float) -> None:
        """A batch is proposed that is expected to gain so much (log2 of the speed-up)."""
        self._promised = MEMORY * self._promised + gain

    def gain(self, gain: float) -> None:
        """What was gained since the last batch was proposed."""
        self._gained = MEMORY * self._gained + gain

    @property
    def kept(self) -> float:
        """The share of the promised gains that came true, at most 1."""
        return min(1.0, (self._gained + TRUST) / (self._promised + TRUST))

    @property
    def model_share(self) -> float:
        """The model's share in the two together: by the inverse of the squared residuals."""
        process = USUAL_COUNT * USUAL_PROCESS**2
        model = USUAL_COUNT * USUAL_MODEL**2
        for forecast, label in self._closed:
            process += _square(forecast.process - label)
            model += _square(forecast.model - label)
        return process / (process + model)

    @property
    def factor(self) -> float:
        """What the deviations are to be multiplied by, to be those of the residuals."""
        squares = float(USUAL_COUNT)
        for forecast, label in self._closed:
            squares += _square(forecast.together - label) / forecast.deviation**2
        factor = math.sqrt(squares / (USUAL_COUNT + len(self._closed)))
        return min(max(factor, LEAST_FACTOR), MOST_FACTOR)


def _square(residual: float) -> float:
    return min(residual**2, WORST**2)


ENUMERATED = 2048  # spaces up to this size are ranked whole instead of searched
GENERATIONS = 2
FASTEST, LAST, FAILED = 48, 32, 16
"""Measurements that a task's own beliefs are made of; of more than these together a BLAS would
share the work among threads, which would sit on cores that time."""
FASTEST_SEEDS = 4  # of the fastest, whose neighbours are all scored
LIKELY = 256  # candidates of which a batch is made
PROMISING = 48  # candidates of which any may be the best of what was not taken
DRAWS = 256  # of what these may take
ROUNDING = 1e-6  # of a covariance


def make_strategy(problem: SearchProblem) -> Evolution:
    """See `tunefarm.tuner.search.strategy`."""
    return Evolution(problem, None)


class _View(NamedTuple):
    """What is believed of some candidates."""

    outlook: Outlook
    model: Values  # the cost model's scores, brought to the level of the outlook
    mean: Values  # of both together

    def of(self, indices: npt.NDArray[np.int64]) -> _View:
        """The view of some of them."""
        return _View(self.outlook.of(indices), self.model[indices], self.mean[indices])


class Evolution:
    """Evolutionary search over the space, ranked by a score, proposed in batches.

    Parents are the fastest measured candidates and random ones; children come from mutation and
    crossover. What the cost model says of them and what the task's own measurements make believe
    (`SpaceProcess`) count by how right each has been so far (`Forecasts`). Of all candidates that
    were met and never taken the batch gets those from which the largest improvement is expected,
    each as if those before it had been measured already: so the first batches cover the space, and
    none holds many of a kind. A share of it is random. Without a score the children of the fastest
    measured candidates are proposed as they come.
    """

    def __init__(self, problem: SearchProblem, score: Score | None) -> None:
        self.headroom = math.inf
        self._space = problem.space
        self._packed = PackedSpace(problem.space)
        self._score = score
        self._process = SpaceProcess(self._packed, problem.features)
        self._forecasts = Forecasts()
        self._rng = np.random.default_rng(problem.seed)
        self._exploration = problem.exploration
        self._population = max(8, problem.pool // GENERATIONS)
        self._taken: set[int] = set()  # numbers of candidates
        self._measured: dict[int, float] = {}  # seconds by number of the candidate
        self._failed: set[int] = set()  # numbers of candidates
        self._incumbent: float | None = None  # what the best was believed to be, the last time

    def take(self, candidate: Candidate) -> None:
        """See `Strategy.take`."""
        self._taken.add(self._space.number(candidate))

    def learn(self, candidate: Candidate, latency: float | None) -> None:
        """See `Strategy.learn`."""
        number = self._space.number(candidate)
        self._measured.pop(number, None)
        self._failed.discard(number)
        if latency is None:
            return
        if latency == math.inf:
            self._failed.add(number)
            return
        self._measured[number] = latency
        self._forecasts.learn(number, -math.log2(latency))

    def propose(self, count: int) -> Iterator[Candidate]:
        """See `Strategy.propose`; the whole batch is chosen when the first one is asked for."""
        packed = self._packed
        taken = np.array(sorted(self._taken), np.int64)
        best = np.array(sorted(self._measured, key=self._fastest_first), np.int64)
        parents = packed.rows(best)
        if self._score is None:
            yield from self._filled(self._children(parents, taken, count)[:count], count)
            return
        view_of, incumbent = self._beliefs(self._score)
        if packed.size <= ENUMERATED:
            rows = packed.rows(np.arange(packed.size))
        else:
            rows = self._evolve(parents, lambda rows: _hope(view_of(rows)))
        rows = rows[~np.isin(packed.numbers(rows), taken)]
        if not len(rows):
            self.headroom = -math.inf
            yield from self._filled(rows, count)
            return
        view = view_of(rows)
        likely = np.argsort(-_hope(view), kind="stable")[:LIKELY]
        view, rows = view.of(likely), rows[likely]
        if incumbent is None:
            incumbent = float(view.mean.max())
        elif self._incumbent is not None:
            self._forecasts.gain(max(0.0, incumbent - self._incumbent))
        self._incumbent = incumbent
        promising = np.argsort(-_hope(view), kind="stable")[:PROMISING]
        self.headroom = self._forecasts.kept * self._expected_gain(view.of(promising), incumbent)
        picked = self._pick(view.of(np.arange(len(rows))), rows, incumbent, count)
        self._forecasts.promise(self._expected_gain(view.of(picked), incumbent))
        yield from self._filled(rows[picked], count)

    def _fastest_first(self, number: int) -> tuple[float, int]:
        return self._measured[number], number

    def _beliefs(self, score: Score) -> tuple[Callable[[Rows], _View], float | None]:
        """What is believed of any rows, and of the best that was measured."""
        fastest = sorted(self._measured, key=self._fastest_first)[:FASTEST]
        last = [number for number in self._measured if number not in set(fastest)]
        failed = sorted(self._failed)[-FAILED:]
        measured = [*fastest, *last[-LAST:]]
        known = self._packed.rows(np.array(measured + failed, np.int64))
        seconds = [self._measured[number] for number in measured] + [math.inf] * len(failed)
        self._process.tell(known, np.array(seconds))
        outlook = self._process.outlook(known)
        level: float | None = None
        if len(known):
            level = float(np.median(outlook.mean - score(known).mean))
        share = self._forecasts.model_share

        def view_of(rows: Rows) -> _View:
            outlook = self._process.outlook(rows)
            scores = np.asarray(score(rows).mean, np.float64)
            here = float(np.median(outlook.mean - scores)) if level is None else level
            model = scores + here
            return _View(outlook, model, (1.0 - share) * outlook.mean + share * model)

        return view_of, float(outlook.mean[: len(measured)].max()) if measured else None

    def _children(self, parents: Rows, taken: Numbers, count: int) -> Rows:
        """Unknown children of the fastest, in random order; none before there are two parents."""
        elite = parents[: max(4, len(parents) // 8)]
        if len(elite) < 2:
            return parents[:0]
        rows = self._offspring(elite, 8 * count)
        _, first = np.unique(self._packed.numbers(rows), return_index=True)
        rows = rows[np.sort(first)]
        return rows[~np.isin(self._packed.numbers(rows), taken)]

    def _evolve(self, parents: Rows, hope: Callable[[Rows], Values]) -> Rows:
        """Candidates met during the search, each once."""
        packed, rng, size = self._packed, self._rng, self._population
        elite = parents[: size // 4]
        near = [packed.neighbours(row) for row in parents[:FASTEST_SEEDS]]
        children = self._offspring(elite, size // 2) if len(elite) > 1 else elite
        fresh = packed.sample(max(size // 4, size - len(elite) - len(children)), rng)
        rows = self._once(np.concatenate([elite, *near, children, fresh]))
        for _ in range(GENERATIONS - 1):
            elite = rows[np.argsort(-hope(rows), kind="stable")[: size // 4]]
            immigrants = packed.sample(size // 8, rng)
            rows = self._once(np.concatenate([rows, self._offspring(elite, size), immigrants]))
        return rows

    def _once(self, rows: Rows) -> Rows:
        return rows[np.unique(self._packed.numbers(rows), return_index=True)[1]]

    def _offspring(self, elite: Rows, count: int) -> Rows:
        """Children of the elite, whose first members are parents more often."""
        rng, packed = self._rng, self._packed
        mothers = rng.integers(len(elite), size=(2, count)).min(axis=0)
        children = elite[mothers]
        crossed = packed.crossover(children, elite[rng.integers(len(elite), size=count)], rng)
        children = np.where(rng.random((count, 1)) < 0.4, crossed, children)
        mutants = packed.mutate(children, rng)
        return np.where(rng.random((count, 1)) < 0.8, mutants, children)

    def _expected_gain(self, view: _View, incumbent: float) -> float:
        """By how much the best of these is expected to be above the incumbent."""
        count = len(view.mean)
        covariance = view.outlook.joint(np.arange(count))
        covariance += ROUNDING * np.trace(covariance) * np.eye(count)
        spread = self._forecasts.factor * np.asarray(np.linalg.cholesky(covariance), np.float64)
        draws = np.random.default_rng(0).standard_normal((DRAWS, count))
        gains = view.mean + product(draws, spread.T) - incumbent
        return float(gains.max(axis=1, initial=0.0).mean())

    def _pick(self, view: _View, rows: Rows, incumbent: float, count: int) -> npt.NDArray[np.int64]:
        """Those of which the most is expected, fewer by the share that is random."""
        surprises = int((self._rng.random(count) < self._exploration).sum())
        free = np.ones(len(rows), np.bool_)
        numbers = self._packed.numbers(rows)
        factor = self._forecasts.factor
        picked: list[int] = []
        for _ in range(min(count - surprises, len(rows))):
            deviation = factor * view.outlook.deviation
            expected = expected_improvement(view.mean, deviation, incumbent)
            choice = int(np.where(free, expected, -1.0).argmax())
            forecast = Forecast(
                float(view.outlook.mean[choice]),
                float(view.model[choice]),
                float(view.mean[choice]),
                float(view.outlook.surprise[choice]),
            )
            self._forecasts.expect(int(numbers[choice]), forecast)
            view.outlook.suppose(choice)
            free[choice] = False
            picked.append(choice)
        return np.array(picked, np.int64)

    def _filled(self, rows: Rows, count: int) -> list[Candidate]:
        """The batch of these, filled up with random ones."""
        batch = [self._packed.unpack(row) for row in rows]
        known = self._taken | set(map(self._space.number, batch))
        while len(batch) < count:
            filler = self._packed.unknown(known, self._rng)
            if filler is None:
                break
            known.add(self._space.number(filler))
            batch.append(filler)
        return batch


def _hope(view: _View) -> Values:
    return view.mean + view.outlook.deviation
