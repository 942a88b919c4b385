"""History: what a database knows of kernels, as training data and as schedules."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_from_json
from tunefarm.compiler.schedule.space import Candidate, Choice, ScheduleSpace
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target
from tunefarm.db import queries
from tunefarm.db.records import TaskKey, TrialRecord, hash_json
from tunefarm.db.store import Store
from tunefarm.tuner.model.cost_model import Outcome, TrainingData
from tunefarm.tuner.model.features import Correction, FeatureExtractor, kernel_facts
from tunefarm.tuner.model.lessons import Lesson, data_of
from tunefarm.tuner.records.trials import measured

# Relatives: kernels of the same kind, whose best schedules are worth a try.

NEAREST = 2  # relatives that a search starts from


class Known(NamedTuple):
    """A kernel and the choices of its best schedule."""

    kernel: FusedKernel
    sketch: str
    choices: Mapping[str, Any]


class _Task(Protocol):
    kernel: FusedKernel
    space: ScheduleSpace

    @property
    def best_candidate(self) -> Candidate | None: ...


def relatives_bests(task: _Task, others: Iterable[_Task]) -> list[Candidate]:
    """The best schedules so far of the nearest among other tasks, as candidates of this one's."""
    known = []
    for other in others:
        best = None if other is task else other.best_candidate
        if best is not None:
            known.append(Known(other.kernel, best.sketch, other.space.choices(best)))
    return nearest_bests(task.kernel, task.space, known)


def nearest_bests(
    kernel: FusedKernel, space: ScheduleSpace, known: Iterable[Known]
) -> list[Candidate]:
    """The best schedules of the `NEAREST` relatives in `known`, nearest first."""
    related = [item for item in known if is_related(kernel, item.kernel)]
    related.sort(key=lambda item: distance(kernel, item.kernel))
    found: dict[Candidate, None] = {}
    for item in related:
        candidate = carried_over(item.sketch, item.choices, space)
        if candidate is not None:
            found.setdefault(candidate)
        if len(found) == NEAREST:
            break
    return list(found)


def is_related(left: FusedKernel, right: FusedKernel) -> bool:
    """The anchors are the same computation: equal axes by name, whatever their extents."""
    a, b = left.stage(left.anchor), right.stage(right.anchor)
    return (
        [axis.name for axis in a.axes] == [axis.name for axis in b.axes]
        and [axis.name for axis in a.reduce_axes] == [axis.name for axis in b.reduce_axes]
        and a.dtype == b.dtype
    )


def distance(left: FusedKernel, right: FusedKernel) -> float:
    """Sum of the differences of the kernels' facts, as log2 of their ratios."""
    pairs = zip(kernel_facts(left), kernel_facts(right), strict=True)
    return sum(abs(math.log2((1.0 + a) / (1.0 + b))) for a, b in pairs)


def carried_over(
    sketch_name: str, choices: Mapping[str, Any], space: ScheduleSpace
) -> Candidate | None:
    """The candidate with the nearest choices, or None if the space has no such sketch.

    A choice that the relative did not have gets the default's value.
    """
    for sketch in space.sketches:
        if sketch.name == sketch_name:
            positions = tuple(
                _nearest(choice, choices.get(choice.name, preferred), preferred)
                for choice, preferred in zip(sketch.choices, sketch.default, strict=True)
            )
            return Candidate(sketch_name, positions)
    return None


def _nearest(choice: Choice, value: Any, preferred: Any) -> int:
    """Position of the value in the domain that is nearest to `value`."""
    value = tuple(value) if isinstance(value, list) else value
    if value in choice.values:
        return choice.values.index(value)
    wanted = _logarithms(value)
    distances = []
    for item in choice.values:
        here = _logarithms(item)
        if wanted is None or here is None or len(here) != len(wanted):
            return choice.values.index(preferred)
        distances.append(sum(abs(a - b) for a, b in zip(here, wanted, strict=True)))
    return distances.index(min(distances))


def _logarithms(value: Any) -> Sequence[float] | None:
    items = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(item, int) and item >= 0 for item in items):
        return None
    return [math.log2(1.0 + item) for item in items]


MOST_ROWS = 160  # of a kernel: its fastest half as many, and some of the others
LEAST_ROWS = 24  # of a kernel, however many there are
MOST_KERNELS = 96
JOB_ROWS = 2048  # of all kernels, for a job that learns again and again


class PastTrial(NamedTuple):
    """A candidate, and what measuring it teaches."""

    candidate: Candidate
    lesson: Lesson


