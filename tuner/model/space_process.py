"""What is believed of the candidates of one task, from the few that were measured there.

A Gaussian process (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006,
chapters 2 and 5) over log2 of throughput. Its mean is the expected score; candidates are alike
as far as their choices are (products over the choices, so that single values count as well as
combinations of them) and as far as their loop nests are (by `NEST_FEATURES`). A few dozen
measurements say more of one task than trees learn from them, and the errors are honest: little is
believed of what nothing like it was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tunefarm.compiler.schedule.space import Choice
from tunefarm.tuner.model.cost_model import expected_scores
from tunefarm.tuner.model.features import FIRST_NEST, NEST_FEATURES, FeatureMatrix
from tunefarm.tuner.model.packed_space import PackedSpace, Rows

Describe: TypeAlias = Callable[[Rows], FeatureMatrix]
Values: TypeAlias = npt.NDArray[np.float64]

INTERACTION = 1.0  # weight of one more choice that agrees, over that of the rest
SAME_VALUE = 0.5  # share of a choice's value that says nothing about the values next to it
NEST_RANGE = 0.7  # usual deviations of a nest's features, over which nests are alike
NEST_SHARES = (0.2, 0.7)  # what nests say, the rest being said by choices: which one is likelier
NUGGETS = (0.01, 0.1)  # share of the variance that is each candidate's own, and noise
USUAL_DEVIATION = 0.25  # of log2 of throughput from the expected score
USUAL_COUNT = 4  # measurements that this knowledge is worth
FAILURE_LABEL = -2.0  # of a candidate that fails, against the best
LOWEST = -3.0  # of one that does not: how much slower still does not matter
TYPICAL_ROWS = 256  # from which a feature's usual deviation is taken
LEAST_VARIANCE = 1e-9
SHARED_FROM = 1 << 18  # multiplications from which a BLAS shares a product among threads


class Likeness:
    """How alike candidates of one space are, between 0 and 1."""

    def __init__(self, packed: PackedSpace, describe: Describe | None) -> None:
        self._describe = describe
        self._tables = [
            [_alike(choice) for choice in sketch.choices] for sketch in packed.space.sketches
        ]
        self._middle = self._scale = np.zeros(0)
        if describe is not None:
            typical = _nests(describe(packed.sample(TYPICAL_ROWS, np.random.default_rng(0))))
            deviations = typical.std(axis=0)
            self._middle = typical.mean(axis=0)
            self._scale = np.where(deviations > 1e-6, 1.0 / np.maximum(deviations, 1e-6), 0.0)

    def estimate(self, rows: Rows) -> Values:
        """What is believed of the rows before anything is measured: log2 of throughput."""
        if self._describe is None:
            return np.zeros(len(rows))
        return np.asarray(expected_scores(self._describe(rows)), np.float64)

    def of_nests(self, rows: Rows, others: Rows) -> Values:
        """By their loop nests; shape [len(rows), len(others)]."""
        if self._describe is None:
            return np.ones((len(rows), len(others)))
        a, b = self._points(rows), self._points(others)
        squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2.0 * product(a, b.T)
        known = max(1, int(np.count_nonzero(self._scale)))
        return np.asarray(np.exp(-np.maximum(squares, 0.0) / (2.0 * known * NEST_RANGE**2)))

    def of_choices(self, rows: Rows, others: Rows) -> Values:
        """By their choices, 0 where the sketches differ; shape [len(rows), len(others)]."""
        result = np.zeros((len(rows), len(others)))
        for sketch in np.unique(rows[:, 0]).tolist():
            here = np.flatnonzero(rows[:, 0] == sketch)
            there = np.flatnonzero(others[:, 0] == sketch)
            product = np.ones((len(here), len(there)))
            for i, table in enumerate(self._tables[sketch], 1):
                if len(table) > 1:
                    product *= table[rows[here, i]][:, others[there, i]]
            result[np.ix_(here, there)] = product
        return result

    def _points(self, rows: Rows) -> Values:
        assert self._describe is not None
        return (_nests(self._describe(rows)) - self._middle) * self._scale


def _nests(features: FeatureMatrix) -> Values:
    return np.nan_to_num(
        features[:, FIRST_NEST : FIRST_NEST + len(NEST_FEATURES)].astype(np.float64)
    )


def _alike(choice: Choice) -> Values:
    """How alike the values of a choice are, over what equal ones are; shape [values, values]."""
    numbers = np.array([choice.numbers(value) for value in choice.values], np.float64)
    logs = np.log2(1.0 + np.abs(np.nan_to_num(numbers)))
    apart = np.abs(logs[:, None] - logs[None]).sum(axis=-1)
    alike = (1.0 - SAME_VALUE) * np.exp(-apart) + SAME_VALUE * np.eye(len(logs))
    return np.asarray((1.0 + INTERACTION * alike) / (1.0 + INTERACTION))


@dataclass(frozen=True, slots=True)
class _Fit:
    """A process that has been told what was measured."""

    nest_share: float
    nugget: float
    inverse: Values  # of the lower triangle of the measured ones' covariance, [n, n]
    pull: Values  # what each of those does to the mean of one like it, [n]
    level: float  # mean of what was measured over the estimate
    variance: float
    likelihood: float


class SpaceProcess:
    """Beliefs about one task's candidates, as log2 of throughput up to a constant."""

    def __init__(self, packed: PackedSpace, describe: Describe | None) -> None:
        """`describe` gives the features of rows; None: choices say all."""
        self._likeness = Likeness(packed, describe)
        self._rows: Rows = packed.sample(0, np.random.default_rng(0))
        self._fit = _Fit(NEST_SHARES[0], NUGGETS[0], np.eye(0), np.zeros(0), 0.0, 1.0, 0.0)

    def tell(self, rows: Rows, seconds: Values) -> None:
        """Believe these measurements, and no others; infinity is a failure."""
        works = np.isfinite(seconds)
        labels = np.full(len(rows), FAILURE_LABEL)
        best = 0.0
        if works.any():
            logs = -np.log2(seconds[works])
            best = float(logs.max())
            labels[works] = np.maximum(logs - best, LOWEST)
        labels += best
        self._rows = rows
        residuals = labels - self._likeness.estimate(rows)
        level = None if works.any() else 0.0
        nests = self._likeness.of_nests(rows, rows)
        choices = self._likeness.of_choices(rows, rows)
        fits = (
            _fit(share * nests + (1.0 - share) * choices, residuals, share, nugget, level)
            for share in NEST_SHARES
            for nugget in NUGGETS
        )
        self._fit = max(fits, key=lambda fit: fit.likelihood)

    def outlook(self, rows: Rows) -> Outlook:
        """What is believed of these."""
        fit = self._fit
        shared = self._covariance(self._rows, rows)
        both = product(np.concatenate([fit.inverse, fit.pull[None]]), shared)
        known, pulled = both[:-1], both[-1]
        mean = self._likeness.estimate(rows) + fit.level + pulled
        left = np.maximum(1.0 - (known**2).sum(axis=0), LEAST_VARIANCE)
        return Outlook(rows, mean, left, known, fit.variance, fit.nugget, self._covariance)

    def _covariance(self, rows: Rows, others: Rows) -> Values:
        share = self._fit.nest_share
        nests = self._likeness.of_nests(rows, others)
        return share * nests + (1.0 - share) * self._likeness.of_choices(rows, others)


