"""Race: which of several schedules of a kernel is the fastest, settled process by process.

A state machine of numbers: 0 is the incumbent, another may be the default schedule, the rest are
rivals. `next` says who meets in the next process, `add` takes what was timed there. Who clearly
loses to the leader leaves; while the leader may still be beaten there is another process; when the
search expects more of one who waits than the leader has shown, that one joins. (Racing: Maron and
Moore, "Hoeffding races", NIPS 1994.) The incumbent and the default take part in every process: the
first is who must be beaten, the second what speed-ups are told against. It knows neither schedules
nor runners; who wins in the end is up to `tunefarm.tuner.confirm.verdict`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from tunefarm.tuner.confirm.verdict import EFFECT, LEAST_PAIRS, Meeting, standing
from tunefarm.tuner.search.pairwise_estimates import BETWEEN_RUNS, Estimate

SAME = 0.02  # a rival that cannot be faster than the leader by more than this is not waited for
LOST = 0.01  # chance of being the faster one after all below which a rival leaves
DOUBT = 0.05  # chance of being faster by enough from which on the race goes on
PRECISE = 0.006  # deviation of the leader's ratio that satisfies those who have the time

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class RaceOptions:
    """How many meet, and how often.

    At most `contenders` rivals take part at a time, each in `processes` processes at least before
    anything is settled, and in `most` at most since somebody joined: twice as many in all.
    `rounds` are those of a process.
    """

    contenders: int = 6
    processes: int = 2
    most: int = 4
    rounds: int = 16


class Race:
    """One race. Numbers are positions in `expected`; the incumbent's is 0."""

    def __init__(
        self,
        expected: Sequence[Estimate],
        *,
        starters: int,
        default: int | None = None,
        options: RaceOptions | None = None,
    ) -> None:
        """`expected` of each, as log(time over the default's). The first `starters` meet from the
        beginning, the others wait for their chance; `default` is the default's number."""
        self._expected = expected
        self._options = RaceOptions() if options is None else options
        self._anchor = 0 if default is None else default
        self._always = {0, self._anchor}
        self._racing = {number for number in range(len(expected)) if number < starters}
        self._racing |= self._always
        waiting = set(range(len(expected))) - self._racing
        self._waiting = sorted(waiting, key=lambda number: expected[number])
        self._tries = 0  # processes since somebody joined, those in vain included
        self.meetings: list[Meeting] = []

    @property
    def racing(self) -> list[int]:
        """Who is still in the race."""
        return sorted(self._racing)

    @property
    def leader(self) -> int:
        """The fastest so far of those who are in the race."""
        return min(self._racing, key=lambda number: (self._against(number, 0).mean, number))

    def next(self, *, thorough: bool = False) -> list[int]:
        """Who meets in the next process, the incumbent first; nobody when the race is over.

        `thorough`: it goes on until the leader's speed is known precisely, too.
        """
        most = self._options.most
        if len(self._racing) < 2 or self._tries >= most or len(self.meetings) >= 2 * most:
            return []
        if self.is_young or self._is_open():
            return self.racing
        leader = self.leader
        vague = leader != self._anchor and self._against(leader, self._anchor).deviation > PRECISE
        return sorted(self._always | {leader}) if thorough and vague else []

    @property
    def is_young(self) -> bool:
        """Whether somebody has met the others less often than asked for, or too few pairs."""
        return any(
            self._met(number) < self._options.processes or self._pairs(number) < LEAST_PAIRS
            for number in self._racing
        )

    def add(self, meeting: Meeting) -> None:
        """Take in what a process timed; who clearly lost leaves, who is due joins."""
        self._tries += 1
        self.meetings.append(meeting)
        leader = self.leader
        for number in self._racing - self._always - {leader}:
            if self._met(number) and self._chance(number, leader, 0.0) < LOST:
                self._racing.discard(number)
        if not self.is_young or self._racing == self._always:
            self._call(leader)

    def miss(self) -> None:
        """A process ended without samples, through nobody's fault."""
        self._tries += 1

    def refute(self, number: int) -> None:
        """A schedule failed: it is out, and the race goes on without what it was timed for.

        Without the incumbent or the default the race is over.
        """
        self._racing.discard(number)
        self.meetings = [
            {who: samples for who, samples in meeting.items() if who != number}
            for meeting in self.meetings
        ]
        if number in self._always:
            self._racing.clear()
        elif self._waiting:
            self._join(self._waiting.pop(0))

    def _call(self, leader: int) -> None:
        """Those who wait join if more is expected of them than the leader has shown."""
        shown = self._against(leader, self._anchor).mean + self._expected[self._anchor].mean
        room = self._options.contenders - len(self._racing - self._always)
        while self._waiting and room > 0:
            if self._expected[self._waiting[0]].mean >= shown + math.log1p(-_enough(leader)):
                return
            self._join(self._waiting.pop(0))
            room -= 1

    def _join(self, number: int) -> None:
        self._racing.add(number)
        self._tries = 0

    def _is_open(self) -> bool:
        """Whether somebody may still be faster than the leader by enough to matter, or the leader
        may or may not be faster than the incumbent by enough."""
        leader = self.leader
        rivals = self._racing - self._always - {leader}
        if any(self._chance(number, leader, _enough(leader)) > DOUBT for number in rivals):
            return True
        if leader in self._always:
            return leader != 0 and self._may_or_may_not(leader)
        return self._may_or_may_not(leader)

    def _may_or_may_not(self, leader: int) -> bool:
        return DOUBT < self._chance(leader, 0, EFFECT) < 1.0 - DOUBT

    def _chance(self, one: int, other: int, gain: float) -> float:
        """Probability that `one` is faster than `other` by more than `gain`."""
        estimate = self._against(one, other)
        return _NORMAL.cdf((math.log1p(-gain) - estimate.mean) / estimate.deviation)

    def _against(self, one: int, other: int) -> Estimate:
        """What the meetings say of two, else what was expected of them."""
        if one == other:
            return Estimate(0.0, BETWEEN_RUNS)  # so that no chance is certain
        found = standing(self.meetings, one, other)
        if found is not None:
            return found
        a, b = self._expected[one], self._expected[other]
        return Estimate(a.mean - b.mean, math.hypot(a.deviation, b.deviation, BETWEEN_RUNS))

    def _met(self, number: int) -> int:
        return sum(number in meeting for meeting in self.meetings)

    def _pairs(self, number: int) -> int:
        return sum(len(meeting.get(number, ())) for meeting in self.meetings)


def _enough(leader: int) -> float:
    """By how much the leader must be beaten for it to matter: a change must gain more."""
    return SAME if leader else EFFECT