@dataclass(frozen=True, slots=True)
class PastKernel:
    """A kernel that was tuned before: candidates of its space as it is now, with their lessons."""

    kernel: FusedKernel
    target: Target
    space: ScheduleSpace
    trials: tuple[PastTrial, ...]

    @property
    def best(self) -> Known | None:
        """The choices of the fastest candidate."""
        fastest = min(self._measured(), key=lambda trial: trial.lesson.latency, default=None)
        if fastest is None:
            return None
        choices = self.space.choices(fastest.candidate)
        return Known(self.kernel, fastest.candidate.sketch, choices)

    @property
    def gain(self) -> float:
        """How many times faster than the default the fastest candidate is; 1 if not known."""
        found = {trial.candidate: trial.lesson.latency for trial in self._measured()}
        default = found.get(self.space.default())
        return 1.0 if default is None else default / min(found.values())

    def _measured(self) -> list[PastTrial]:
        return [trial for trial in self.trials if trial.lesson.outcome is Outcome.MEASURED]

    def training_data(
        self, threads: int, number: int, correction: Correction | None
    ) -> TrainingData:
        """Everything known of it, as the task with this number."""
        extract = FeatureExtractor(self.space, self.kernel, self.target, threads, correction)
        features = extract([trial.candidate for trial in self.trials])
        return data_of(features, [trial.lesson for trial in self.trials], number)


def read_history(
    store: Store,
    like: TaskKey,
    target: Target,
    *,
    without: Collection[str] = (),
    rows: int | None = None,
    everywhere: bool = False,
) -> list[PastKernel]:
    """What was measured of other workloads under the same target, threads, precision and compiler;
    `everywhere`, behind those, also of any workload under other targets.

    `like` is a key whose workload does not matter. At most `MOST_KERNELS`, those seen last;
    workloads of `without` are left out, and so are those that this version cannot read. About
    `rows` measurements are kept in all (None: `MOST_ROWS` of each).
    """
    known = queries.targets(store) if everywhere else {}
    here, elsewhere = [], []
    for key in reversed(queries.tasks(store, only_ok=True)):
        if key == replace(like, workload=key.workload):
            here += [] if key.workload in without else [key]
        elif key == replace(like, workload=key.workload, target=key.target):
            elsewhere += [key] if key.target in known else []
    keys = [*here, *elsewhere][:MOST_KERNELS]
    kernels = queries.workloads(store, [key.workload for key in keys])
    targets = {like.target: target}
    most = MOST_ROWS
    if rows is not None:
        most = min(most, max(LEAST_ROWS, rows // max(1, len(keys))))
    result = []
    for key in keys:
        try:
            if key.target not in targets:
                targets[key.target] = Target.from_json(known[key.target].description)
            kernel = kernel_from_json(kernels[key.workload].kernel)
            space = schedule_space(kernel, targets[key.target], key.threads, key.numerics)
        except (TunefarmError, ValueError):
            continue  # written by a version with other operators, or that knows other targets
        default = hash_json(space.schedule(space.default()).to_json())
        records = queries.some_trials(
            store, key, fastest=most, newest=2 * most, schedule_hash=default
        )
        past = past_kernel(kernel, space, targets[key.target], records, most)
        if past.trials:
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
    found: list[PastTrial] = []
    for record, latency, deviation in measured(records):
        candidate = space.find(record.sketch, record.choices)
        lesson = Lesson.of(record.status, latency, record.run_seconds, record.conditions, deviation)
        if candidate is not None and lesson is not None:
            found.append(PastTrial(candidate, lesson))
    return PastKernel(kernel, target, space, tuple(_spread(found, most, space.default())))


def _spread(found: list[PastTrial], most: int, always: Candidate) -> list[PastTrial]:
    """At most so many: the fastest half as many, and others evenly over the rest.

    `always` stays in any case.
    """
    if len(found) <= most:
        return found
    ordered = sorted(range(len(found)), key=lambda i: (found[i].lesson.latency, i))
    half = most // 2
    rest = ordered[half:]
    kept = set(ordered[:half]) | {rest[i * len(rest) // half] for i in range(half)}
    kept |= {i for i, trial in enumerate(found) if trial.candidate == always}
    return [found[i] for i in sorted(kept)]


def background(
    past: Sequence[PastKernel], threads: int, correction: Correction | None = None
) -> list[TrainingData]:
    """Training data of all, as tasks -1, -2, …, so that a job's own tasks can count from 0."""
    return [item.training_data(threads, -1 - i, correction) for i, item in enumerate(past)]


def bests(past: Sequence[PastKernel], target: Target) -> list[Known]:
    """The fastest known schedule of each kernel that was tuned for the target."""
    of_target = (item for item in past if item.target == target)
    return [best for item in of_target if (best := item.best) is not None]


def bests_elsewhere(
    store: Store, kernels: Mapping[str, FusedKernel], like: TaskKey
) -> dict[str, list[Known]]:
    """The best schedules of these kernels (by workload) for other threads, targets, precisions.

    They are no records of the task that `like` stands for, but good places to start from.
    """
    result: dict[str, list[Known]] = {}
    for key in queries.tasks(store, only_ok=True):
        kernel = kernels.get(key.workload)
        is_of_this = key == replace(like, workload=key.workload)
        if kernel is None or is_of_this or key.compiler_version != like.compiler_version:
            continue
        record = queries.fastest_trial(store, key)
        if record is not None:
            known = Known(kernel, record.sketch, record.choices)
            result.setdefault(key.workload, []).append(known)
    return result
