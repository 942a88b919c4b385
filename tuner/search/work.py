"""Work: a schedule of a task that is queued or being measured, and what its answer means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tunefarm.db.records import TrialRecord
from tunefarm.db.work import Claim
from tunefarm.measure.compare import LogRatio, pair_of
from tunefarm.measure.measurement import LOST_TO_NOISE, MeasureRequest, MeasureResult, Status
from tunefarm.tuner.model.lessons import Lesson
from tunefarm.tuner.records.trials import trial_record
from tunefarm.tuner.search.tasks import Planned, TuningTask

NOBODYS_FAULT = frozenset((Status.OK, Status.INFRASTRUCTURE, *LOST_TO_NOISE))
FAILED = {
    Status.CRASHED: "crashed",
    Status.RUN_TIMEOUT: "hung",
    Status.WRONG_RESULT: "gave a wrong result",
    Status.BUILD_ERROR: "does not build any more",
    Status.BUILD_TIMEOUT: "takes too long to build",
    Status.OUT_OF_MEMORY: "ran out of memory",
}
"""What became of a reference, in words."""


@dataclass(frozen=True, slots=True)
class Work:
    """A schedule that is queued or being measured, next to a reference that is chosen at the last
    moment unless it is given.

    `again`: it has a latency, which is to be known better. `retried`: it was too noisy.
    """

    task: TuningTask
    planned: Planned
    reference: str | None = None
    again: bool = False
    retried: bool = False

    @property
    def claim(self) -> Claim:
        """What no other job measures meanwhile."""
        return self.task.key, self.planned.hash

    @property
    def is_fresh(self) -> bool:
        """Whether its schedule has not been measured yet."""
        return not (self.again or self.retried)

    def beside_the_reference(self) -> Work:
        """The work, to be measured next to the reference of its task unless one is given."""
        current = self.task.ranking.references.current
        if self.reference is not None or current == self.planned.hash:
            return self
        return replace(self, reference=current)

    def request(
        self, request_id: str, timing: Mapping[str, float | int], seed: int
    ) -> MeasureRequest:
        """What a runner is asked for; a new schedule may be given up when it is clearly slower."""
        task, options = self.task, {**timing, **self.task.cache_state}
        rivals: tuple[list[Any], ...] = ()
        if self.reference is not None:
            rivals = (task.plans[self.reference].schedule,)
            options["give_up"] = int(not self.again)
        return MeasureRequest(
            request_id=request_id,
            kernel=task.kernel_json,
            workload_key=task.key.workload,
            schedule=self.planned.schedule,
            threads=task.key.threads,
            options=options,
            rivals=rivals,
            seed=seed,
            placements=task.timed_at,
            target=task.key.target,
            numerics=task.key.numerics,
        )


@dataclass(frozen=True, slots=True)
class Answer:
    """What a measurement came to: `latency` in the task's scale, infinity for a failure."""

    work: Work
    result: MeasureResult
    pair: LogRatio | None
    latency: float

    @staticmethod
    def of(work: Work, result: MeasureResult) -> Answer:
        """The answer to some work; its schedule gets its place among the task's."""
        task, hash = work.task, work.planned.hash
        pair = None if work.reference is None else pair_of(result)
        latency = math.inf
        if result.status is Status.OK:
            task.plans.setdefault(hash, work.planned)
            latency = task.ranking.add(hash, result.latency, work.reference, pair)
        return Answer(work, result, pair, latency)

    @property
    def is_lost(self) -> bool:
        """Whether it says too little, for noise."""
        return self.result.status in LOST_TO_NOISE

    @property
    def blames_reference(self) -> bool:
        """Whether a pair failed, and that is the reference's fault."""
        is_failure = self.result.status not in NOBODYS_FAULT
        return is_failure and self.work.reference is not None and self.result.culprit == 1

    @property
    def refutes(self) -> bool:
        """Whether a schedule failed that had a latency."""
        is_failure = self.result.status not in (*NOBODYS_FAULT, Status.QUARANTINED)
        return self.work.again and is_failure

    def record(self, job: str) -> TrialRecord:
        """What is recorded of it."""
        return record_of(
            self.work.task,
            self.work.planned,
            self.result,
            job,
            refuted=self.refutes,
            reference=self.work.reference,
            latency=self.latency,
        )

    def learn(self) -> None:
        """Count the trial; have the cost model and, unless it is tried once more, the search know
        of it."""
        task, result, planned = self.work.task, self.result, self.work.planned
        taught = self.latency
        if self.is_lost and self.pair is not None:
            taught = task.beside(self.work.reference, self.pair)
        deviation = None if self.pair is None else self.pair.deviation
        lesson = Lesson.of(result.status, taught, result.run_seconds, result.machine, deviation)
        seconds = result.build_seconds + result.check_seconds + result.run_seconds
        task.learn(planned.candidate, planned.hash, self.latency, lesson, seconds, result.status)

    @property
    def calls_for_another(self) -> bool:
        """Whether it was too noisy, for the first time, and may be the best."""
        first = not self.work.again and not self.work.retried
        ranking = self.work.task.ranking
        return self.is_lost and first and ranking.may_be_best(self.work.reference, self.pair)


def record_of(
    task: TuningTask,
    planned: Planned,
    result: MeasureResult,
    job: str,
    *,
    refuted: bool = False,
    reference: str | None = None,
    latency: float | None = None,
) -> TrialRecord:
    """The record of a measurement; one that refutes what was measured before counts as a
    finalist's, so that the schedule is not applied."""
    return trial_record(
        task.key,
        result,
        sketch=planned.candidate.sketch,
        choices=task.space.choices(planned.candidate),
        schedule=planned.schedule,
        job=job,
        confirmed=refuted,
        reference=reference,
        latency=latency,
    )


def refuted_reference(task: TuningTask, result: MeasureResult) -> str:
    """The line that says what became of a reference and who took over."""
    heir = task.ranking.references.current
    others = "by themselves"
    if heir is not None:
        is_default = heir == task.default.hash
        others = f"against {'the default schedule' if is_default else 'another schedule'}"
    lines = result.error.strip().splitlines()
    reason = f" ({lines[-1]})" if lines else ""
    happened = FAILED.get(result.status, "failed")
    return f"the reference of {task.name} {happened}{reason}: candidates are measured {others} now"
