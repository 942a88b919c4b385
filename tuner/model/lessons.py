"""Lessons: what measurements teach a cost model, and the trainer that does so while more is
measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunefarm.measure.compare import ALONE_DEVIATION as ALONE_DEVIATION
from tunefarm.measure.measurement import LOST_TO_NOISE, Status
from tunefarm.tuner.model.cost_model import CostModel, Outcome, TrainingData
from tunefarm.tuner.model.features import FeatureMatrix

SAYS_NOTHING = frozenset((Status.QUARANTINED, Status.INFRASTRUCTURE))
"""Neither fast nor failing: nothing for a cost model to learn."""
TIMED_CALLS = 8
"""Calls of a kernel that fit a run at least, checks included: a run that was ended for its time
shows that a call takes longer than this part of it."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a measurement teaches a cost model: seconds, what they mean, and how sure they are.

    `deviation` is the standard error of the time's natural logarithm, `yardstick` the seconds of
    the yardstick next to a schedule that was measured alone (NaN if unknown).
    """

    latency: float
    outcome: Outcome
    deviation: float = ALONE_DEVIATION
    yardstick: float = math.nan

    @staticmethod
    def of(
        status: str,
        latency: float,
        run_seconds: float,
        conditions: Mapping[str, Any],
        deviation: float | None = None,
    ) -> Lesson | None:
        """The lesson of a measurement with this status, or None if there is nothing to learn.

        `deviation` is that of a pair, whose latency needs no yardstick; None for a schedule that
        was measured alone. A pair that scatters teaches what its deviation leaves of it, one that
        was given up early no less than others.
        """
        alone = deviation is None
        if status in SAYS_NOTHING or (status in LOST_TO_NOISE and alone):
            return None
        anchor = conditions.get("anchor_seconds") if alone else None
        yardstick = float(anchor) if isinstance(anchor, int | float) else math.nan
        if status == Status.RUN_TIMEOUT and run_seconds > 0:
            bound = run_seconds / TIMED_CALLS
            return Lesson(bound, Outcome.ABOVE, ALONE_DEVIATION, yardstick)
        if not math.isfinite(latency):
            if status in LOST_TO_NOISE:
                return None
            return Lesson(math.inf, Outcome.FAILED, ALONE_DEVIATION, yardstick)
        error = ALONE_DEVIATION if deviation is None else deviation
        return Lesson(latency, Outcome.MEASURED, error, yardstick)


def data_of(features: FeatureMatrix, lessons: Sequence[Lesson], number: int) -> TrainingData:
    """The training data of one kernel, as the task with this number."""
    return TrainingData(
        features,
        np.array([lesson.latency for lesson in lessons], np.float64),
        np.array([lesson.outcome for lesson in lessons], np.int8),
        np.array([lesson.deviation for lesson in lessons], np.float64),
        np.array([lesson.yardstick for lesson in lessons], np.float64),
        np.full(len(lessons), number, np.int64),
    )


_GROWTH = 0.2  # retrain when so many more measurements are known than the last time
_FIRST = 8  # or, at the beginning, so many


class Trainer:
    """Decides when to retrain, and does so in a thread of its own.

    The model answers as it was until a training is over. In the foreground the model learns at
    once: slower on a farm, but the same answers in the same order give the same proposals.
    """

    def __init__(self, model: CostModel, *, background: bool) -> None:
        self.seconds = 0.0  # of processor time
        self._model = model
        self._pool = ThreadPoolExecutor(1, "trainer") if background else None
        self._running: Future[float] | None = None
        self._known = 0  # measurements at the last training

    def offer(self, known: int, collect: Callable[[], TrainingData]) -> None:
        """Retrain if the job's `known` measurements are enough more than last time, unless busy.

        Raises what a training that has ended has raised.
        """
        if self._running is not None:
            if not self._running.done():
                return
            self.seconds += self._running.result()
            self._running = None
        if known - self._known < max(min(_FIRST, known), _GROWTH * self._known, 1):
            return
        self.teach(known, collect)

    def teach(self, known: int, collect: Callable[[], TrainingData]) -> None:
        """Retrain now."""
        self._known = known
        begin = time.thread_time()
        data = collect()
        self.seconds += time.thread_time() - begin
        if self._pool is None:
            self.seconds += self._train(data)
        else:
            self._running = self._pool.submit(self._train, data)

    def close(self) -> None:
        """Wait for a training that is under way."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def _train(self, data: TrainingData) -> float:
        begin = time.thread_time()
        self._model.fit(data)
        return time.thread_time() - begin
