"""TimePlan: how the minutes of a job are shared by its phases.

The search comes first, then the finalists meet, then the runner is closed, and the whole model is
built, its kernels are exchanged while it runs, and it is measured. What comes after the search is
estimated before it begins and left over for it, the finalists of all tasks among it; what those of
which nobody may replace the applied schedule do not need, the search gets in the end. The last
phase, the comparison, takes what is really left, so that a job ends when it was told to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

IN_FLIGHT_SECONDS = 1.5  # until what the search submitted last is answered
FINALIST_SECONDS = 1.8  # of one task: two or three fresh processes
CLOSING_SECONDS = 2.5  # of a runner, with Ray's processes
ENDING_SECONDS = 0.8  # from the comparison's end to the process's, but for the profile
PROFILE_SECONDS = 0.6  # of timing the model's steps, at least
PROFILE_RUNS = 4  # of the whole model are the least that a profile takes
SEARCH_SHARE = 0.4  # of what is left before the search, which it gets at least
COMPARISON_SECONDS = 4.0  # of the whole models, at least
EXCHANGE_SHARE = 0.1  # of the job, for exchanging kernels in the running model, at most
ROUNDS = 60  # of such a comparison, each a run of both models
LEAST_ROUNDS = 16  # of these, however late it is; some are for warming up
ELSEWHERE_SECONDS = 8.0  # of a comparison by a node of a cluster
COMPARISON_MOST = 30.0  # that are wanted for slow models
PATIENCE = 3.0  # times as long as wanted, a comparison or exchange may take if there is time
AT_A_SIZE_SECONDS = 0.4  # of a kernel's fastest schedules at one size
MODEL_AT_A_SIZE_SECONDS = 1.2  # of the whole model at one size
SIZES_SHARE = 0.25  # of what is left before the search, for all sizes together, at most


class TimePlan:
    """The deadlines of a job that began at `started` and may take `minutes` (None: any time)."""

    def __init__(
        self,
        minutes: float | None,
        started: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._started = started
        self.end = math.inf if minutes is None else started + 60.0 * minutes
        self._clock = clock
        self.build_seconds = 0.0  # of one build of the model
        self.run_seconds = 0.0  # of one run of the model
        self.exchanges = False  # whether kernels are exchanged in the running model
        self.elsewhere = 0  # models that nodes of a cluster measure
        self._size_seconds = 0.0  # kept for measuring kernels at several sizes
        self._model_seconds = 0.0  # the same of the whole model

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._started

    @property
    def left(self) -> float | None:
        """Seconds until the end, 0 when it is over; None: no limit."""
        return None if self.end == math.inf else max(0.0, self.end - self._clock())

    @property
    def comparison_seconds(self) -> float:
        """What comparing the whole models may take, when nothing else is left to do."""
        left = self.left
        if left is None:
            return self._wanted
        least = 2.0 * LEAST_ROUNDS * self.run_seconds
        kept = self.profile_seconds + ENDING_SECONDS + self._model_seconds
        return max(least, min(PATIENCE * self._wanted, left - kept))

    @property
    def exchange_seconds(self) -> float:
        """What exchanging kernels in the running model may take, before it is built once more and
        compared."""
        left = self.left
        if left is None:
            return self._exchange_wanted
        kept = self.build_seconds + self._wanted + self.profile_seconds + ENDING_SECONDS
        return max(0.0, min(PATIENCE * self._exchange_wanted, left - kept))

    @property
    def profile_seconds(self) -> float:
        """What timing the steps of the whole model may take, behind the comparison."""
        return max(PROFILE_SECONDS, PROFILE_RUNS * self.run_seconds)

    def keep_for_sizes(self, kernels: int, models: int) -> None:
        """Keep time for so many measurements of kernels, and of whole models, at several sizes."""
        wanted = AT_A_SIZE_SECONDS * kernels + MODEL_AT_A_SIZE_SECONDS * models
        left = self.left
        share = 1.0 if left is None else min(1.0, SIZES_SHARE * left / wanted)
        self._size_seconds = share * AT_A_SIZE_SECONDS * kernels
        self._model_seconds = share * MODEL_AT_A_SIZE_SECONDS * models

    def begin_sizes(self) -> None:
        """What was kept for measuring kernels at several sizes is for that now."""
        self._size_seconds = 0.0

    @property
    def at_sizes_seconds(self) -> float:
        """What measuring the whole model at several sizes may take, as the last thing to do."""
        left = self.left
        return self._model_seconds if left is None else max(0.0, left - ENDING_SECONDS)

    def has_time_for_search(self, tasks: int) -> bool:
        """Whether a search of so many tasks, and what comes after it, fits into what is left."""
        left = self.left
        return left is None or (1.0 - SEARCH_SHARE) * left >= self._after_search(tasks)

    def search_minutes(self, tasks: int) -> float | None:
        """Minutes for the search, from now on, of so many tasks."""
        left = self.left
        if left is None:
            return None
        return max(SEARCH_SHARE * left, left - self._after_search(tasks)) / 60.0

    def spare_seconds(self, contested: int) -> float:
        """What is left over if the finalists of so many tasks only are to meet."""
        left = self.left
        return math.inf if left is None else max(0.0, left - self._after_search(contested))

    def finalists_are_late(self, seconds: float = 0.0) -> bool:
        """Whether `seconds` from now nothing fits into what is left then but closing the runner,
        building and measuring the whole model."""
        left = self.left
        return left is not None and left <= self._confirmation + seconds

    def _after_search(self, tasks: int) -> float:
        """Seconds of what comes after the search, if the finalists of so many tasks meet."""
        return IN_FLIGHT_SECONDS + FINALIST_SECONDS * tasks + self._confirmation

    @property
    def _wanted(self) -> float:
        return min(COMPARISON_MOST, max(COMPARISON_SECONDS, 2.0 * ROUNDS * self.run_seconds))

    @property
    def _exchange_wanted(self) -> float:
        if self.end == math.inf:
            return self._wanted
        return min(self._wanted, EXCHANGE_SHARE * (self.end - self._started))

    @property
    def _confirmation(self) -> float:
        ending = CLOSING_SECONDS + 2.0 * self.build_seconds + self._wanted + ENDING_SECONDS
        if self.exchanges:
            ending += self._exchange_wanted + self.build_seconds
        ending += self.profile_seconds
        kept = self._size_seconds + self._model_seconds
        kept += ELSEWHERE_SECONDS * self.elsewhere
        return ending + kept
