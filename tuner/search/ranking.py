"""Ranking: what the measurements of one task come to: places, references, and beliefs.

Every latency of a task is a time over the default schedule's, times one scale: the seconds that the
default took when the database first saw it. So latencies are comparable across references, jobs and
moods of the machine's clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tunefarm.db.records import TrialRecord
from tunefarm.measure.compare import ALONE_DEVIATION, LogRatio
from tunefarm.tuner.records.estimates import recorded_pair
from tunefarm.tuner.records.trials import is_confirmed, latency_of
from tunefarm.tuner.search.pairwise_estimates import Logs, PairwiseEstimates
from tunefarm.tuner.search.posterior import Posterior, posterior

GONE_DEVIATION = 0.02  # of a pair whose reference is not known here
AGAIN_SHARE = 0.2  # of a task's trials that measure again, at most
_NORMAL_95 = 1.96


class Again(NamedTuple):
    """A schedule that is to be measured again, next to a reference."""

    schedule: str
    reference: str


class Ranking:
    """The ranking of one task's schedules, by their hashes. `default` is the default schedule."""

    def __init__(self, default: str) -> None:
        self.scale = math.nan  # seconds of the schedule that stands at 0
        self.replications = 0  # measurements of what had been measured
        self._default = default
        self._pairwise = PairwiseEstimates()
        self.references = References(self._pairwise)
        self._times: dict[str, int] = {}  # of each that works and may be the best: measurements
        self._paired: set[str] = set()
        self._beliefs: Posterior | None = None
        self._believed = False

    def knows(self, schedule: str) -> bool:
        """Whether a pair with this schedule as its reference has a place."""
        return self._pairwise.estimate(schedule) is not None

    def is_paired(self, schedule: str) -> bool:
        """Whether the schedule's place comes from pairs."""
        return schedule in self._paired

    def latency(self, schedule: str) -> float:
        """Seconds in the task's scale; infinity for what has no place, or failed."""
        if self.references.is_refuted(schedule):
            return math.inf
        found = self._pairwise.estimate(schedule)
        return math.inf if found is None else self._seconds(found.mean)

    def estimates(self, schedules: Iterable[str]) -> tuple[Logs, Logs]:
        """Seconds in the task's scale and deviations of their logs; NaN, infinity without place."""
        means, deviations = self._pairwise.estimates(schedules)
        return self.scale * np.exp(means), deviations

    def prepare(self, records: Sequence[TrialRecord]) -> None:
        """Find the scale of what was recorded before: what everything stands to, and its seconds.

        It is the default schedule's; where that never worked, the first other one's that did.
        """
        if math.isfinite(self.scale):
            return
        working = [r for r in records if r.is_ok and not is_confirmed(r)]
        own = [r for r in working if r.schedule_hash == self._default]
        pairs = [r for r in working if r.reference == self._default]
        if own:
            self._begin(self._default, latency_of(own[0]))
        elif pairs:
            self._begin(self._default, latency_of(pairs[0]) / (pairs[0].ratio or 1.0))
        elif working:
            self._begin(working[0].schedule_hash, latency_of(working[0]))

    def add(
        self,
        schedule: str,
        seconds: float,
        reference: str | None = None,
        pair: LogRatio | None = None,
        *,
        eligible: bool = True,
    ) -> float:
        """A right result: `seconds` alone, or a pair with a reference. Its latency in the scale.

        What is not `eligible` has a place and is never nominated.
        """
        self._count(schedule, eligible)
        if pair is not None and reference is not None:
            self._pairwise.add(schedule, reference, pair)
            self._paired.add(schedule)
        elif math.isnan(self.scale):
            self._begin(schedule, seconds)
        elif schedule != self._pairwise.root:
            self._pairwise.add_known(schedule, math.log(seconds / self.scale), ALONE_DEVIATION)
        return self.latency(schedule)

    def take_over(self, record: TrialRecord, *, eligible: bool = True) -> float:
        """The right result of another job or an earlier one. Its latency in the scale."""
        hash, reference = record.schedule_hash, record.reference
        pair = recorded_pair(record)
        if reference is not None and pair is not None and not self.knows(reference):
            self._count(hash, eligible)
            relative = math.log(latency_of(record) / self.scale)
            self._pairwise.add_known(hash, relative, math.hypot(GONE_DEVIATION, pair.deviation))
            self._paired.add(hash)
            return self.latency(hash)
        return self.add(hash, latency_of(record), reference, pair, eligible=eligible)

    def refute(self, schedule: str) -> bool:
        """The schedule fails, whatever was measured of it. Whether that was not known before."""
        beliefs = self.beliefs
        self._times.pop(schedule, None)
        self._believed = False
        return self.references.refute(schedule, () if beliefs is None else beliefs.schedules)

    @property
    def beliefs(self) -> Posterior | None:
        """What to believe of the fastest; None before anything has a place."""
        if not self._believed:
            self._beliefs = posterior(self._pairwise, self._times)
            self._believed = True
        return self._beliefs

    @property
    def expected(self) -> float:
        """Seconds that the nominee is expected to take when it is confirmed; infinity if none."""
        beliefs = self.beliefs
        return math.inf if beliefs is None else self._seconds(beliefs.expected.mean)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `expected`; NaN if there is none."""
        beliefs = self.beliefs
        if beliefs is None:
            return math.nan, math.nan
        mean, deviation = beliefs.expected
        half = _NORMAL_95 * deviation
        return self._seconds(mean - half), self._seconds(mean + half)

    def may_be_best(self, reference: str | None, pair: LogRatio | None) -> bool:
        """Whether a measurement that was too noisy may hide a schedule faster than the nominee."""
        beliefs = self.beliefs
        here = None if reference is None else self._pairwise.estimate(reference)
        if beliefs is None:
            return True
        if pair is None or here is None:
            return False
        return here.mean + math.log(pair.low) < beliefs.expected.mean

    def again(self, trials: int) -> Again | None:
        """What is worth measuring again after so many trials, and next to what."""
        beliefs, current = self.beliefs, self.references.current
        if beliefs is None or current is None or self.replications + 1 > AGAIN_SHARE * trials:
            return None
        wanted = self.references.advance(beliefs, lambda schedule: self._times.get(schedule, 0))
        current, root = self.references.current, self.references.root
        assert current is not None, "a reference gives way only to another one"
        if wanted is not None:
            return Again(wanted, current)
        if root is not None and root != current and self.references.is_adrift:
            return Again(current, root)
        found = beliefs.again(without=[current])
        return None if found is None else Again(found, current)

    def _begin(self, root: str, seconds: float) -> None:
        self.scale = seconds
        self._pairwise.root = root

    def _count(self, schedule: str, eligible: bool) -> None:
        self._believed = False
        if eligible:
            times = self._times.get(schedule, 0)
            self._times[schedule] = times + 1
            self.replications += times > 0
            self.references.begin(schedule)

    def _seconds(self, mean: float) -> float:
        return self.scale * math.exp(mean)


_MARGIN = 0.02  # a new reference is expected to be faster by this share
_DOUBT = 1.645  # deviations from no difference: faster with a probability of 95 %
_RE_ANCHOR = 0.015  # deviation of a reference's place from which it is measured again


class References:
    """The references of one task, by the hashes of their schedules; `current` is the newest.

    `current` is None as long as nothing was measured. `root` is the schedule that stands at 0: at
    first the reference is the default schedule, later the fastest. Slower candidates are then given
    up after a few pairs, and the others are compared with it directly. A reference is changed only
    for one that is faster beyond doubt and was measured at least twice, because all that is
    measured against it hangs on its place. When its place has become uncertain it is measured
    against the default again. A reference that fails is refuted: the former one takes over.
    """

    def __init__(self, pairwise: PairwiseEstimates) -> None:
        self._pairwise = pairwise
        self._former: list[str] = []
        self._refuted: set[str] = set()
        self.current: str | None = None

    @property
    def root(self) -> str | None:
        """The first reference, unless it was refuted."""
        root = self._pairwise.root
        return None if root in self._refuted else root

    def is_refuted(self, schedule: str) -> bool:
        """Whether the schedule has failed after it had been measured."""
        return schedule in self._refuted

    def begin(self, schedule: str) -> None:
        """The first reference: the default schedule, or the first one that works."""
        if self.current is None and schedule not in self._refuted:
            self.current = schedule

    def advance(self, posterior: Posterior, times: Callable[[str], int]) -> str | None:
        """Make the nominee the reference if it is faster beyond doubt.

        One that is, but was measured only once (`times`), is returned: it is to be measured again.
        """
        nominee, current = posterior.nominee, self.current
        if current is None or nominee == current:
            return None
        found = self._pairwise.difference(nominee, current)
        here = self._pairwise.estimate(current)
        if found is None or here is None:
            return None
        expected = found.mean + posterior.expected.mean - self._observed(nominee)  # without luck
        if found.mean + _DOUBT * found.deviation >= 0 or expected > math.log(1.0 - _MARGIN):
            return None
        if times(nominee) < 2:
            return nominee
        self._former.append(current)
        self.current = nominee
        return None

    @property
    def is_adrift(self) -> bool:
        """Whether the reference is to be measured against the root again."""
        if self.current is None or self.root is None or self.current == self.root:
            return False
        here = self._pairwise.estimate(self.current)
        return here is not None and here.deviation > _RE_ANCHOR

    def refute(self, schedule: str, others: Iterable[str]) -> bool:
        """The schedule fails: it is no reference any more. Whether that was not known before.

        The newest of the former references takes over, else the root, else the first of `others`
        that was not refuted, else nobody.
        """
        if schedule in self._refuted:
            return False
        self._refuted.add(schedule)
        if schedule == self.current:
            root = [] if self.root is None else [self.root]
            heirs = (*reversed(self._former), *root, *others)
            self.current = next((heir for heir in heirs if heir not in self._refuted), None)
        return True

    def _observed(self, schedule: str) -> float:
        found = self._pairwise.estimate(schedule)
        return math.nan if found is None else found.mean
