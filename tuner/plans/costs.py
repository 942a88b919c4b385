"""What kernels cost: seconds of a call, from records where there are any, else estimated.

A plan is to be judged by what it takes when its kernels are tuned. A kernel of which only the
default schedule was measured is expected to gain what others have gained. Estimates are scaled so
that they are right on the whole for kernels of the same kind that were measured, or else for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from tunefarm.compiler.kernels.kernel import FusedKernel
from tunefarm.compiler.plan.choices.estimate import Estimate
from tunefarm.db import queries
from tunefarm.db.records import TaskKey
from tunefarm.db.store import Store
from tunefarm.measure.compare import ALONE_DEVIATION, BETWEEN_RUNS
from tunefarm.tuner.records.estimates import joint
from tunefarm.tuner.records.trials import record_to_apply

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