def _fit(
    covariance: Values, residuals: Values, share: float, nugget: float, level: float | None
) -> _Fit:
    """The process with these parameters; `level` None: what fits best."""
    count = len(residuals)
    lower = np.linalg.cholesky(covariance + nugget * np.eye(count))
    inverse = np.linalg.inv(lower)
    ones, values = inverse.sum(axis=1), (inverse * residuals).sum(axis=1)
    if level is None:
        level = float(ones @ values / (ones @ ones))
    independent = values - level * ones
    pull = (inverse * independent[:, None]).sum(axis=0)
    known = USUAL_COUNT * USUAL_DEVIATION**2 + float(independent @ independent)
    variance = known / (USUAL_COUNT + count)
    likelihood = -0.5 * (USUAL_COUNT + count) * math.log(variance) - float(
        np.log(np.diag(lower)).sum()
    )
    return _Fit(share, nugget, inverse, pull, level, variance, likelihood)


class Outlook:
    """Beliefs about some candidates: `mean` and `deviation`, shape [n] each."""

    def __init__(
        self,
        rows: Rows,
        mean: Values,
        left: Values,
        known: Values,
        variance: float,
        nugget: float,
        covariance: Callable[[Rows, Rows], Values],
    ) -> None:
        self.mean = mean
        self._rows = rows
        self._left = left  # variance, over that of a candidate of which nothing is known
        self._known = known
        self._variance = variance
        self._nugget = nugget
        self._covariance = covariance

    @property
    def deviation(self) -> Values:
        """Standard deviation of what each candidate's throughput may be."""
        return np.asarray(np.sqrt(self._variance * self._left))

    @property
    def surprise(self) -> Values:
        """Standard deviation of what measuring each of them may show: its own ways included."""
        return np.asarray(np.sqrt(self._variance * (self._left + self._nugget)))

    def suppose(self, index: int) -> None:
        """As if this one had been measured, and were what is expected of it."""
        shared = self._covariance(self._rows[index : index + 1], self._rows)[0]
        left = shared - np.einsum("i,ij->j", self._known[:, index], self._known)
        row = left / math.sqrt(self._left[index] + self._nugget)
        self._known = np.concatenate([self._known, row[None]])
        self._left = np.maximum(self._left - row**2, LEAST_VARIANCE)

    def of(self, indices: npt.NDArray[np.int64]) -> Outlook:
        """The outlook of some of them."""
        return Outlook(
            self._rows[indices],
            self.mean[indices],
            self._left[indices],
            self._known[:, indices],
            self._variance,
            self._nugget,
            self._covariance,
        )

    def joint(self, indices: npt.NDArray[np.int64]) -> Values:
        """Covariance of some of them; shape [len(indices), len(indices)]."""
        rows, known = self._rows[indices], self._known[:, indices]
        return self._variance * (self._covariance(rows, rows) - product(known.T, known))


