"""What tuning a model again would cost, by what it took before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from tunefarm.db import queries
from tunefarm.db.records import JobRecord, TaskKey
from tunefarm.db.store import Store


@dataclass(frozen=True, slots=True)
class Cost:
    """So many `trials` of so many `kernels`, at `seconds_per_trial` of a job in wall-clock time,
    its finalists and its whole model included."""

    kernels: int
    trials: int
    seconds_per_trial: float

    @property
    def seconds(self) -> float:
        """How long tuning would take."""
        return self.trials * self.seconds_per_trial


def cost_of_tuning(store: Store, model_hash: str, kernels: Iterable[str]) -> Cost | None:
    """The cost for kernels by their workload keys; None if no job tells how long trials take.

    A kernel gets as many trials as it got before, one that is new as many as others (median).
    """
    wanted = list(dict.fromkeys(kernels))
    jobs = [job for job in queries.jobs(store) if job.model_hash == model_hash]
    pace = _seconds_per_trial(store, jobs)
    if pace is None or not wanted:
        return None
    known = {key.workload: key for job in reversed(jobs) for key in _keys(job)}
    counts = {
        workload: sum(queries.count_trials(store, key).values()) for workload, key in known.items()
    }
    usual = round(median(counts.values())) if counts else 0
    trials = sum(counts.get(workload, usual) for workload in wanted)
    return Cost(len(wanted), trials, pace)


def _keys(job: JobRecord) -> list[TaskKey]:
    return [task.key for task in job.tasks]


def _seconds_per_trial(store: Store, jobs: Iterable[JobRecord]) -> float | None:
    ended = {
        job.id: job.finished - job.started
        for job in jobs
        if job.finished is not None and job.state in ("finished", "interrupted")
    }
    counts = queries.trials_of_jobs(store, list(ended))
    seconds = sum(ended[job] for job, count in counts.items() if count)
    trials = sum(counts.values())
    return seconds / trials if trials and seconds > 0.0 else None
