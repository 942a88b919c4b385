"""TuningTask: one distinct kernel of a model while it is tuned."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.kernels.kernel import FusedKernel
from compiler.schedule.space import Candidate, ScheduleSpace
from db.records import TaskKey, TrialRecord, hash_json
from measure.placement import Placement
from tuner.model.cost_model import Outcome, TrainingData
from tuner.model.features import FeatureExtractor, FeatureMatrix
from tuner.model.lessons import Lesson, data_of
from tuner.records.estimates import UNCONFIRMED_MARGIN
from tuner.records.trials import (
    best_record,
    latency_of,
    search_trials,
)
from tuner.reports.report import TaskStatus
from tuner.search.budget import Budget, TaskProgress
from tuner.search.task_search import TaskSearch


@dataclass(frozen=True, slots=True)
class Planned:
    """A candidate with the schedule that it stands for, ready to be measured."""

    candidate: Candidate
    schedule: list[Any]  # JSON
    hash: str


@dataclass(slots=True)
class TuningTask:
    """A kernel, its space, its search and what was measured of it.

    `candidates` and `lessons` are the training data of the cost model. `known` maps the hash of
    every measured schedule to its latency, `under_way` that of every schedule being measured to the
    candidates that wait for it. `confirmed_latency` is that of the record to apply, infinity when a
    later trial has beaten it. `placements` are where the model's calls have the kernel's buffers.
    """

    kernel: FusedKernel
    kernel_json: Any
    key: TaskKey
    space: ScheduleSpace
    extract: FeatureExtractor
    search: TaskSearch
    progress: TaskProgress
    default: Planned
    placements: tuple[Placement, ...] = ()
    candidates: list[Candidate] = field(default_factory=list)
    lessons: list[Lesson] = field(default_factory=list)
    known: dict[str, float] = field(default_factory=dict)
    under_way: dict[str, list[Candidate]] = field(default_factory=dict)
    _features: FeatureMatrix = field(init=False)
    seeded: bool = False  # whether its relatives' best schedules were put in front of the search
    failures: int = 0
    default_latency: float = math.inf
    confirmed_latency: float = math.inf

    def __post_init__(self) -> None:
        self._features = self.extract([])

    @property
    def timed_at(self) -> tuple[list[int], ...]:
        """The placements of a request: that of the first call, none where it is not known."""
        return tuple(placement.to_json() for placement in self.placements[:1])

    def plan(self, candidate: Candidate) -> Planned:
        """The candidate's schedule."""
        return plan(self.space, candidate)

    def resume(self, records: Iterable[TrialRecord], settled: TrialRecord | None = None) -> None:
        """Take over what was measured in earlier runs, in the order of the records.

        `settled` is the trial that a job has settled on, if one has.
        """
        records = list(records)
        for record in search_trials(records):
            self.take_over(record)
        best = settled or best_record(records)
        if best is not None:
            self.confirmed_latency = latency_of(best)

    def take_over(self, record: TrialRecord) -> None:
        """Learn from a trial of another job, an earlier one or one of the same time."""
        latency = latency_of(record)
        candidate = self.space.find(record.sketch, record.choices)
        lesson = Lesson.of(record.status, latency, record.run_seconds, record.conditions)
        seconds = record.build_seconds + record.check_seconds + record.run_seconds
        self.learn(candidate, record.schedule_hash, latency, lesson, seconds)
        if candidate is not None:
            self.search.add(candidate, latency)

    def learn(
        self,
        candidate: Candidate | None,
        hash: str,
        latency: float,
        lesson: Lesson | None,
        seconds: float,
    ) -> None:
        """Count a trial that took `seconds`; keep its lesson for the cost model.

        `candidate` is None for a schedule that is no point of the space any more.
        """
        self.known[hash] = latency
        self.progress.record(latency, seconds)
        self.failures += not math.isfinite(latency)
        if hash == self.default.hash:
            self.default_latency = latency
        if latency < (1.0 - UNCONFIRMED_MARGIN) * self.confirmed_latency:
            self.confirmed_latency = math.inf
        if candidate is not None and lesson is not None:
            self.candidates.append(candidate)
            self.lessons.append(lesson)

    @property
    def best_candidate(self) -> Candidate | None:
        """The fastest candidate measured, None before there is one."""
        best = min(
            (i for i, lesson in enumerate(self.lessons) if lesson.outcome is Outcome.MEASURED),
            key=lambda i: self.lessons[i].latency,
            default=None,
        )
        return None if best is None else self.candidates[best]

    def training_data(self, number: int) -> TrainingData:
        """Everything measured, as the task with this number; features are computed once."""
        fresh = self.candidates[len(self._features) :]
        if fresh:
            self._features = np.concatenate([self._features, self.extract(fresh)])
        return data_of(self._features, self.lessons, number)

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
    return Planned(candidate, schedule, hash_json(schedule))
