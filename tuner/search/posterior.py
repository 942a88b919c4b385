"""Posterior: the expected times of the fastest schedules, corrected for selection bias.

The lowest of many noisy estimates is too low (the winner's curse), by an amount that depends on the
others: among near ties it is all luck, far ahead of the others none. So the true times near the
fast end get a common prior, the distribution under which the estimates are the likeliest, and each
schedule is expected at the mean of its posterior, given its own standard error. (Empirical Bayes by
non-parametric maximum likelihood: Jiang and Zhang, Annals of Statistics 2009; Tweedie's formula is
the case of one constant rate of that density.) A schedule that was measured often is then ranked
before a luckier one that was measured once, and the nominee's expectation is what its confirmation
finds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tunefarm.tuner.search.pairwise_estimates import Estimate, Logs, PairwiseEstimates

CONTENDERS = 24  # the fastest, of which beliefs are worked out
REACH = 20.0  # the fast end reaches so many usual deviations beyond the fastest
GRID = 80  # points of the prior on it
STEPS = 25  # of expectation and maximisation; more would put the prior on the estimates themselves
UNKNOWN = 0.02  # share of the prior that is spread evenly
SHARPEST = 0.003  # error below which estimates are not told apart
LEAST_DOUBT = 0.5  # of an estimate's deviation, which the prior, itself an estimate, leaves
TAIL_SHARE = 6  # the tail is the fastest sixth of what was measured
TAIL_LEAST, TAIL_MOST = 3, 12
USUAL_TAIL = 0.01
"""log time by which the fast end thins out e-fold, before any is known; worth one schedule."""
DRAWS = 512
WORTHWHILE_SHARE = 0.002
"""log time expected to be lost by not measuring again, from which that is worth a trial."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """Beliefs about the fastest schedules of a task, the one expected to be the fastest first.

    `means` are expected logs of time over the default's, `covariance` is that of their errors, and
    `deviation` the error of the nominee's estimate by itself. `tail` is the log time by which the
    fast end thins out e-fold.
    """

    schedules: tuple[str, ...]
    means: Logs  # [n]
    covariance: Logs  # [n, n]
    deviation: float
    tail: float

    @property
    def nominee(self) -> str:
        """The schedule expected to be the fastest."""
        return self.schedules[0]

    @property
    def expected(self) -> Estimate:
        """What a confirmation is expected to find for the nominee."""
        return Estimate(float(self.means[0]), self.deviation)

    @property
    def promise(self) -> float:
        """Share of the time that as many trials again are expected to gain by luck of the draw:
        the lowest of twice as many draws from an exponential tail is lower by log(2) of it."""
        return 1.0 - math.exp(-math.log(2.0) * self.tail)

    def probabilities(self, seed: int = 0) -> dict[str, float]:
        """How probably each is the fastest of them, by draws."""
        count = len(self.schedules)
        normal = np.random.default_rng(seed).standard_normal((DRAWS, count))
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        fastest = np.argmin(self.means + normal @ root.T, axis=1)
        shares = np.bincount(fastest, minlength=count) / DRAWS
        return dict(zip(self.schedules, shares.tolist(), strict=True))

    def again(self, *, without: Iterable[str] = (), worth: float = WORTHWHILE_SHARE) -> str | None:
        """The schedule that is worth measuring again, if any, except those of `without`.

        It is the nominee or the one that may be faster by most: whose place is known worse. (The
        expected opportunity cost of Chick and Inoue, Operations Research 2001.)
        """
        if len(self.schedules) < 2:
            return None
        variances = np.diag(self.covariance)
        apart = variances[0] + variances[1:] - 2.0 * self.covariance[0, 1:]
        costs = _expected_loss(self.means[1:] - self.means[0], np.sqrt(np.maximum(apart, 1e-12)))
        excluded = frozenset(without)
        for rival in np.argsort(-costs, kind="stable") + 1:
            if costs[rival - 1] < worth:
                break
            for number in (0, rival) if variances[0] > variances[rival] else (rival, 0):
                if self.schedules[number] not in excluded:
                    return self.schedules[number]
        return None


def posterior(pairwise: PairwiseEstimates, schedules: Iterable[str]) -> Posterior | None:
    """Beliefs about the fastest of these schedules; None if none of them has a place."""
    names = list(schedules)
    means, deviations = pairwise.estimates(names)
    placed = np.flatnonzero(np.isfinite(means))
    if not len(placed):
        return None
    ordered = placed[np.argsort(means[placed], kind="stable")]
    chosen = [names[number] for number in ordered[:CONTENDERS]]
    observed, covariance = pairwise.joint(chosen)
    prior = _Prior.of(means[ordered], deviations[ordered])
    believed, shrunk = prior.beliefs(observed, np.sqrt(np.diag(covariance)))
    order = np.argsort(believed, kind="stable")
    covariance = covariance * shrunk[:, None] * shrunk[None, :]
    return Posterior(
        tuple(chosen[number] for number in order),
        believed[order],
        covariance[np.ix_(order, order)],
        float(deviations[ordered[order[0]]]),
        _tail(believed[order], len(ordered)),
    )


@dataclass(frozen=True, slots=True)
class _Prior:
    """How the true places near the fast end are distributed: weights of points on a grid."""

    grid: Logs
    weights: Logs

    @staticmethod
    def of(means: Logs, deviations: Logs) -> _Prior:
        """The likeliest, by expectation and maximisation from an even one; `means` ascend."""
        usual = float(np.median(np.maximum(deviations[: 4 * CONTENDERS], SHARPEST)))
        end = float(means[0]) + REACH * usual
        grid = np.linspace(float(means[0]) - 2.0 * usual, end, GRID)
        near = means <= end
        likelihoods = _densities(means[near], deviations[near], grid)
        weights = np.full(GRID, 1.0 / GRID)
        for _ in range(STEPS):
            weights = weights * ((1.0 / (likelihoods @ weights)) @ likelihoods) / len(likelihoods)
        return _Prior(grid, (1.0 - UNKNOWN) * weights + UNKNOWN / GRID)

    def beliefs(self, observed: Logs, deviations: Logs) -> tuple[Logs, Logs]:
        """Expected places, and by what factor the deviations shrink. Beyond the fast end, where
        nothing is known of the slower ones, an estimate is believed as it is."""
        beyond = observed > self.grid[-1] - 2.0 * deviations
        joint = _densities(observed, deviations, self.grid) * self.weights
        joint /= joint.sum(axis=1, keepdims=True)
        means = joint @ self.grid
        variances = np.maximum(joint @ self.grid**2 - means**2, 0.0)
        shrunk = np.sqrt(variances) / np.maximum(deviations, SHARPEST)
        return (
            np.where(beyond, observed, means),
            np.where(beyond, 1.0, np.clip(shrunk, LEAST_DOUBT, 1.0)),
        )


def _densities(means: Logs, deviations: Logs, grid: Logs) -> Logs:
    """Normal densities [n, grid], but for a factor common to all; nowhere quite 0."""
    sharp = np.maximum(deviations, SHARPEST)[:, None]
    found: Logs = np.exp(-0.5 * ((means[:, None] - grid) / sharp) ** 2) / sharp + 1e-12
    return found


def _tail(believed: Logs, measured: int) -> float:
    """How far the fast end of sorted places thins out e-fold, of so many that were measured.

    The mean excess of an exponential tail (Hill's estimator of the logs), with a little of what is
    usual.
    """
    count = min(TAIL_MOST, max(TAIL_LEAST, measured // TAIL_SHARE), len(believed) - 1)
    total = float((believed[count] - believed[:count]).sum())
    return (USUAL_TAIL + total) / (1.0 + count)


def _expected_loss(gaps: Logs, deviations: Logs) -> Logs:
    """E[max(0, nominee - rival)] for normal differences with these means (rival - nominee)."""
    z = gaps / deviations
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    below = np.array([0.5 * math.erfc(float(value) / math.sqrt(2.0)) for value in z])
    loss: Logs = deviations * density - gaps * below
    return loss
