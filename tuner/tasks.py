"""TuningTask: one distinct kernel of a model while it is tuned."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from compiler.kernels.kernel import FusedKernel
from compiler.schedule.space import Candidate, ScheduleSpace
from db.records import TaskKey, TrialRecord
from measure.job import Status
from tuner.budget import Budget, TaskProgress
from tuner.features import FeatureExtractor, FeatureMatrix
from tuner.records import (
    UNCONFIRMED_MARGIN,
    best_record,
    latency_of,
    schedule_hash,
    search_trials,
)
from tuner.report import TaskStatus
from tuner.sampler import TaskSearch

SAYS_LITTLE = frozenset((Status.UNSTABLE, Status.QUARANTINED))
"""Neither fast nor failing: nothing for a cost model to learn."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A candidate with the schedule that it stands for, ready to be measured."""

    candidate: Candidate
    schedule: list[Any]  # JSON
    hash: str


@dataclass(slots=True)
class TuningTask:
    """A kernel, its space, its search and what was measured of it.

    `rows` and `latencies` are the training data of the cost model: features and seconds (infinity
    for failures). `known` maps the hash of every measured schedule to its latency, `under_way`
    that of every schedule being measured to the proposals that wait for it. `confirmed_latency` is
    that of the record to apply, infinity when a later trial has beaten it.
    """

    kernel: FusedKernel
    kernel_json: Any
    key: TaskKey
    space: ScheduleSpace
    extract: FeatureExtractor
    search: TaskSearch
    progress: TaskProgress
    default: Planned
    rows: list[FeatureMatrix] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    known: dict[str, float] = field(default_factory=dict)
    under_way: dict[str, list[int]] = field(default_factory=dict)
    failures: int = 0
    default_latency: float = math.inf
    confirmed_latency: float = math.inf

    def plan(self, candidate: Candidate) -> Planned:
        """The candidate's schedule."""
        return plan(self.space, candidate)

    def resume(self, records: Iterable[TrialRecord], settled: TrialRecord | None = None) -> None:
        """Take over what was measured in earlier runs, in the order of the records.

        `settled` is the trial that a job has settled on, if one has.
        """
        records = list(records)
        for record in search_trials(records):
            latency = latency_of(record)
            candidate = self.space.find(record.sketch, record.choices)
            trains = record.status not in SAYS_LITTLE
            self.learn(candidate if trains else None, record.schedule_hash, latency)
            if candidate is not None:
                self.search.add(candidate, latency)
        best = settled or best_record(records)
        if best is not None:
            self.confirmed_latency = latency_of(best)

    def learn(self, candidate: Candidate | None, hash: str, latency: float) -> None:
        """Count a trial; keep it as training data unless `candidate` is None.

        It is None for a schedule that is no point of the space any more, and for a measurement that
        `SAYS_LITTLE`.
        """
        self.known[hash] = latency
        self.progress.record(latency)
        self.failures += not math.isfinite(latency)
        if hash == self.default.hash:
            self.default_latency = latency
        if latency < (1.0 - UNCONFIRMED_MARGIN) * self.confirmed_latency:
            self.confirmed_latency = math.inf
        if candidate is not None:
            self.rows.append(self.extract([candidate]))
            self.latencies.append(latency)

    def status(self, budget: Budget | None = None) -> TaskStatus:
        """Where the task stands; `budget` tells why it ended."""
        end = None
        if budget is not None and self.progress.pending == 0:
            end = budget.task_end(self.progress)
        best = self.confirmed_latency
        return TaskStatus(
            kernel=self.kernel.name,
            key=self.key.workload,
            occurrences=self.progress.occurrences,
            trials=self.progress.trials,
            failures=self.failures,
            default=self.default_latency,
            best=best if math.isfinite(best) else self.progress.best,
            ended=end.value if end else "",
        )


def plan(space: ScheduleSpace, candidate: Candidate) -> Planned:
    """The candidate's schedule as JSON, with its hash."""
    schedule = space.schedule(candidate).to_json()
    return Planned(candidate, schedule, schedule_hash(schedule))


def training_data(
    tasks: Sequence[TuningTask],
) -> tuple[FeatureMatrix, npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Features, latencies and task numbers of everything measured."""
    rows = [row for task in tasks for row in task.rows]
    latencies = [latency for task in tasks for latency in task.latencies]
    numbers = [number for number, task in enumerate(tasks) for _ in task.rows]
    features = np.concatenate(rows) if rows else np.empty((0, 0), np.float32)
    return features, np.array(latencies, np.float64), np.array(numbers, np.int64)
