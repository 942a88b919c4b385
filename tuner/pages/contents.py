"""What a page is about: the jobs, kernels and latencies of a database that it shows.

Read once. What others have written into free values costs its own place in the page and no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tunefarm.db import queries
from tunefarm.db.records import (
    BestRecord,
    JobRecord,
    TargetRecord,
    TaskKey,
    TrialRecord,
    WorkloadRecord,
)
from tunefarm.db.store import Store
from tunefarm.tuner.records.jobs import find_job
from tunefarm.tuner.records.model_latencies import MeasuredModel, measured_models
from tunefarm.tuner.reports.job_state import JobState

MOST_TRIALS = 20_000
"""So many trials are read for one page; kernels beyond that are counted, and `--full` reads all."""


@dataclass(frozen=True, slots=True)
class PageOptions:
    """What `tune report` was asked for.

    `job` is the id of a job or its beginning. With `full` nothing is left out for the time that it
    takes to make.
    """

    job: str | None = None
    full: bool = False


@dataclass(frozen=True, slots=True)
class TaskRecords:
    """One kernel under one key: its trials in their order, and what jobs settled, oldest first."""

    key: TaskKey
    workload: WorkloadRecord
    trials: Sequence[TrialRecord]
    bests: Sequence[BestRecord]


@dataclass(frozen=True, slots=True)
class Contents:
    """All that a page is made of. Jobs and latencies come newest first; `left_out` counts
    kernels that did not fit."""

    name: str
    jobs: Sequence[JobRecord]
    models: Sequence[MeasuredModel]
    tasks: Sequence[TaskRecords]
    targets: Mapping[str, TargetRecord]
    options: PageOptions
    left_out: int = 0
    notes: tuple[str, ...] = ()
    occurrences: Mapping[TaskKey, int] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)  # of the model, by workload key


def read_contents(store: Store, options: PageOptions) -> Contents:
    """What a page with these options shows. Raises DatabaseError for a job that there is not, and
    for a damaged database."""
    jobs = queries.jobs(store)
    if options.job is not None:
        jobs = [find_job(store, options.job)]
    keys = _keys(store, jobs, options)
    workloads = queries.workloads(store)
    bests = _bests(store)
    trials_of = _reader(store, options)
    tasks: list[TaskRecords] = []
    read = 0
    for key in keys:
        if read >= MOST_TRIALS and not options.full:
            break
        workload = workloads.get(key.workload) or WorkloadRecord(key.workload, key.workload, {})
        trials = trials_of(key)
        read += len(trials)
        tasks.append(TaskRecords(key, workload, trials, bests.get(key, ())))
    ids = {job.id for job in jobs}
    models = [
        found
        for found in measured_models(store)
        if options.job is None or found.record.job in ids or _is_of(found, jobs)
    ]
    occurrences = {task.key: task.occurrences for job in reversed(jobs) for task in job.tasks}
    return Contents(
        store.name,
        jobs,
        models,
        tasks,
        queries.targets(store),
        options,
        left_out=len(keys) - len(tasks),
        occurrences=occurrences,
        nodes=_nodes(jobs),
    )


def _nodes(jobs: Sequence[JobRecord]) -> dict[str, str]:
    """The model's nodes that each kernel computes, as the newest job names them."""
    found: dict[str, str] = {}
    for job in reversed(jobs):
        tasks = JobState.of(job.progress).tasks
        found |= {task.key: task.nodes for task in tasks if task.nodes}
    return found


def _reader(store: Store, options: PageOptions) -> Callable[[TaskKey], Sequence[TrialRecord]]:
    """What gives a kernel's trials: of a small database all are read at once, damaged ones too."""
    if options.job is not None or queries.last_trial(store) > MOST_TRIALS:
        return partial(queries.trials, store)
    found: dict[TaskKey, list[TrialRecord]] = {}
    for trial in queries.iterate_trials(store):
        found.setdefault(trial.key, []).append(trial)
    return lambda key: found.get(key, ())


def _keys(store: Store, jobs: Sequence[JobRecord], options: PageOptions) -> list[TaskKey]:
    """The kernels to show: those of the newest jobs first, each once."""
    keys = dict.fromkeys(task.key for job in jobs for task in job.tasks)
    known = queries.tasks(store)
    if options.job is None:
        keys |= dict.fromkeys(known)
    return [key for key in keys if key in set(known)]


def _bests(store: Store) -> dict[TaskKey, list[BestRecord]]:
    found: dict[TaskKey, list[BestRecord]] = {}
    for best in queries.iterate_bests(store):
        found.setdefault(best.key, []).append(best)
    return found


def _is_of(found: MeasuredModel, jobs: Sequence[JobRecord]) -> bool:
    """Whether a latency that no job measured is of one of these jobs' models."""
    hashes = {job.model_hash for job in jobs}
    return found.record.job is None and found.record.model_hash in hashes


def seconds_in_models(contents: Contents) -> dict[TaskKey, float]:
    """Seconds that a run of the newest model with a kernel spends in it, where steps were timed."""
    found: dict[TaskKey, float] = {}
    for record, times in contents.models:
        sums: dict[str, float] = {}
        for step in times.steps:
            if step.key and step.seconds is not None:
                sums[step.key] = sums.get(step.key, 0.0) + step.seconds
        for task in contents.tasks:
            key = task.key
            same = (key.target, key.threads) == (record.target, record.threads)
            if same and key.workload in sums:
                found.setdefault(key, sums[key.workload])
    return {key: seconds for key, seconds in found.items() if math.isfinite(seconds)}
