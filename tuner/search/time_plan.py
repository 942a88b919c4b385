"""TimePlan: how the minutes of a job are shared by its phases.

The search comes first, then the finalists meet, then the whole model is built and measured. What
the last two take is estimated before the search begins and left over for them, so that a job ends
when it was told to.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FINALIST_SECONDS = 1.6  # of one task: two fresh processes, a few schedules, twelve rounds
SEARCH_SHARE = 0.5  # of what is left before the search, which it gets at least
COMPARISON_SECONDS = 4.0  # of the whole models, at least
ROUNDS = 40  # runs of the model in such a comparison, roughly


class TimePlan:
    """The deadlines of a job that began at `started` and may take `minutes` (None: any time)."""

    def __init__(
        self,
        minutes: float | None,
        started: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._end = None if minutes is None else started + 60.0 * minutes
        self._clock = clock
        self.build_seconds = 0.0  # of one build of the model
        self.run_seconds = 0.0  # of one run of the model

    @property
    def left(self) -> float | None:
        """Seconds until the end, 0 when it is over; None: no limit."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    @property
    def comparison_seconds(self) -> float:
        """What comparing the whole models may take."""
        wanted = max(COMPARISON_SECONDS, ROUNDS * self.run_seconds)
        left = self.left
        return wanted if left is None else min(wanted, max(1.0, left - 2.0 * self.build_seconds))

    def search_minutes(self, tasks: int) -> float | None:
        """Minutes for the search, from now on, of so many tasks."""
        left = self.left
        if left is None:
            return None
        later = FINALIST_SECONDS * tasks + self._confirmation
        return max(SEARCH_SHARE * left, left - later) / 60.0

    def finalists_are_late(self) -> bool:
        """Whether nothing but building and measuring the whole model fits into what is left."""
        left = self.left
        return left is not None and left <= self._confirmation

    @property
    def _confirmation(self) -> float:
        comparison = max(COMPARISON_SECONDS, ROUNDS * self.run_seconds)
        return 2.0 * self.build_seconds + comparison
