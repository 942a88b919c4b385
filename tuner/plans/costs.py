"""What kernels cost: seconds of a call, from records where there are any, else estimated; and the
trials of default schedules that make such records for a plan.

A plan is to be judged by what it takes when its kernels are tuned. A kernel of which only the
default schedule was measured is expected to gain what others have gained. Estimates are scaled so
that they are right on the whole for kernels of the same kind that were measured, or else for all.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.kernels.serialize import kernel_to_json
from tunefarm.compiler.plan.choices.estimate import Estimate
from tunefarm.compiler.schedule.space import ScheduleSpace
from tunefarm.compiler.schedule.spaces import schedule_space
from tunefarm.compiler.target import Target
from tunefarm.configs.settings import Settings
from tunefarm.db import queries
from tunefarm.db.records import TargetRecord, TaskKey, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.measure.compare import ALONE_DEVIATION, BETWEEN_RUNS
from tunefarm.measure.farm.runner import Runner
from tunefarm.measure.measurement import MeasureRequest, MeasureResult
from tunefarm.tuner.records.estimates import joint
from tunefarm.tuner.records.trials import record_to_apply, task_key, trial_record
from tunefarm.tuner.search.measuring import timing_options
from tunefarm.tuner.search.tasks import Planned, plan

SEARCHED = 8
"""Trials of a kernel from which on its best is taken as it is: a search was at work on it."""
CONFIDENCE = 1.0
"""Deviations by which a cost that is not known may be lower: an optimist's."""

Estimates: TypeAlias = Callable[[FusedKernel, str], Estimate]
"""What kernels take under their default schedules, by the kernel and its workload key."""


@dataclass(frozen=True, slots=True)
class KernelCost:
    """Seconds of one call of a kernel when it is tuned, and the deviation of their logarithm;
    infinity where its default schedule does not work."""

    seconds: float
    deviation: float
    measured: bool

    @property
    def optimistic(self) -> float:
        """What it may take with some luck: less than expected as long as it was not measured."""
        if self.measured:
            return self.seconds
        return self.seconds * math.exp(-CONFIDENCE * self.deviation)


@dataclass(frozen=True, slots=True)
class _Record:
    """What the records say of a kernel: its best, and times over the default's where they met."""

    seconds: float
    deviation: float
    is_default: bool
    gain: float | None = None


@dataclass(frozen=True, slots=True)
class _Common:
    """What tuning leaves of a default schedule's time, and what estimates are to be scaled by to be
    those of default schedules: of kernels by kind, and of all others."""

    gain: float
    scale: float
    scales: Mapping[str, float]


class KernelCosts:
    """Costs of the kernels of `kernels`, which may become more, for one target."""

    def __init__(
        self,
        store: Store,
        kernels: Mapping[str, FusedKernel],
        key_of: Callable[[str], TaskKey],
        estimates: Estimates,
    ) -> None:
        self._store, self._kernels = store, kernels
        self._key_of, self._estimates = key_of, estimates
        self._records: dict[str, _Record | None] = {}
        self._known: _Common | None = None

    def learn(self, keys: Collection[str]) -> None:
        """Look these kernels up again: they were measured."""
        for key in keys:
            self._records.pop(key, None)
        self._known = None

    def __getitem__(self, key: str) -> KernelCost:
        """The cost of the kernel with this workload key."""
        common = self._common()
        record = self._record(key)
        if record is not None:
            factor = common.gain if record.is_default else 1.0
            return KernelCost(factor * record.seconds, record.deviation, measured=True)
        found = self._estimated(key)
        scale = common.scales.get(found.kind, common.scale)
        return KernelCost(common.gain * scale * found.seconds, found.deviation, measured=False)

    def of_calls(self, calls: Mapping[str, int]) -> float:
        """Seconds that these calls of kernels are expected to take."""
        return math.fsum(count * self[key].seconds for key, count in calls.items())

    def is_measured(self, calls: Mapping[str, int]) -> bool:
        """Whether there are records of all of these kernels."""
        return all(self._record(key) is not None for key in calls)

    def _common(self) -> _Common:
        if self._known is not None:
            return self._known
        found = [(key, self._record(key)) for key in list(self._kernels)]
        known = [(key, record) for key, record in found if record is not None]
        gains = [record.gain for _, record in known if record.gain is not None]
        gain = median(gains) if gains else 1.0
        ratios: dict[str, list[float]] = {}
        for key, record in known:
            if math.isfinite(record.seconds):
                estimate = self._estimated(key)
                ratio = _default_seconds(record, gain) / estimate.seconds
                ratios.setdefault(estimate.kind, []).append(ratio)
        every = [ratio for group in ratios.values() for ratio in group]
        scales = {name: median(group) for name, group in ratios.items()}
        self._known = _Common(gain, median(every) if every else 1.0, scales)
        return self._known

    def _estimated(self, key: str) -> Estimate:
        return self._estimates(self._kernels[key], key)

    def _record(self, key: str) -> _Record | None:
        if key not in self._records:
            self._records[key] = record = self._read(self._key_of(key))
            if record is not None:
                self._known = None
        return self._records[key]

    def _read(self, key: TaskKey) -> _Record | None:
        counts = queries.count_trials(self._store, key)
        if not counts:
            return None
        settled = queries.best(self._store, key)
        if settled is not None:
            best = settled[0]
            deviation = math.hypot(math.log(best.high / best.low) / 3.92, BETWEEN_RUNS)
            seconds = best.default_latency * best.ratio
            return _Record(seconds, deviation, is_default=False, gain=best.ratio)
        applied = record_to_apply(self._store, key)
        if applied is None or applied[0].latency is None:
            return _Record(math.inf, 0.0, is_default=False)
        trial = applied[0]
        known = joint(queries.trials_of_schedules(self._store, key, [trial.schedule_hash]))
        deviation = ALONE_DEVIATION if known is None else known.deviation
        searched = sum(counts.values()) >= SEARCHED
        return _Record(applied[0].latency or math.inf, deviation, is_default=not searched)


