"""Lessons: what measurements teach a cost model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunefarm.measure.compare import ALONE_DEVIATION as ALONE_DEVIATION
from tunefarm.measure.measurement import LOST_TO_NOISE, Status
from tunefarm.tuner.model.cost_model import Outcome, TrainingData
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
