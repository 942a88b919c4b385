"""References: which schedule of a task its candidates are measured against.

At first it is the default schedule, later the fastest: slower candidates are then given up after a
few pairs, and the others are compared with it directly. A reference is changed only for one that is
faster beyond doubt and was measured at least twice, because all that is measured against it hangs
on its place. When its place has become uncertain it is measured against the default again. A
reference that fails is refuted: the former one takes over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from tunefarm.tuner.search.pairwise_estimates import PairwiseEstimates
from tunefarm.tuner.search.posterior import Posterior

MARGIN = 0.02  # a new reference is expected to be faster by this share
DOUBT = 1.645  # deviations from no difference: faster with a probability of 95 %
RE_ANCHOR = 0.015  # deviation of a reference's place from which it is measured again


class References:
    """The references of one task, by the hashes of their schedules; `current` is the newest.

    `current` is None as long as nothing was measured. `root` is the schedule that stands at 0.
    """

    def __init__(self, standings: PairwiseEstimates) -> None:
        self._standings = standings
        self._former: list[str] = []
        self._refuted: set[str] = set()
        self.current: str | None = None

    @property
    def root(self) -> str | None:
        """The first reference, unless it was refuted."""
        root = self._standings.root
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
        found = self._standings.difference(nominee, current)
        here = self._standings.estimate(current)
        if found is None or here is None:
            return None
        expected = found.mean + posterior.expected.mean - self._observed(nominee)  # without luck
        if found.mean + DOUBT * found.deviation >= 0 or expected > math.log(1.0 - MARGIN):
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
        here = self._standings.estimate(self.current)
        return here is not None and here.deviation > RE_ANCHOR

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
        found = self._standings.estimate(schedule)
        return math.nan if found is None else found.mean