def _default_seconds(record: _Record, gain: float) -> float:
    """What the default schedule takes, as far as the records tell."""
    if record.is_default:
        return record.seconds
    return record.seconds / (gain if record.gain is None else record.gain)


# Default schedules of the kernels that decide about a plan, measured by the runner of a job.
#
# They are ordinary trials: the search that follows, other jobs and `tune db` have them.


POLL_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class _Asked:
    """A kernel that is being measured, and what with."""

    key: str
    space: ScheduleSpace
    planned: Planned


class DefaultTrials:
    """Measures default schedules and records them; `stop` ends it early.

    `measured` counts those that were answered, by how they ended.
    """

    def __init__(
        self,
        store: Store,
        target: Target,
        settings: Settings,
        runner: Runner,
        *,
        job: str,
        most: int | None = None,
    ) -> None:
        """At most so many are measured; None: any number."""
        self.measured: Counter[str] = Counter()
        self._store, self._target, self._settings = store, target, settings
        self._runner, self._job = runner, job
        self._most = most
        self._number = 0
        self._stopped = False
        self._asked: set[str] = set()

    def stop(self) -> None:
        """Submit nothing more; safe to call from a signal handler."""
        self._stopped = True

    @property
    def ended(self) -> bool:
        """Whether nothing more can be measured."""
        return self._stopped or (self._most is not None and self._number >= self._most)

    def measure(
        self, kernels: Mapping[str, FusedKernel], is_late: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """Measure these kernels, by workload key, each once, until it `is_late`; the keys of those
        that were."""
        waiting = [key for key in kernels if key not in self._asked]
        pending: dict[str, _Asked] = {}
        done: list[str] = []

        def may_begin() -> bool:
            return not self.ended and not is_late()

        while pending or (waiting and may_begin()):
            while waiting and len(pending) < self._runner.capacity and may_begin():
                key = waiting.pop(0)
                self._asked.add(key)
                asked, request = self._request(key, kernels[key])
                pending[request.request_id] = asked
                self._runner.submit(request)
            results = self._runner.results(POLL_SECONDS)
            ours = [result for result in results if result.request_id in pending]
            done += self._take(ours, pending)
            if self._stopped:
                break
        return done

    def _request(self, key: str, kernel: FusedKernel) -> tuple[_Asked, MeasureRequest]:
        compile = self._settings.compile
        space = schedule_space(kernel, self._target, compile.threads, compile.numerics)
        default = plan(space, space.default())
        self._number += 1
        self._store.add([TargetRecord(self._target.key, self._target.to_json())])
        self._store.add([WorkloadRecord(key, kernel.name, kernel_to_json(kernel))])
        request = MeasureRequest(
            request_id=f"{self._job[:16]}-plan-{self._number}",
            kernel=kernel_to_json(kernel),
            workload_key=key,
            schedule=default.schedule,
            threads=compile.threads,
            options=timing_options(self._settings),
            seed=self._settings.search.seed + self._number,
            target=self._target.key,
            numerics=self._key(key).numerics,
        )
        return _Asked(key, space, default), request

    def _key(self, workload: str) -> TaskKey:
        compile = self._settings.compile
        return task_key(workload, self._target, compile.threads, compile.numerics)

    def _take(self, results: Sequence[MeasureResult], pending: dict[str, _Asked]) -> list[str]:
        records, keys = [], []
        for result in results:
            asked = pending.pop(result.request_id)
            candidate = asked.planned.candidate
            keys.append(asked.key)
            records.append(
                trial_record(
                    self._key(asked.key),
                    result,
                    sketch=candidate.sketch,
                    choices=asked.space.choices(candidate),
                    schedule=asked.planned.schedule,
                    job=self._job,
                )
            )
        self._store.add(records)
        self.measured.update(str(result.status) for result in results)
        return keys
