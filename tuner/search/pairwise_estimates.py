"""PairwiseEstimates: where the schedules of a task stand, from all their pairs jointly.

A pair tells how much longer one schedule takes than another. All pairs of a task make a graph, in
which a schedule's place is the weighted least-squares solution over every path to the default
schedule, the root, that stands at 0; its error follows from the same equations, so that the error
of a chain of references is carried along. (Gauss's adjustment of a levelling network: heights from
differences of heights.)

Most schedules are measured once. They hang on their reference and change nothing for the others:
the equations are solved only for those that were references or were measured in two ways.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tunefarm.measure.compare import BETWEEN_RUNS as BETWEEN_RUNS
from tunefarm.measure.compare import LogRatio

Logs = npt.NDArray[np.float64]


class Estimate(NamedTuple):
    """log of a schedule's time over the default's, with its standard error."""

    mean: float
    deviation: float


@dataclass(slots=True)
class _Mean:
    """A mean of independent values, each weighted by the inverse of its variance."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float, variance: float) -> None:
        self.total += value / variance
        self.weight += 1.0 / variance

    @property
    def mean(self) -> float:
        return self.total / self.weight

    @property
    def variance(self) -> float:
        return 1.0 / self.weight


class PairwiseEstimates:
    """Where the schedules of one task stand, by their hashes.

    `root` stands at 0 by definition. Without one, and without anything known absolutely, nothing
    has a place: pairs alone say only how schedules stand to each other.
    """

    def __init__(self, root: str | None = None) -> None:
        self._root = root
        self._pairs: dict[str, dict[str, _Mean]] = {}  # log(time of the first / of the second)
        self._known: dict[str, _Mean] = {}
        self._references: set[str] = set()
        self._solved = False
        self._index: dict[str, int] = {}  # of the core's placed schedules in what follows
        self._places: Logs = np.zeros(0)
        self._covariance: Logs = np.zeros((0, 0))

    @property
    def root(self) -> str | None:
        """The schedule that stands at 0."""
        return self._root

    @root.setter
    def root(self, schedule: str) -> None:
        """Make this the schedule that all others are compared with."""
        self._root = schedule
        self._solved = False

    def add(self, schedule: str, reference: str, pair: LogRatio) -> None:
        """A schedule was measured next to a reference; one next to itself tells nothing."""
        if schedule == reference:
            return
        hangs = schedule not in self._pairs and schedule not in self._known
        variance = pair.deviation**2 + BETWEEN_RUNS**2
        self._side(schedule, reference).add(pair.mean, variance)
        self._side(reference, schedule).add(-pair.mean, variance)
        if not hangs or schedule == self._root or reference not in self._references:
            self._references.add(reference)
            self._solved = False

    def add_known(self, schedule: str, relative: float, deviation: float) -> None:
        """The log of a schedule's time over the default's, from elsewhere, with its error."""
        self._known.setdefault(schedule, _Mean()).add(relative, deviation**2)
        if schedule in self._pairs:
            self._solved = False

    def estimate(self, schedule: str) -> Estimate | None:
        """Where a schedule stands; None if nothing connects it with the root or what is known."""
        place = self._place(schedule)
        if place is None:
            return None
        core, mean, variance = place
        if core is not None:
            mean += float(self._places[core])
            variance += float(self._covariance[core, core])
        return Estimate(mean, math.sqrt(variance))

    def estimates(self, schedules: Iterable[str]) -> tuple[Logs, Logs]:
        """Means and deviations of many; NaN and infinity for those without a place."""
        nowhere = Estimate(math.nan, math.inf)
        found = [self.estimate(schedule) or nowhere for schedule in schedules]
        both = np.array(found, np.float64).reshape(len(found), 2)
        return both[:, 0], both[:, 1]

    def joint(self, schedules: Sequence[str]) -> tuple[Logs, Logs]:
        """Means [n] and covariances [n, n] of schedules that have a place, each named once."""
        places = [self._place(schedule) for schedule in schedules]
        assert None not in places, "without a place there is no estimate"
        known = [place for place in places if place is not None]
        means = np.array([mean for _, mean, _ in known])
        covariance = np.diag([variance for _, _, variance in known])
        rows = np.array([row for row, (core, _, _) in enumerate(known) if core is not None], int)
        cores = np.array([core for core, _, _ in known if core is not None], int)
        means[rows] += self._places[cores]
        covariance[np.ix_(rows, rows)] += self._covariance[np.ix_(cores, cores)]
        return means, covariance

    def difference(self, schedule: str, other: str) -> Estimate | None:
        """log(time of a schedule / of another one); what both hang on has no part in its error."""
        if self.estimate(schedule) is None or self.estimate(other) is None:
            return None
        if schedule == other:
            return Estimate(0.0, 0.0)
        means, covariance = self.joint((schedule, other))
        variance = covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1]
        return Estimate(float(means[0] - means[1]), math.sqrt(max(0.0, float(variance))))

    def _side(self, schedule: str, other: str) -> _Mean:
        return self._pairs.setdefault(schedule, {}).setdefault(other, _Mean())

    def _place(self, schedule: str) -> tuple[int | None, float, float] | None:
        """Which one of the core a schedule is or hangs on (None: on the root), how far from it,
        and the variance of that."""
        self._solve()
        if schedule == self._root:
            return None, 0.0, 0.0
        core = self._index.get(schedule)
        if core is not None:
            return core, 0.0, 0.0
        if schedule not in self._pairs:
            known = self._known.get(schedule)
            return None if known is None else (None, known.mean, known.variance)
        if self._in_core(schedule):
            return None  # but not placed
        ((reference, pair),) = self._pairs[schedule].items()
        if reference == self._root:
            return None, pair.mean, pair.variance
        core = self._index.get(reference)
        return None if core is None else (core, pair.mean, pair.variance)

    def _in_core(self, schedule: str) -> bool:
        ties = len(self._pairs.get(schedule, ())) + (schedule in self._known)
        return schedule in self._references or ties > 1

    def _solve(self) -> None:
        """Place the core, if it has changed: the normal equations, without the root's."""
        if self._solved:
            return
        self._solved = True
        core = [s for s in self._placed() if s != self._root]
        self._index = index = {schedule: number for number, schedule in enumerate(core)}
        normal, right = np.zeros((len(core), len(core))), np.zeros(len(core))
        for schedule, row in index.items():
            for other, pair in self._pairs[schedule].items():
                column = index.get(other)
                if column is None and other != self._root:
                    continue  # it hangs on this one
                normal[row, row] += pair.weight
                right[row] += pair.total
                if column is not None:
                    normal[row, column] -= pair.weight
            if schedule in self._known:
                normal[row, row] += self._known[schedule].weight
                right[row] += self._known[schedule].total
        self._covariance = np.asarray(np.linalg.inv(normal), np.float64)
        self._places = self._covariance @ right

    def _placed(self) -> list[str]:
        """Those of the core that are connected with the root or with what is known."""
        core = [schedule for schedule in self._pairs if self._in_core(schedule)]
        found = dict.fromkeys(s for s in core if s == self._root or s in self._known)
        ahead = list(found)
        while ahead:
            for other in self._pairs[ahead.pop()]:
                if other not in found and self._in_core(other):
                    found[other] = None
                    ahead.append(other)
        return list(found)
