"""History: what a database knows of kernels, as training data and as schedules to start from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from compiler.errors import TunefarmError
from compiler.kernels.kernel import FusedKernel
from compiler.kernels.serialize import kernel_from_json
from compiler.schedule.space import Candidate, ScheduleSpace
from compiler.schedule.spaces import schedule_space
from compiler.target import Target
from db import queries
from db.records import TaskKey, TrialRecord, hash_json
from db.store import Store
from tuner.model.cost_model import Outcome, TrainingData
from tuner.model.features import FeatureExtractor, FeatureLayout
from tuner.model.lessons import Lesson, data_of
from tuner.model.relatives import Known
from tuner.records.trials import latency_of, search_trials

MOST_ROWS = 160  # of a kernel: its fastest half as many, and some of the others
LEAST_ROWS = 24  # of a kernel, however many there are
MOST_KERNELS = 96
JOB_ROWS = 2048  # of all kernels, for a job that learns again and again


@dataclass(frozen=True, slots=True)
class PastKernel:
    """A kernel that was tuned before: candidates of its space as it is now, with their lessons."""

    kernel: FusedKernel
    target: Target
    space: ScheduleSpace
    candidates: tuple[Candidate, ...]
    lessons: tuple[Lesson, ...]
    records: tuple[int | None, ...]  # the numbers of the records that these are from

    @property
    def best(self) -> Known | None:
        """The choices of the fastest candidate."""
        measured = [
            (lesson.latency, i)
            for i, lesson in enumerate(self.lessons)
            if lesson.outcome is Outcome.MEASURED
        ]
        if not measured:
            return None
        fastest = min(measured)[1]
        candidate = self.candidates[fastest]
        choices = self.space.choices(candidate)
        return Known(self.kernel, candidate.sketch, choices, self.records[fastest])

    @property
    def gain(self) -> float:
        """How many times faster than the default the fastest candidate is; 1 if not known."""
        found = {
            candidate: lesson.latency
            for candidate, lesson in zip(self.candidates, self.lessons, strict=True)
            if lesson.outcome is Outcome.MEASURED
        }
        default = found.get(self.space.default())
        return 1.0 if default is None else default / min(found.values())

    def training_data(self, layout: FeatureLayout, key: TaskKey, number: int) -> TrainingData:
        """Everything known of it, as the task with this number."""
        extract = FeatureExtractor(self.space, self.kernel, self.target, layout, key.threads)
        return data_of(extract(self.candidates), self.lessons, number)


def read_history(
    store: Store,
    like: TaskKey,
    target: Target,
    *,
    without: Collection[str] = (),
    rows: int | None = None,
) -> list[PastKernel]:
    """What was measured of other workloads under the same target, threads, numerics and compiler.

    `like` is a key whose workload does not matter. At most `MOST_KERNELS`, those seen last;
    workloads of `without` are left out, and so are those that this version cannot read. About
    `rows` measurements are kept in all (None: `MOST_ROWS` of each).
    """
    wanted = [
        key
        for key in reversed(queries.tasks(store, only_ok=True))
        if key == replace(like, workload=key.workload) and key.workload not in without
    ]
    keys = wanted[:MOST_KERNELS]
    kernels = queries.workloads(store, [key.workload for key in keys])
    most = MOST_ROWS
    if rows is not None:
        most = min(most, max(LEAST_ROWS, rows // max(1, len(keys))))
    result = []
    for key in keys:
        try:
            kernel = kernel_from_json(kernels[key.workload].kernel)
            space = schedule_space(kernel, target, key.threads, key.numerics)
        except TunefarmError:
            continue  # written by a version with other operators
        default = hash_json(space.schedule(space.default()).to_json())
        records = queries.some_trials(
            store, key, fastest=most, newest=2 * most, schedule_hash=default
        )
        past = past_kernel(kernel, space, target, records, most)
        if past.lessons:
            result.append(past)
    return result


def past_kernel(
    kernel: FusedKernel,
    space: ScheduleSpace,
    target: Target,
    records: Sequence[TrialRecord],
    most: int = MOST_ROWS,
) -> PastKernel:
    """The candidates among the records that the space still has, `most` of them at most."""
    found: list[_Found] = []
    for record in search_trials(records):
        candidate = space.find(record.sketch, record.choices)
        lesson = Lesson.of(record.status, latency_of(record), record.run_seconds, record.conditions)
        if candidate is not None and lesson is not None:
            found.append((candidate, lesson, record.number))
    found = _spread(found, most, space.default())
    candidates = tuple(candidate for candidate, _, _ in found)
    lessons = tuple(lesson for _, lesson, _ in found)
    return PastKernel(kernel, target, space, candidates, lessons, tuple(n for _, _, n in found))


_Found: TypeAlias = tuple[Candidate, Lesson, int | None]


def _spread(found: list[_Found], most: int, always: Candidate) -> list[_Found]:
    """At most so many: the fastest half as many, and others evenly over the rest.

    `always` stays in any case.
    """
    if len(found) <= most:
        return found
    ordered = sorted(range(len(found)), key=lambda i: (found[i][1].latency, i))
    half = most // 2
    rest = ordered[half:]
    kept = set(ordered[:half]) | {rest[i * len(rest) // half] for i in range(half)}
    kept |= {i for i, (candidate, _, _) in enumerate(found) if candidate == always}
    return [found[i] for i in sorted(kept)]


def background(
    past: Sequence[PastKernel], layout: FeatureLayout, key: TaskKey
) -> list[TrainingData]:
    """Training data of all, as tasks -1, -2, …, so that a job's own tasks can count from 0."""
    return [item.training_data(layout, key, -1 - i) for i, item in enumerate(past)]


def bests(past: Sequence[PastKernel]) -> list[Known]:
    """The fastest known schedule of each."""
    return [best for item in past if (best := item.best) is not None]


def bests_elsewhere(
    store: Store, kernels: Mapping[str, FusedKernel], like: TaskKey
) -> dict[str, list[Known]]:
    """The best schedules of these very kernels (by workload) for other threads, targets, numerics.

    They are no records of the task that `like` stands for, but good places to start from.
    """
    result: dict[str, list[Known]] = {}
    for key in queries.tasks(store, only_ok=True):
        kernel = kernels.get(key.workload)
        if kernel is None or key.compiler_version != like.compiler_version:
            continue
        if key == replace(like, workload=key.workload):
            continue
        record = queries.fastest_trial(store, key)
        if record is not None:
            known = Known(kernel, record.sketch, record.choices, record.number)
            result.setdefault(key.workload, []).append(known)
    return result