def product(a: Values, b: Values) -> Values:
    """a @ b, in pieces that no BLAS shares among threads, which would be on cores that time."""
    step = max(1, SHARED_FROM // max(1, a.size))
    pieces = [a @ b[:, begin : begin + step] for begin in range(0, b.shape[1], step)]
    return np.concatenate([np.zeros((len(a), 0)), *pieces], axis=1)


def expected_improvement(mean: Values, deviation: Values, best: float) -> Values:
    """How much each is expected to be above `best`, counting 0 where it is below; shape [n].

    (Jones, Schonlau and Welch, J. of Global Optimization 13, 1998, equation 15.)
    """
    score = (mean - best) / deviation
    density = np.exp(-0.5 * score**2) / math.sqrt(2.0 * math.pi)
    return np.asarray(deviation * (score * _normal(score) + density))


def _normal(score: Values) -> Values:
    """The standard normal distribution, to 1e-7 (Abramowitz and Stegun, 26.2.17)."""
    t = 1.0 / (1.0 + 0.2316419 * np.abs(score))
    series = np.zeros_like(t)
    for factor in (1.330274429, -1.821255978, 1.781477937, -0.356563782, 0.319381530):
        series = t * (factor + series)
    tail = series * np.exp(-0.5 * score**2) / math.sqrt(2.0 * math.pi)
    return np.asarray(np.where(score > 0, 1.0 - tail, tail))
