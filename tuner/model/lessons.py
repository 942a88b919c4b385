"""Lessons: what measurements teach a cost model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from measure.measurement import Status
from tuner.model.cost_model import Outcome, TrainingData
from tuner.model.features import FeatureMatrix

SAYS_LITTLE = frozenset((Status.UNSTABLE, Status.QUARANTINED))
"""Neither fast nor failing: nothing for a cost model to learn."""
TIMED_CALLS = 8
"""Calls of a kernel that fit a run at least, checks included: a run that was ended for its time
shows that a call takes longer than this part of it."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a measurement teaches a cost model: seconds, what they mean, the yardstick's seconds."""

    latency: float
    outcome: Outcome
    yardstick: float = math.nan

    @staticmethod
    def of(
        status: str, latency: float, run_seconds: float, conditions: Mapping[str, Any]
    ) -> Lesson | None:
        """The lesson of a measurement with this status, or None if it `SAYS_LITTLE`."""
        if status in SAYS_LITTLE or status == Status.INFRASTRUCTURE:
            return None
        yardstick = conditions.get("anchor_seconds")
        seconds = float(yardstick) if isinstance(yardstick, int | float) else math.nan
        if status == Status.RUN_TIMEOUT and run_seconds > 0:
            return Lesson(run_seconds / TIMED_CALLS, Outcome.ABOVE, seconds)
        if not math.isfinite(latency):
            return Lesson(math.inf, Outcome.FAILED, seconds)
        return Lesson(latency, Outcome.MEASURED, seconds)


def data_of(features: FeatureMatrix, lessons: Sequence[Lesson], number: int) -> TrainingData:
    """The training data of one kernel, as the task with this number."""
    return TrainingData(
        features,
        np.array([lesson.latency for lesson in lessons], np.float64),
        np.array([lesson.outcome for lesson in lessons], np.int8),
        np.array([lesson.yardstick for lesson in lessons], np.float64),
        np.full(len(lessons), number, np.int64),
    )
